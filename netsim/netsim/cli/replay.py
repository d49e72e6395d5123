"""`netsim replay`: a link driven by a trace."""

from __future__ import annotations

from pathlib import Path

import click

from netsim.cli.options import PATH, make_options, make_scenario, scenario_options, session_options, tell_remarks
from netsim.cli.play import backend_options, play
from netsim.trace.files import Format, read_trace


@click.command("replay", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@scenario_options("4g")
@click.option(
    "--format",
    "form",
    type=click.Choice([str(form) for form in Format]),
    help="The trace's format [default: told from its content].",
)
@click.option("--loop", is_flag=True, help="Start again at the trace's end; otherwise its last row stays.")
@click.option(
    "--ignore", "ignored", multiple=True, metavar="COLUMN", help="Pass over this column of a CSV; may be repeated."
)
@backend_options
@session_options
@click.argument("trace", type=PATH)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def command(
    profile: str, seed: int, events: tuple[str, ...], form: str | None, loop: bool, ignored: tuple[str, ...],
    backend: str, upstream: str | None, serve: str | None, port: int | None, out: Path | None, control: Path | None,
    ready_file: Path | None, seconds: float | None, trace: Path, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Drive a link from a recorded trace.

    What the trace leaves blank, the profile says. Options come before the trace, the command after it; see `netsim
    run`.
    """
    read = read_trace(trace, Format(form) if form else None, ignored)
    tell_remarks(read)
    scenario = make_scenario(profile, seed, events, read, loop)
    play(scenario, backend, upstream, serve, port, make_options(out, control, ready_file, seconds), words)
