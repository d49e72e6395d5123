"""The commands that open a link: `netsim run`, `netsim replay`, `netsim proxy`."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import click

from netsim.backends.proxy.server import ProxyBackend
from netsim.backends.tun.backend import TunBackend
from netsim.cli.options import (
    IGNORE,
    PATH,
    backend_options,
    format_option,
    make_scenario,
    print_remarks,
    scenario_options,
    session_options,
)
from netsim.errors import AddressError, ControlError
from netsim.profile.scenario import Scenario
from netsim.run.address import Address, parse_address
from netsim.run.session import LinkRun, Options, await_listening, start_command
from netsim.trace.formats import TraceFormat, read_trace

# Options end at the first word of the command, whose own options are not ours.
_BEFORE_A_COMMAND = {"allow_interspersed_args": False}


@click.command("run", context_settings=_BEFORE_A_COMMAND)
@scenario_options(None)
@backend_options
@session_options
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def run(
    profile: str, seed: int, events: tuple[str, ...], backend: str, upstream: str | None, serve: str | None,
    port: int | None, out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None,
    name: str | None, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Run a command whose traffic passes through a link.

    {link} among the command's words, and the variable NETSIM_LINK, become the link's address. With the tun backend,
    connections to 127.0.0.1 at the upstream's port pass through the link too. Without a command the link stays open
    until SIGINT or SIGTERM. The exit status is the command's.
    """
    options = _options(out, control, ready_file, seconds, name)
    _play(make_scenario(profile, seed, events), backend, upstream, serve, port, options, words)


class _AfterItsArgument(click.Command):
    """A command whose options may come after its first argument too, until a word, or --, begins the command to run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        takes_value = {
            flag: isinstance(each, click.Option) and not each.is_flag for each in self.params for flag in each.opts
        }
        options: list[str] = []
        argument: list[str] = []
        rest = list(args)
        while rest and rest[0] != "--" and not (argument and not rest[0].startswith("-")):
            word = rest.pop(0)
            (options if word.startswith("-") else argument).append(word)
            if takes_value.get(word) and rest:
                options.append(rest.pop(0))
        return super().parse_args(ctx, [*options, *argument, *rest])


@click.command("replay", cls=_AfterItsArgument, context_settings=_BEFORE_A_COMMAND)
@scenario_options("4g")
@format_option("--format", "form", "The trace's format [default: detected from its content].")
@click.option(
    "--from", "start_s", type=click.FloatRange(min=0), default=0.0, metavar="SECONDS", help="Begin so far into it."
)
@click.option("--loop", is_flag=True, help="Start again at the trace's end; otherwise its last row stays.")
@IGNORE
@backend_options
@session_options
@click.argument("trace", type=PATH)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- COMMAND...]")
def replay(
    profile: str, seed: int, events: tuple[str, ...], form: str | None, start_s: float, loop: bool,
    ignored: tuple[str, ...], backend: str, upstream: str | None, serve: str | None, port: int | None,
    out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None, name: str | None,
    trace: Path, words: tuple[str, ...],
) -> None:  # fmt: skip
    """Drive a link from a recorded trace.

    The profile fills in what the trace leaves blank. Options come before or after the trace, then the command; see
    `netsim run`.
    """
    read = read_trace(trace, TraceFormat(form) if form else None, ignored).since(start_s)
    print_remarks(read)
    scenario = make_scenario(profile, seed, events, read, loop)
    _play(scenario, backend, upstream, serve, port, _options(out, control, ready_file, seconds, name), words)


@click.command("proxy")
@scenario_options(None)
@click.option(
    "--listen",
    default=":0",
    show_default=True,
    metavar="[HOST]:PORT",
    help="Where clients connect; port 0 takes a free one.",
)
@click.option("--upstream", required=True, metavar="[HOST]:PORT", help="The server that the link leads to.")
@session_options
def proxy(
    profile: str, seed: int, events: tuple[str, ...], listen: str, upstream: str,
    out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None, name: str | None,
) -> None:  # fmt: skip
    """Put a link before a server, on a port of its own.

    Works on the stream, without privileges: a loss becomes the delay that TCP would have shown. Ends at SIGINT or
    SIGTERM.
    """
    scenario = make_scenario(profile, seed, events)
    at, server = parse_address(listen, "--listen"), parse_address(upstream, "--upstream")
    session = LinkRun(
        scenario,
        lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, server),
        _options(out, control, ready_file, seconds, name),
    )
    click.echo(
        f"netsim listens on {session.backend.endpoint()} for {server} ({scenario.profile.name}, seed {scenario.seed}, "
        f"control {session.control.path})"
    )
    _, summary = session.run()
    _print_summary(summary, out)


def _options(
    out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None, name: str | None
) -> Options:
    if control is not None and name is not None:
        raise ControlError("--name and --control both say where the control socket is.", hint="Give one of the two.")
    return Options(out, control, ready_file, seconds, name)


def _play(
    scenario: Scenario, backend: str, upstream: str | None, serve: str | None, port: int | None, options: Options,
    words: tuple[str, ...],
) -> None:  # fmt: skip
    """Plays the scenario over the backend, with or without a command, and exits with the command's status."""
    if words[:1] == ("--",):  # click keeps the dashes where an argument came before them
        words = words[1:]
    server = parse_address(upstream, "--upstream") if upstream is not None else None
    if (server is not None and serve is not None) or (server is None and serve is None and port is None):
        raise AddressError(
            "Say which server the link leads to.",
            hint="--upstream :50051 if it is running, --serve 'COMMAND' --port 50051 to start it at the far end of a "
            "tun link, or --port alone if you will start it in the server's namespace by hand.",
        )
    if backend == "proxy":
        if server is None:
            raise AddressError(
                "The proxy backend needs --upstream.", hint="Start the server and name it with --upstream."
            )
        at = Address("127.0.0.1", port or 0)
        session = LinkRun(scenario, lambda loop, recorder: ProxyBackend(loop, scenario, recorder, at, server), options)
        if not words:
            _announce(session)
        status, summary = session.run(words)
    else:
        status, summary = _play_tun(scenario, server, serve, port, options, words)
    _print_summary(summary, options.out)
    sys.exit(status)


def _play_tun(
    scenario: Scenario, upstream: Address | None, serve: str | None, port: int | None, options: Options,
    words: tuple[str, ...],
) -> tuple[int, dict[str, Any]]:  # fmt: skip
    at = port or (upstream.port if upstream else 0)
    if not at:
        raise AddressError("--serve needs --port.", hint="Say on which port the server listens.")
    made: list[TunBackend] = []

    def make(loop: Any, recorder: Any) -> TunBackend:
        made.append(TunBackend(loop, scenario, recorder, at, upstream))
        return made[0]

    session = LinkRun(scenario, make, options)
    tun = made[0]
    if tun.leftovers:
        click.echo(f"netsim: removed what a killed run had left: {', '.join(tun.leftovers)}", err=True)
    server: subprocess.Popen[bytes] | None = None
    try:
        if serve is not None:
            server = start_command(shlex.split(serve), f"0.0.0.0:{at}", tun.server_prefix)
            await_listening(server, at)
        if not words:
            _announce(session)
        return session.run(words, tun.command_prefix)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        tun.close()
        session.control.close()


def _announce(session: LinkRun) -> None:
    click.echo(
        f"netsim carries to {session.backend.endpoint()} ({session.backend.name}, control {session.control.path})"
    )


def _print_summary(summary: dict[str, Any], out: Path | None) -> None:
    """What was carried and lost, how punctual it was, where the outputs are: on standard error, apart from a command's
    own output.
    """
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
