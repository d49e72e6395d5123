"""Options that several commands share, and the scenario and session options that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from netsim.core.timeline import EventKind, parse_timed_event
from netsim.profile import catalogue
from netsim.profile.scenario import Scenario
from netsim.run.session import Options
from netsim.trace.trace import Trace

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

PATH = click.Path(path_type=Path)


def scenario_options(default_profile: str | None) -> Decorator:
    """--profile, --seed, --event."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(
            [
                click.option(
                    "--profile", required=default_profile is None, default=default_profile, show_default=True,
                    metavar="NAME|FILE", help="The link's profile.",
                ),
                click.option("--seed", default=0, show_default=True, help="Seed of delays and losses."),
                click.option(
                    "--event", "events", multiple=True, metavar="SECONDS:EVENT",
                    help="An event, such as 12:blackhole:3 or 20:change:5g:2; may be repeated.",
                ),
            ]
        ):  # fmt: skip
            function = option(function)
        return function

    return add


def session_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """--out, --control, --ready-file, --seconds."""
    for option in reversed(
        [
            click.option("--out", type=PATH, help="Folder for events.jsonl, packets.csv.gz and summary.json."),
            click.option("--control", type=PATH, help="Path of the control socket [default: one for each process]."),
            click.option(
                "--ready-file", type=PATH, help="File that receives the link's address once it carries traffic."
            ),
            click.option("--seconds", type=click.FloatRange(min=0), help="End after this time."),
        ]
    ):
        function = option(function)
    return function


def make_scenario(
    profile: str, seed: int, events: tuple[str, ...], trace: Trace | None = None, loop: bool = False
) -> Scenario:
    """Loads and parses; raises NetsimError before anything is opened."""
    extra = tuple(parse_timed_event(text) for text in events)
    scenario = Scenario(catalogue.load(profile), seed, trace, loop, extra)
    for event in scenario.events():
        if event.kind is EventKind.CHANGE and event.profile is not None:
            catalogue.load(event.profile)
    return scenario


def make_options(out: Path | None, control: Path | None, ready_file: Path | None, seconds: float | None) -> Options:
    """How the run is observed and steered."""
    return Options(out, control, ready_file, seconds)


def tell_remarks(trace: Trace) -> None:
    """Says on standard error what was mended while a trace was read."""
    for remark in trace.remarks:
        click.echo(f"netsim: {remark}", err=True)
