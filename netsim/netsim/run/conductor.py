"""What the conductor asks of any backend."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Protocol

from netsim.core.conditions import Bernoulli, Conditions
from netsim.core.link import Direction, LinkModel
from netsim.core.timeline import LASTING, Event, EventKind, parse_directions
from netsim.errors import ControlError
from netsim.output.recorder import RunRecorder
from netsim.profile import profiles
from netsim.profile.profiles import change_of, check_setting
from netsim.profile.scenario import Scenario, plan
from netsim.run.loop import Loop


class Backend(Protocol):
    """A link that carries traffic."""

    name: str
    links: dict[Direction, LinkModel]

    def endpoint(self) -> str:
        """HOST:PORT at which clients reach the far end of the link."""
        ...

    def facts(self) -> dict[str, Any]:
        """What the summary says about this backend in particular."""
        ...

    def connections(self) -> int:
        """Connections that are open."""
        ...

    def on_cut(self, direction: Direction, t: float) -> None:
        """A direction was cut without warning: what is in flight is lost."""
        ...

    def reset(self) -> int:
        """Ends every connection with a reset; returns how many there were."""
        ...

    def fin(self) -> int:
        """Ends every connection in the orderly way, as a middle box would; returns how many there were."""
        ...

    def refuse(self, refusing: bool) -> None:
        """Refuses new connections from now on, or accepts them again."""
        ...

    def close(self) -> None:
        """Ends what is open and frees what was made; may be called twice."""
        ...


FORGET_AFTER_S = 60.0  # an outage this long past can no longer concern a packet
IDLE_STEP_S = 0.002  # how often waiting rows are written while nothing else is due


class Conductor:
    """Plays one run's timeline; owns its timers."""

    def __init__(self, loop: Loop, backend: Backend, scenario: Scenario, recorder: RunRecorder) -> None:
        self._loop = loop
        self._backend = backend
        self._scenario = scenario
        self._recorder = recorder
        self._refuse_until = -math.inf
        self._watch = loop.call_at(math.inf, self.start)

    def start(self) -> None:
        """Begins the run: logs its start and sets the timers."""
        self._recorder.event(
            self._loop.time(), "start", backend=self._backend.name, seed=self._scenario.seed,
            profile=self._scenario.profile.name,
        )  # fmt: skip
        self._play(iter(self._scenario.events()))
        self._watch_conditions(-1.0)
        if self._recorder.records_packets:
            self._write_when_idle()

    def _play(self, events: Iterator[Event]) -> None:
        """Waits for the next event, carries it out, and so on: one timer however long the timeline."""
        event = next(events, None)
        if event is None:
            return

        def carry_out_and_continue() -> None:
            self._carry_out(event)
            self._play(events)

        self._loop.call_at(event.at_s, carry_out_and_continue)

    def _carry_out(self, event: Event) -> None:
        t = self._loop.time()
        for link in self._backend.links.values():
            link.schedule.forget(t - FORGET_AFTER_S)
        fields: dict[str, Any] = {}
        if event.kind in LASTING:
            fields = {"until_s": event.end_s if math.isfinite(event.end_s) else None}
        if event.kind in (EventKind.BLACKHOLE, EventKind.HOLD):
            fields["directions"] = [str(direction) for direction in event.directions]
        if event.kind is EventKind.CHANGE:
            fields = {"profile": event.profile, "ramp_s": event.duration_s}
        if event.kind is EventKind.RESET:
            fields = {"connections": self._backend.reset()}
        if event.kind is EventKind.FIN:
            fields = {"connections": self._backend.fin()}
        if event.kind is EventKind.REFUSE:
            self._refuse_until = max(self._refuse_until, event.end_s)
            self._backend.refuse(True)
            self._loop.call_at(event.end_s, self._end_refusal)
        self._recorder.event(t, str(event.kind), scheduled_s=round(event.at_s, 6), **fields)

    def _end_refusal(self) -> None:
        if -math.inf < self._refuse_until <= self._loop.time():
            self._refuse_until = -math.inf
            self._backend.refuse(False)
            self._recorder.event(self._loop.time(), "accepting")

    def _watch_conditions(self, t: float) -> None:
        """Logs the conditions whenever they change, for the report's configured rate."""
        links = self._backend.links
        now = max(t, 0.0)
        described = {str(direction): describe(link.schedule.at(now)) for direction, link in links.items()}
        self._recorder.event(now, "conditions", **described)
        following = min(link.schedule.next_change(now) for link in links.values())
        self._watch.cancel()
        self._watch = self._loop.call_at(following, lambda: self._watch_conditions(following))

    def _write_when_idle(self) -> None:
        more = self._recorder.flush()
        step = IDLE_STEP_S if more else 10.0 * IDLE_STEP_S
        self._loop.call_at(self._loop.time() + step, self._write_when_idle)

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request of `netsim ctl`; raises NetsimError if it makes no sense."""
        t = self._loop.time()
        match request.get("do"):
            case "status":
                return self._status(t)
            case "cut" | "hold" | "refuse" as action:
                seconds = request.get("seconds")
                kind = EventKind.BLACKHOLE if action == "cut" else EventKind(action)
                self._now(Event(t, kind, _duration(seconds), parse_directions(request.get("direction", "both"))))
            case "heal":
                for link in self._backend.links.values():
                    link.schedule.heal(t)
                self._refuse_until = -math.inf
                self._backend.refuse(False)
                self._recorder.event(t, "heal")
            case "reset" | "fin" as action:
                self._now(Event(t, EventKind(action)))
            case "set":
                self._set(request, t)
            case other:
                raise ControlError(f"There is no command {other!r}.")
        return {"t_s": round(t, 3)}

    def _now(self, event: Event) -> None:
        plan(event, self._backend.links)
        if event.kind is EventKind.BLACKHOLE:
            for direction in event.directions:
                self._backend.on_cut(direction, event.at_s)
        self._carry_out(event)

    def _set(self, request: dict[str, Any], t: float) -> None:
        directions = parse_directions(request.get("direction", "both"))
        settings = {str(name): float(value) for name, value in request.get("settings", {}).items()}
        for name, value in settings.items():
            check_setting(name, value)
        if request.get("profile") is not None:
            profile = profiles.load(str(request["profile"]))
            for direction in directions:
                schedule = self._backend.links[direction].schedule
                schedule.replace(t, profile.conditions(direction), float(request.get("ramp_s", 0.0)))
        for direction in directions:
            if settings:
                self._backend.links[direction].schedule.override(t, change_of(settings))
        named = [str(direction) for direction in directions]
        self._recorder.event(t, "set", profile=request.get("profile"), directions=named, **settings)
        self._watch_conditions(t)

    def _status(self, t: float) -> dict[str, Any]:
        links = self._backend.links
        return {
            "t_s": round(t, 3),
            "backend": self._backend.name,
            "profile": self._scenario.profile.name,
            "address": self._backend.endpoint(),
            "connections": self._backend.connections(),
            **self._backend.facts(),
            "directions": {
                str(direction): {**describe(link.schedule.at(t)), "cut": link.schedule.cut_at(t)}
                for direction, link in links.items()
            },
            "packets": self._recorder.counts,
            "lateness": self._recorder.lateness.summary()._asdict(),
        }


def describe(conditions: Conditions) -> dict[str, Any]:
    """Conditions as plain values, in the units that users see."""
    moments = conditions.delay.effective()
    loss = conditions.loss
    return {
        "rate_mbps": conditions.rate_bps / 1e6 if math.isfinite(conditions.rate_bps) else None,
        "delay_ms": round(moments.mean_ms, 3),
        "deviation_ms": round(moments.deviation_ms, 3),
        "delay": {**asdict(conditions.delay), "truncation": str(conditions.delay.truncation)},
        "loss": round(loss.mean, 6),
        "loss_model": "bernoulli" if isinstance(loss, Bernoulli) else "gilbert_elliott",
    }


def _duration(seconds: Any) -> float:
    if seconds is None:
        return math.inf
    value = float(seconds)
    if not value >= 0.0:
        raise ControlError("A duration must be a number of at least 0.")
    return value
