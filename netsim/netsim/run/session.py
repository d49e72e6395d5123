"""Commands that use a link, and servers at its far end: started, awaited, ended."""

from __future__ import annotations

import gc
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from netsim.errors import AddressError, CommandError
from netsim.output.recorder import RunRecorder
from netsim.profile.scenario import Scenario
from netsim.run import control
from netsim.run.conductor import Backend, Conductor
from netsim.run.loop import Loop

LINK_VARIABLE = "NETSIM_LINK"
PLACEHOLDER = "{link}"
SERVER_DEADLINE_S = 120.0  # a server may have a model to load
POLL_S = 0.05


def start_command(command: Sequence[str], link: str, prefix: Sequence[str]) -> subprocess.Popen[bytes]:
    """Starts the command with the link's address in place of `{link}` and in NETSIM_LINK; raises CommandError."""
    words = [word.replace(PLACEHOLDER, link) for word in command]
    # The launcher into a namespace would report a missing program in its own words: look before.
    if prefix and shutil.which(words[0]) is None:
        raise CommandError(f"The command {words[0]!r} does not start: there is no such program.")
    try:
        return subprocess.Popen([*prefix, *words], env={**os.environ, LINK_VARIABLE: link})
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
        time.sleep(POLL_S)
    raise CommandError(f"The server does not listen on port {port} after {SERVER_DEADLINE_S:.0f} s.")


MakeBackend = Callable[[Loop, RunRecorder], Backend]


@dataclass(frozen=True, slots=True)
class Options:
    """How a run is observed, controlled and ended."""

    out: Path | None = None
    control: Path | None = None
    ready_file: Path | None = None
    seconds: float | None = None
    name: str | None = None


class LinkRun:
    """One run; owns everything that lives as long as it."""

    def __init__(self, scenario: Scenario, make_backend: MakeBackend, options: Options) -> None:
        self.scenario = scenario
        self.loop = Loop()
        self.recorder = RunRecorder(options.out)
        self._options = options
        self._scheduling = punctual()
        self.backend = make_backend(self.loop, self.recorder)
        self._conductor = Conductor(self.loop, self.backend, scenario, self.recorder)
        try:
            self.control = control.ControlServer(
                self.loop, options.control or control.new_path(options.name), self._conductor.command
            )
        except BaseException:
            self.backend.close()
            raise

    def run(self, command: Sequence[str] = (), prefix: Sequence[str] = ()) -> tuple[int, dict[str, Any]]:
        """Plays the scenario until a signal, the time limit, or the end of `command`; returns its status and the
        summary.

        `prefix` is put before the command (to enter a namespace). Raises CommandError if the command does not start.
        """
        child: subprocess.Popen[bytes] | None = None
        handlers = self._catch_signals(lambda: child)
        started = self.loop.time()
        status = 0
        try:
            if command:
                child = start_command(command, self.backend.endpoint(), prefix)
                pidfd = os.pidfd_open(child.pid)
                self.loop.read(pidfd, self.loop.stop)
            self._conductor.start()
            if self._options.seconds is not None:
                self.loop.call_at(started + self._options.seconds, self.loop.stop)
            self._announce()
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

    def _announce(self) -> None:
        if self._options.ready_file is not None:
            # Written aside and renamed: a reader that waits for the file never reads half an address.
            aside = self._options.ready_file.with_name(self._options.ready_file.name + ".part")
            try:
                aside.write_text(self.backend.endpoint() + "\n")
                aside.rename(self._options.ready_file)
            except OSError as error:
                raise AddressError(f"Ready file {aside} cannot be written: {error.strerror}.") from error

    def _catch_signals(self, child: Callable[[], subprocess.Popen[bytes] | None]) -> Mapping[signal.Signals, Any]:
        def handle(number: int, frame: FrameType | None) -> None:
            running = child()
            if running is None:
                self.loop.stop()
            elif number == signal.SIGTERM:
                running.terminate()  # the run ends when it does
            # SIGINT from a terminal has reached the command itself, which decides what to do with it.

        return {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}


def punctual() -> str:
    """Asks the kernel for real-time scheduling, which only root gets; says which one the run has.

    Children do not inherit it.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except (PermissionError, OSError):
        return "normal"
    return "real-time"
