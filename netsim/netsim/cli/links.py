"""The commands that open a link: `netsim run`, `netsim replay`, `netsim proxy`."""

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields
from functools import reduce
from pathlib import Path
from typing import Any, cast

import click

from netsim.cli import PATH
from netsim.errors import NetsimError, UsageError
from netsim.profiles import Scenario, load
from netsim.run.loop import Address, parse_address
from netsim.run.proxy import ProxyBackend
from netsim.run.session import LinkRun, Options, await_listening, start_command
from netsim.run.tun import TunBackend
from netsim.traces import Trace, parse_timed_event, read_trace

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def _together(*options: Decorator) -> Decorator:
    return lambda command: reduce(lambda inner, option: option(inner), reversed(options), command)


def _scenario_options(**of_profile: Any) -> Decorator:
    return _together(
        click.option("--profile", show_default=True, metavar="NAME|FILE", help="The link's profile.", **of_profile),
        click.option("--seed", default=0, show_default=True, help="Seed of delays and losses."),
        click.option(
            "--event", "events", multiple=True, metavar="SECONDS:EVENT",
            help="An event, such as 12:blackhole:3 or 20:change:5g:2; may be repeated.",
        ),
    )  # fmt: skip


_session_options = _together(
    click.option("--out", type=PATH, help="Folder for events.jsonl, packets.csv.gz and summary.json."),
    click.option("--name", help="The link's name, for `netsim ctl` [default: the number of its process]."),
    click.option("--control", type=PATH, help="Path of the control socket, instead of a name."),
    click.option("--ready-file", type=PATH, help="File that receives the link's address once it carries traffic."),
    click.option("--seconds", type=click.FloatRange(min=0), help="End after this time."),
)
_backend_options = _together(
    click.option(
        "--backend", type=click.Choice(["tun", "proxy"]), default="tun", show_default=True,
        help="tun: real packets, needs root. proxy: stream level, approximate, needs nothing.",
    ),
    click.option("--upstream", metavar="[HOST]:PORT", help="The server that the link leads to, already running."),
    click.option("--serve", metavar="COMMAND", help="Start this server at the far end instead (tun only)."),
    click.option("--port", type=click.IntRange(1, 65535), help="Its port [default: the upstream's]."),
)  # fmt: skip


@click.command("run", context_settings={"allow_interspersed_args": False})  # the command's own are not ours
@_scenario_options(required=True)
@_backend_options
@_session_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def run(words: tuple[str, ...], **given: Any) -> None:
    """Run a command whose traffic passes through a link.

    {link} among the command's words, and the variable NETSIM_LINK, become the link's address. With the tun backend,
    connections to 127.0.0.1 at the upstream's port pass through the link too. Without a command the link stays open
    until SIGINT or SIGTERM. The exit status is the command's.
    """
    _play(_scenario(given), given, words)


@click.command("replay")
@_scenario_options(default="4g")
@click.option(
    "--from", "start_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Begin so far into it."
)
@click.option("--loop", is_flag=True, help="Start again at the trace's end; otherwise its last row stays.")
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Pass over this column of a CSV; may be repeated.")
@_backend_options
@_session_options
@click.argument("trace", type=PATH)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def replay(
    trace: Path, start_s: float, loop: bool, ignore: tuple[str, ...], words: tuple[str, ...], **given: Any
) -> None:
    """Drive a link from a recorded trace.

    The profile fills in what the trace leaves blank; a command comes after --, as of `netsim run`.
    """
    read = read_trace(trace, ignore).since(start_s)
    _play(_scenario(given, read, loop), given, words)


@click.command("proxy")
@_scenario_options(required=True)
@click.option(
    "--listen", default=":0", show_default=True, metavar="[HOST]:PORT",
    help="Where clients connect; port 0 takes a free one.",
)  # fmt: skip
@click.option("--upstream", required=True, metavar="[HOST]:PORT", help="The server that the link leads to.")
@_session_options
def proxy(listen: str, upstream: str, **given: Any) -> None:
    """Put a link before a server, on a port of its own.

    Works on the stream, without privileges: a loss becomes the delay that TCP would have shown. Ends at SIGINT or
    SIGTERM.
    """
    scenario = _scenario(given)
    at, server = parse_address(listen, "--listen"), parse_address(upstream, "--upstream")
    session = LinkRun(
        scenario, lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, server), _options(given)
    )
    click.echo(
        f"netsim listens on {session.backend.endpoint()} for {server} ({scenario.profile.name}, seed {scenario.seed}, "
        f"control {session.control.path})"
    )
    _print_summary(session.run()[1], given["out"])


