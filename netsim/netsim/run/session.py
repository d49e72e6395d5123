"""One run: plays its timeline over a backend, answers `netsim ctl`, starts and ends the commands that use the link."""

import gc
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from netsim.core.conditions import Bernoulli, Conditions
from netsim.core.link import Direction, LinkModel
from netsim.errors import CommandError, NetsimError, UsageError
from netsim.profiles import Scenario, change_of, check_setting, load, plan
from netsim.recorder import RunRecorder
from netsim.run import control
from netsim.run.loop import Loop
from netsim.traces import Event, EventKind, parse_directions


class Backend(Protocol):
    """A link that carries traffic; owns what it has opened and both directions' models."""

    name: str
    loop: Loop
    recorder: RunRecorder
    links: dict[Direction, LinkModel]

    def __init__(self, loop: Loop, scenario: Scenario, recorder: RunRecorder) -> None:
        self.loop, self.recorder, self.links = loop, recorder, scenario.models(recorder.packet)

    def endpoint(self) -> str:
        """HOST:PORT at which clients reach the far end of the link."""

    def facts(self) -> dict[str, Any]:
        """What the summary says about this backend in particular."""

    def connections(self) -> int:
        """Connections that are open."""

    def on_cut(self, direction: Direction, t: float) -> None:
        """A direction was cut without warning: what is in flight is lost."""

    def reset(self) -> int:
        """Ends every connection with a reset; returns how many there were."""

    def fin(self) -> int:
        """Ends every connection in the orderly way, as a middle box would; returns how many there were."""

    def refuse(self, refusing: bool) -> None:
        """Refuses new connections from now on, or accepts them again."""

    def close(self) -> None:
        """Ends what is open and frees what was made; may be called twice."""


IDLE_STEP_S = 0.002  # how often waiting rows are written while nothing else is due
SERVER_DEADLINE_S = 120.0  # a server may have a model to load


