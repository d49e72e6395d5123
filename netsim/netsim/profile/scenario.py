"""What one run plays: a profile, perhaps a trace, events, and the seed. Builds both directions' link models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from netsim.core.conditions import Conditions
from netsim.core.link import Direction, LinkModel, Observer
from netsim.core.schedule import ConditionSchedule
from netsim.core.timeline import Event, EventKind
from netsim.profile import profiles
from netsim.profile.profiles import Profile

if TYPE_CHECKING:
    from netsim.trace.trace import Trace


@dataclass(frozen=True, slots=True)
class Scenario:
    """A run's input. With `loop` the trace starts again when it ends; otherwise its last row stays."""

    profile: Profile
    seed: int = 0
    trace: Trace | None = None
    loop: bool = False
    extra_events: tuple[Event, ...] = ()

    def events(self) -> list[Event]:
        """All events of profile, trace and command line, by time."""
        own = [*self.profile.events(), *(self.trace.events if self.trace else ()), *self.extra_events]
        if self.trace and self.loop and self.trace.events:
            # A day of repetitions: longer than any run, short enough to hold.
            repeats = int(86_400 / self.trace.duration_s)
            for cycle in range(1, repeats):
                own += [replace(event, at_s=event.at_s + cycle * self.trace.duration_s) for event in self.trace.events]
        return sorted(own, key=lambda event: event.at_s)

    def models(self, observer: Observer | None = None) -> dict[Direction, LinkModel]:
        """A fresh link, with every event that is known beforehand already in its schedules."""
        links = {
            direction: LinkModel(self._schedule(direction), self.seed, direction, observer) for direction in Direction
        }
        for event in self.events():
            plan(event, links)
        return links

    def _schedule(self, direction: Direction) -> ConditionSchedule:
        base = self.profile.conditions(direction)
        if self.trace is None:
            return ConditionSchedule([(0.0, base)])
        return ConditionSchedule(
            self.trace.points(direction, base), period_s=self.trace.duration_s if self.loop else None
        )


def plan(event: Event, links: dict[Direction, LinkModel], lookup: Callable[[str], Profile] = profiles.load) -> None:
    """Enters an event into the schedules; the kinds that act on connections leave no mark there."""
    for direction in event.directions:
        schedule = links[direction].schedule
        if event.kind is EventKind.BLACKHOLE:
            schedule.blackhole(event.at_s, event.end_s)
        elif event.kind is EventKind.HOLD:
            schedule.hold(event.at_s, event.end_s)
        elif event.kind is EventKind.CHANGE and event.profile is not None:
            target: Conditions = lookup(event.profile).conditions(direction)
            schedule.replace(event.at_s, target, event.duration_s)
