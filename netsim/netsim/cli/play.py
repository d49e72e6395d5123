"""Plays a scenario over either backend, with or without a command; `run` and `replay` share it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from netsim.cli.closing import print_closing
from netsim.errors import AddressError, CommandError
from netsim.profile.scenario import Scenario
from netsim.proxy.server import ProxyBackend
from netsim.run.address import Address, parse_address
from netsim.run.session import Options, Session, say, start_command
from netsim.tun.backend import TunBackend

SERVER_DEADLINE_S = 120.0  # a server may have a model to load
POLL_S = 0.05


def backend_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--backend, --upstream, --serve, --port."""
    for option in reversed(
        [
            click.option(
                "--backend", type=click.Choice(["tun", "proxy"]), default="tun", show_default=True,
                help="tun: real packets, needs root. proxy: stream level, approximate, needs nothing.",
            ),
            click.option("--upstream", metavar="[HOST]:PORT", help="The server behind the link, running already."),
            click.option("--serve", metavar="COMMAND", help="Start this server at the far end instead (tun only)."),
            click.option("--port", type=click.IntRange(1, 65535), help="Its port [default: the upstream's]."),
        ]
    ):  # fmt: skip
        function = option(function)
    return function


def play(
    scenario: Scenario, backend: str, upstream: str | None, serve: str | None, port: int | None, options: Options,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """Runs, then ends the process with the command's status."""
    if words[:1] == ("--",):  # click keeps the dashes where an argument came before them
        words = words[1:]
    behind = parse_address(upstream, "--upstream") if upstream is not None else None
    if (behind is not None and serve is not None) or (behind is None and serve is None and port is None):
        raise AddressError(
            "Say which server is behind the link.",
            hint="--upstream :50051 if it runs already, --serve 'COMMAND' --port 50051 to start it at the far end of a "
            "tun link, or --port alone if it will be started in the server's namespace by hand.",
        )
    if backend == "proxy":
        if behind is None:
            raise AddressError(
                "The proxy backend needs --upstream.", hint="Start the server and name it with --upstream."
            )
        at = Address("127.0.0.1", port or 0)
        session = Session(scenario, lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, behind), options)
        if not words:
            _announce(session)
        status, summary = session.run(words)
    else:
        status, summary = _play_tun(scenario, behind, serve, port, options, words)
    print_closing(summary, options.out)
    sys.exit(status)


def _play_tun(
    scenario: Scenario, behind: Address | None, serve: str | None, port: int | None, options: Options,
    words: tuple[str, ...],
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    at = port or (behind.port if behind else 0)
    if not at:
        raise AddressError("--serve needs --port.", hint="Say on which port the server listens.")
    holder: list[TunBackend] = []

    def make(loop: Any, recorder: Any) -> TunBackend:
        holder.append(TunBackend(loop, scenario, recorder, at, behind))
        return holder[0]

    session = Session(scenario, make, options)
    tun = holder[0]
    if tun.leftovers:
        click.echo(f"netsim: removed what a killed run had left: {', '.join(tun.leftovers)}", err=True)
    server: subprocess.Popen[bytes] | None = None
    try:
        if serve is not None:
            server = start_command(shlex.split(serve), f"0.0.0.0:{at}", tun.server_prefix)
            _await_listening(server, at)
        if not words:
            _announce(session)
        return session.run(words, tun.command_prefix)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        tun.close()
        session.control.close()


def _announce(session: Session) -> None:
    say(f"netsim carries to {session.backend.endpoint()} ({session.backend.name}, control {session.control.path})")


def _await_listening(server: subprocess.Popen[bytes], port: int) -> None:
    """Waits until something listens on the port in the server's namespace; raises CommandError."""
    deadline = time.monotonic() + SERVER_DEADLINE_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise CommandError(f"The server ended with status {server.returncode} before it listened on port {port}.")
        for table in ("tcp", "tcp6"):
            path = Path(f"/proc/{server.pid}/net/{table}")
            lines = path.read_text().splitlines()[1:] if path.exists() else []
            # Columns: number, local address, remote address, state (0A is LISTEN).
            if any(f[1].endswith(f":{port:04X}") and f[3] == "0A" for f in map(str.split, lines)):
                return
        time.sleep(POLL_S)
    raise CommandError(f"The server does not listen on port {port} after {SERVER_DEADLINE_S:.0f} s.")
