"""`netsim proxy`: a link before a server."""

from __future__ import annotations

from pathlib import Path

import click

from netsim.cli.closing import print_closing
from netsim.cli.options import make_options, make_scenario, scenario_options, session_options
from netsim.profile.scenario import Scenario
from netsim.proxy.server import ProxyBackend
from netsim.run.address import parse_address
from netsim.run.session import Options, Session, say


@click.command("proxy")
@scenario_options(None)
@click.option(
    "--listen",
    default=":0",
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where clients connect; port 0 takes a free one.",
)
@click.option("--upstream", required=True, metavar="[HOST]:PORT", help="The server behind the link.")
@session_options
def command(
    profile: str, seed: int, events: tuple[str, ...], listen: str, upstream: str,
    out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None,
) -> None:  # fmt: skip
    """Put a link before a server, on a port of its own.

    Works on the stream, without privileges: loss becomes the delay that TCP would have shown. Ends at SIGINT or
    SIGTERM.
    """
    serve_proxy(make_scenario(profile, seed, events), listen, upstream, make_options(out, control, ready_file, seconds))


def serve_proxy(scenario: Scenario, listen: str, upstream: str, options: Options) -> None:
    """Runs the proxy until a signal."""
    at, behind = parse_address(listen, "--listen"), parse_address(upstream, "--upstream")
    session = Session(scenario, lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, behind), options)
    say(
        f"netsim listens on {session.backend.endpoint()} for {behind} ({scenario.profile.name}, seed {scenario.seed}, "
        f"control {session.control.path})"
    )
    _, summary = session.run()
    print_closing(summary, options.out)