def _scenario(given: dict[str, Any], trace: Trace | None = None, loop: bool = False) -> Scenario:
    """Loads and parses; raises NetsimError before anything is opened."""
    extra = tuple(map(parse_timed_event, given["events"]))
    scenario = Scenario(load(given["profile"]), given["seed"], trace, loop, extra)
    scenario.models()  # reads the profiles of its events
    return scenario


def _options(given: dict[str, Any]) -> Options:
    if given["control"] is not None and given["name"] is not None:
        raise NetsimError("--name and --control both say where the control socket is.", hint="Give one of the two.")
    return Options(**{field.name: given[field.name] for field in fields(Options)})


def _play(scenario: Scenario, given: dict[str, Any], words: tuple[str, ...]) -> None:
    """Plays the scenario over the backend, with or without a command, and exits with the command's status."""
    options = _options(given)
    serve, port = given["serve"], given["port"]
    upstream = None if given["upstream"] is None else parse_address(given["upstream"], "--upstream")
    if (upstream is not None and serve is not None) or (upstream is None and serve is None and port is None):
        raise UsageError(
            "Say which server the link leads to.",
            hint="--upstream :50051 if it is running, --serve 'COMMAND' --port 50051 to start it at the far end of a "
            "tun link, or --port alone if you will start it in the server's namespace by hand.",
        )
    if given["backend"] == "tun":
        status, summary = _play_tun(scenario, upstream, serve, port, options, words)
    elif upstream is None:
        raise UsageError("The proxy backend needs --upstream.", hint="Start the server and name it with --upstream.")
    else:
        at = Address("127.0.0.1", port or 0)
        session = LinkRun(
            scenario, lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, upstream), options
        )
        _announce(session, words)
        status, summary = session.run(words)
    _print_summary(summary, options.out)
    sys.exit(status)


def _play_tun(
    scenario: Scenario, upstream: Address | None, serve: str | None, port: int | None, options: Options,
    words: tuple[str, ...],
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    at = port or (upstream.port if upstream else 0)
    if not at:
        raise UsageError("--serve needs --port.", hint="Say on which port the server listens.")
    session = LinkRun(scenario, lambda loop, recorder: TunBackend(loop, scenario, recorder, at, upstream), options)
    tun = cast("TunBackend", session.backend)
    with ExitStack() as stack:
        stack.callback(session.control.close)
        stack.callback(tun.close)
        if tun.leftovers:
            click.echo(f"netsim: removed what a killed run had left: {', '.join(tun.leftovers)}", err=True)
        if serve is not None:
            server = start_command(shlex.split(serve), f"0.0.0.0:{at}", tun.server_prefix)
            stack.callback(server.wait)
            stack.callback(server.terminate)
            await_listening(server, at)
        _announce(session, words)
        return session.run(words, tun.command_prefix)


def _announce(session: LinkRun, words: tuple[str, ...]) -> None:
    if not words:
        backend = session.backend
        click.echo(f"netsim carries to {backend.endpoint()} ({backend.name}, control {session.control.path})")


def _print_summary(summary: dict[str, Any], out: Path | None) -> None:
    """On standard error, apart from a command's own output."""
    parts = []
    for direction, counts in summary["directions"].items():
        dropped = sum(value for name, value in counts.items() if name.startswith("dropped_"))
        parts.append(f"{direction} {counts['packets']} packets, {dropped} dropped")
    approximate = " (approximate: stream level)" if summary["approximate"] else ""
    click.echo(f"netsim: {'; '.join(parts)}{approximate}", err=True)
    lateness = summary["lateness"]
    if lateness["flagged"]:
        click.echo(
            f"netsim: this machine was too busy: releases came {lateness['median_ms']:.2f} ms late in the median, "
            f"{lateness['p99_ms']:.1f} ms at 99 % (limits 0.3 and 5); do not trust timings of this run.",
            err=True,
        )
    if out is not None:
        click.echo(f"netsim: outputs in {out}; draw them with: netsim report {out}", err=True)
