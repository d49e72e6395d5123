"""Options that several commands share, and the scenario that they describe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from netsim.core.timeline import EventKind, parse_timed_event
from netsim.profile import profiles
from netsim.profile.scenario import Scenario
from netsim.trace.formats import TraceFormat
from netsim.trace.trace import Trace

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)
IGNORE = click.option(
    "--ignore", "ignored", multiple=True, metavar="COLUMN", help="Pass over this column of a CSV; may be repeated."
)


def link_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--name and --control, which choose a running link, before or after a command of `netsim ctl`; see `chosen`."""
    return _together(
        click.option(
            "--name", callback=_choose, expose_value=False, help="The link's name; needed if several are running."
        ),
        click.option(
            "--control", type=PATH, callback=_choose, expose_value=False, help="Its control socket, instead of a name."
        ),
    )(function)


def chosen(ctx: click.Context, option: str) -> Any:
    """What one of `link_options` was given; None: nothing."""
    return ctx.meta.get(f"netsim.{option}")


def _choose(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        ctx.meta[f"netsim.{parameter.name}"] = value


def _together(*options: Decorator) -> Decorator:
    """One decorator that adds the options, in this order."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def scenario_options(default_profile: str | None) -> Decorator:
    """--profile (required without a default), --seed, --event."""
    # A default of None would be one: the option would not be required.
    usual: dict[str, Any] = {"required": True} if default_profile is None else {"default": default_profile}
    return _together(
        click.option("--profile", show_default=True, metavar="NAME|FILE", help="The link's profile.", **usual),
        click.option("--seed", default=0, show_default=True, help="Seed of delays and losses."),
        click.option(
            "--event",
            "events",
            multiple=True,
            metavar="SECONDS:EVENT",
            help="An event, such as 12:blackhole:3 or 20:change:5g:2; may be repeated.",
        ),
    )


session_options = _together(
    click.option("--out", type=PATH, help="Folder for events.jsonl, packets.csv.gz and summary.json."),
    click.option("--name", help="The link's name, for `netsim ctl` [default: the number of its process]."),
    click.option("--control", type=PATH, help="Path of the control socket, instead of a name."),
    click.option("--ready-file", type=PATH, help="File that receives the link's address once it carries traffic."),
    click.option("--seconds", type=click.FloatRange(min=0), help="End after this time."),
)

backend_options = _together(
    click.option(
        "--backend",
        type=click.Choice(["tun", "proxy"]),
        default="tun",
        show_default=True,
        help="tun: real packets, needs root. proxy: stream level, approximate, needs nothing.",
    ),
    click.option("--upstream", metavar="[HOST]:PORT", help="The server that the link leads to, already running."),
    click.option("--serve", metavar="COMMAND", help="Start this server at the far end instead (tun only)."),
    click.option("--port", type=click.IntRange(1, 65535), help="Its port [default: the upstream's]."),
)


def format_option(flag: str, name: str, help_text: str, default: str | None = None) -> Decorator:
    """An option whose value is the format of a trace."""
    choice = click.Choice([str(form) for form in TraceFormat])
    return click.option(flag, name, type=choice, default=default, show_default=default is not None, help=help_text)


def make_scenario(
    profile: str, seed: int, events: tuple[str, ...], trace: Trace | None = None, loop: bool = False
) -> Scenario:
    """Loads and parses; raises NetsimError before anything is opened."""
    extra = tuple(parse_timed_event(text) for text in events)
    scenario = Scenario(profiles.load(profile), seed, trace, loop, extra)
    for event in scenario.events():
        if event.kind is EventKind.CHANGE and event.profile is not None:
            profiles.load(event.profile)
    return scenario


def print_remarks(trace: Trace) -> None:
    """Says on standard error what was corrected while the trace was read."""
    for remark in trace.remarks:
        click.echo(f"netsim: {remark}", err=True)
