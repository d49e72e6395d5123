"""`netsim run`: a command behind a link."""

from __future__ import annotations

from pathlib import Path

import click

from netsim.cli.options import make_options, make_scenario, scenario_options, session_options
from netsim.cli.play import backend_options, play


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@scenario_options(None)
@backend_options
@session_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    profile: str, seed: int, events: tuple[str, ...], backend: str, upstream: str | None, serve: str | None,
    port: int | None, out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a command whose traffic passes through a link.

    The command finds the link's address in the place of {link} among its words, and in the variable NETSIM_LINK. With
    the tun backend its connections to 127.0.0.1 at the upstream's port pass through the link too. Without a command
    the link stays until SIGINT or SIGTERM. The status is the command's.
    """
    options = make_options(out, control, ready_file, seconds)
    play(make_scenario(profile, seed, events), backend, upstream, serve, port, options, words)