def start_command(command: Sequence[str], link: str, prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command with the link's address in place of `{link}` and in NETSIM_LINK; raises CommandError."""
    words = [word.replace("{link}", link) for word in command]
    # The launcher into a namespace would report a missing program in its own words: look before.
    if prefix and shutil.which(words[0]) is None:
        raise CommandError(f"The command {words[0]!r} does not start: there is no such program.")
    try:
        return subprocess.Popen([*prefix, *words], env={**os.environ, "NETSIM_LINK": link})
    except OSError as error:
        raise CommandError(f"The command {shlex.join(words)!r} does not start: {error.strerror}.") from error


def end_command(child: subprocess.Popen[bytes]) -> int:
    """The command's status as a shell reports it: 128 and the number for a signal."""
    if child.poll() is None:
        child.terminate()
        try:
            child.wait(5.0)
        except subprocess.TimeoutExpired:
            child.kill()
    status = child.wait()
    return status if status >= 0 else 128 - status


def await_listening(server: subprocess.Popen[bytes], port: int) -> None:
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
        time.sleep(0.05)
    raise CommandError(f"The server does not listen on port {port} after {SERVER_DEADLINE_S:.0f} s.")


@dataclass(frozen=True, slots=True)
class Options:
    out: Path | None = None
    control: Path | None = None
    ready_file: Path | None = None
    seconds: float | None = None
    name: str | None = None


class LinkRun:
    """One run; owns everything that lives as long as it."""

    def __init__(
        self, scenario: Scenario, make_backend: Callable[[Loop, RunRecorder], Backend], options: Options
    ) -> None:
        self.scenario = scenario
        self.loop = Loop()
        self.recorder = RunRecorder(options.out)
        self._options = options
        self._scheduling = punctual()
        self.backend = make_backend(self.loop, self.recorder)
        self._refuse_until = -math.inf
        self._watch = self.loop.call_at(math.inf, self.loop.stop)
        try:
            path = options.control or control.new_path(options.name)
            self.control = control.ControlServer(self.loop, path, self.command)
        except BaseException:
            self.backend.close()
            raise

    def run(self, command: Sequence[str] = (), prefix: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
        """Plays the scenario until a signal, the time limit, or the end of `command`, which `prefix` is put before.

        Returns the command's status and the summary; raises CommandError if it does not start.
        """
        child: subprocess.Popen[bytes] | None = None

        def handle(number: int, frame: FrameType | None) -> None:
            if child is None:
                self.loop.stop()
            elif number == signal.SIGTERM:
                child.terminate()  # the run ends when it does
            # SIGINT from a terminal has reached the command itself, which decides what to do with it.

        handlers = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        started = self.loop.time()
        status = 0
        try:
            if command:
                child = start_command(command, self.backend.endpoint(), prefix)
                pidfd = os.pidfd_open(child.pid)
                self.loop.read(pidfd, self.loop.stop)
            started_as = {"seed": self.scenario.seed, "profile": self.scenario.profile.name}
            self.recorder.event(self.loop.time(), "start", backend=self.backend.name, **started_as)
            self._play(iter(self.scenario.events()))
            self._watch_conditions(-1.0)
            if self.recorder.records_packets:
                self._write_when_idle()
            if self._options.seconds is not None:
                self.loop.call_at(started + self._options.seconds, self.loop.stop)
            if self._options.ready_file is not None:
                self._announce(self._options.ready_file)
            gc.freeze()  # what exists now stays: the collector need not walk it during the run
            self.loop.run()
            if child is not None:
                self.loop.read(pidfd, None)
                os.close(pidfd)
                status = end_command(child)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            if child is not None and child.poll() is None:
                child.kill()
                child.wait()
            duration_s = self.loop.time() - started
            facts = self.backend.facts()
            self.control.close()
            self.backend.close()
            self.recorder.event(self.loop.time(), "end")
            summary = self.recorder.finish(
                self.scenario, self.backend.name, duration_s, scheduling=self._scheduling, **facts
            )
            self.loop.close()
        return status, summary

    def _announce(self, ready: Path) -> None:
        # Written aside and renamed: a reader that waits for the file never reads half an address.
        aside = ready.with_name(ready.name + ".part")
        try:
            aside.write_text(self.backend.endpoint() + "\n")
            aside.rename(ready)
        except OSError as error:
            raise UsageError(f"Ready file {aside} cannot be written: {error.strerror}.") from error

    def _play(self, events: Iterator[Event]) -> None:
        """Waits for the next event, carries it out, and so on: one timer however long the timeline."""
        event = next(events, None)
        if event is None:
            return

        def carry_out_and_continue() -> None:
            self._carry_out(event)
            self._play(events)

        self.loop.call_at(event.at_s, carry_out_and_continue)

    def _carry_out(self, event: Event) -> None:
        t = self.loop.time()
        for link in self.backend.links.values():
            link.schedule.forget(t - 60.0)  # an outage so long past can no longer concern a packet
        until = {"until_s": event.end_s if math.isfinite(event.end_s) else None}
        match event.kind:
            case EventKind.BLACKHOLE | EventKind.HOLD:
                fields: dict[str, Any] = {**until, "directions": list(map(str, event.directions))}
            case EventKind.CHANGE:
                fields = {"profile": event.profile, "ramp_s": event.duration_s}
            case EventKind.RESET:
                fields = {"connections": self.backend.reset()}
            case EventKind.FIN:
                fields = {"connections": self.backend.fin()}
            case EventKind.REFUSE:
                fields = until
                self._refuse_until = max(self._refuse_until, event.end_s)
                self.backend.refuse(True)
                self.loop.call_at(event.end_s, self._end_refusal)
        self.recorder.event(t, str(event.kind), scheduled_s=round(event.at_s, 6), **fields)

    def _end_refusal(self) -> None:
        if -math.inf < self._refuse_until <= self.loop.time():
            self._refuse_until = -math.inf
            self.backend.refuse(False)
            self.recorder.event(self.loop.time(), "accepting")

    def _watch_conditions(self, t: float) -> None:
        """Logs the conditions whenever they change, for the report's configured rate."""
        links = self.backend.links
        now = max(t, 0.0)
        described = {str(direction): describe(link.schedule.at(now)) for direction, link in links.items()}
        self.recorder.event(now, "conditions", **described)
        following = min(link.schedule.next_change(now) for link in links.values())
        self._watch.cancel()
        self._watch = self.loop.call_at(following, lambda: self._watch_conditions(following))

    def _write_when_idle(self) -> None:
        more = self.recorder.flush()
        step = IDLE_STEP_S if more else 10.0 * IDLE_STEP_S
        self.loop.call_at(self.loop.time() + step, self._write_when_idle)

    def command(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request of `netsim ctl`; raises NetsimError if it makes no sense."""
        t = self.loop.time()
        match request.get("do"):
            case "status":
                return self._status(t)
            case "cut" | "hold" | "refuse" as action:
                seconds = math.inf if request.get("seconds") is None else float(request["seconds"])
                if not seconds >= 0.0:
                    raise NetsimError("A duration must be a number of at least 0.")
                kind = EventKind.BLACKHOLE if action == "cut" else EventKind(action)
                self._now(Event(t, kind, seconds, parse_directions(request.get("direction", "both"))))
            case "heal":
                for link in self.backend.links.values():
                    link.schedule.heal(t)
                self._refuse_until = -math.inf
                self.backend.refuse(False)
                self.recorder.event(t, "heal")
            case "reset" | "fin" as action:
                self._now(Event(t, EventKind(action)))
            case "set":
                self._set(request, t)
            case other:
                raise NetsimError(f"There is no command {other!r}.")
        return {"t_s": round(t, 3)}

    def _now(self, event: Event) -> None:
        plan(event, self.backend.links)
        if event.kind is EventKind.BLACKHOLE:
            for direction in event.directions:
                self.backend.on_cut(direction, event.at_s)
        self._carry_out(event)

    def _set(self, request: dict[str, Any], t: float) -> None:
        directions = parse_directions(request.get("direction", "both"))
        settings = {str(name): float(value) for name, value in request.get("settings", {}).items()}
        for name, value in settings.items():
            check_setting(name, value)
        if request.get("profile") is not None:
            profile = load(str(request["profile"]))
            for direction in directions:
                schedule = self.backend.links[direction].schedule
                schedule.replace(t, profile.conditions(direction), float(request.get("ramp_s", 0.0)))
        for direction in directions:
            if settings:
                self.backend.links[direction].schedule.override(t, change_of(settings))
        named = [str(direction) for direction in directions]
        self.recorder.event(t, "set", profile=request.get("profile"), directions=named, **settings)
        self._watch_conditions(t)

    def _status(self, t: float) -> dict[str, Any]:
        links = self.backend.links
        return {
            "t_s": round(t, 3),
            "backend": self.backend.name,
            "profile": self.scenario.profile.name,
            "address": self.backend.endpoint(),
            "connections": self.backend.connections(),
            **self.backend.facts(),
            "directions": {
                str(direction): {**describe(link.schedule.at(t)), "cut": link.schedule.cut_at(t)}
                for direction, link in links.items()
            },
            "packets": self.recorder.counts,
            "lateness": self.recorder.lateness.summary(),
        }


def describe(conditions: Conditions) -> dict[str, Any]:
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


def punctual() -> str:
    """Asks for real-time scheduling, which only root gets and children do not inherit; says which one the run has."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (PermissionError, OSError):
        return "normal"
    return "real-time"
