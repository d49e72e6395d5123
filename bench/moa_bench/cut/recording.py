"""`moa-bench record`: the chat program on a terminal, its link cut in the middle of an answer, as an asciinema cast.

State: a pseudo-terminal and what came out of it, with times. The keys are typed by this program; the rest is the
program's own output.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click
from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores, split_cores
from moa_bench.network.emulated import find_links, linked
from moa_bench.report.report import checkout_root, write_text

WIDTH, HEIGHT = 100, 24
QUESTION = "Explain to a child why the sky is blue."
GREETING = b"lists commands"  # the end of what the chat program says before its prompt
ANSWER_TOKENS = 160
CUT_AFTER_S = 0.8  # from the question; the answer takes about two seconds
LONG_CUT_S = 30.0  # from here on there is time for another question meanwhile
SECOND_QUESTION = "Name three colours of the rainbow."
SECOND_AFTER_S = 20.0  # from the first question, which still waits: this one is typed ahead
QUIET_S = 3.0  # without output, from as long after the cut on: the answer is over
LONGEST_S = 120.0  # besides the cut


@dataclass(slots=True)
class Cast:
    """An asciinema cast, version 2."""

    title: str
    events: list[tuple[float, str, str]] = field(default_factory=list)

    def text(self) -> str:
        """One JSON document a line: the header, then [seconds, kind, data]."""
        header = {"version": 2, "width": WIDTH, "height": HEIGHT, "title": self.title}
        return "\n".join(json.dumps(line) for line in [header, *map(list, self.events)]) + "\n"


class Terminal:
    """A program on a pseudo-terminal.

    Args:
        arguments: of Python.
        cast: takes what the program writes.
        longest_s: how long it may run.
    """

    def __init__(self, arguments: Sequence[str], cast: Cast, longest_s: float) -> None:
        self._cast = cast
        self._longest_s = longest_s
        self._output = b""
        self._began = time.monotonic()
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            environment = child_environment() | {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
            os.execve(sys.executable, [sys.executable, *arguments], environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, wanted: bytes | None, quiet_s: float, least_s: float = 0.0) -> None:
        """Reads until `wanted` has come, or, without it, until nothing has come for `quiet_s`, and for `least_s`.

        Raises:
            UnavailableError: the program took too long, or ended before.
        """
        self._output = b""
        first = last = time.monotonic()
        while time.monotonic() - self._began < self._longest_s:
            ready, _, _ = select.select([self._fd], [], [], 0.1)
            if ready:
                try:
                    data = os.read(self._fd, 65536)
                except OSError:
                    break  # the program has ended
                last = time.monotonic()
                self._output += data
                self._cast.events.append((round(last - self._began, 3), "o", data.decode("utf-8", "replace")))
            if wanted is not None and wanted in self._output:
                return
            now = time.monotonic()
            if wanted is None and now - last > quiet_s and now - first > least_s:
                return
        said = self._output[-500:].decode("utf-8", "replace")
        raise UnavailableError(
            f"The chat program did not continue as expected; it said: {said}", hint="Start it by hand to see why."
        )

    def close(self) -> None:
        os.close(self._fd)
        os.waitpid(self._pid, 0)


def run_recording(*, model: str, pin: bool, link: str, cut_s: float, out: Path | None) -> None:
    """Record; `docs/recordings/chat-through-a-cut.cast` of the checkout (of a long cut: `chat-alone.cast`), or `out`.

    Args:
        cut_s: how long the link loses everything.

    Raises:
        MoaError: a server, link or client that fails.
    """
    chosen = find_links((link,))[0]
    server_cores, own_cores = split_cores(pin)
    from moa_shared.models import resolve

    from moa_bench.harness.servers import running_server

    resolve(model, progress=make_progress())
    cast = Cast(
        f"moa-client chat over {chosen.name}; the link is cut {CUT_AFTER_S:g} s after the question for {cut_s:g} s"
    )
    with (
        on_cores(own_cores),
        running_server(model, cores=server_cores) as server,
        linked(chosen, server.address, cores=own_cores) as running,
    ):
        arguments = ["-P", "-m", "moa_client.cli", "chat", "--server", running.address]
        terminal = Terminal([*arguments, "--max-tokens", str(ANSWER_TOKENS)], cast, LONGEST_S + cut_s)
        try:
            terminal.read_until(GREETING, QUIET_S)
            terminal.read_until(None, 1.0)
            terminal.type(QUESTION + "\r")
            later = [threading.Timer(CUT_AFTER_S, running.cut, (cut_s,))]
            if cut_s >= LONG_CUT_S:
                later.append(threading.Timer(SECOND_AFTER_S, terminal.type, (SECOND_QUESTION + "\r",)))
            for each in later:
                each.start()
            terminal.read_until(None, QUIET_S, CUT_AFTER_S + cut_s + QUIET_S)
            for each in later:
                each.join()
            terminal.type("/stats\r")
            terminal.read_until(None, 1.0)
            terminal.type("/bye\r")
        finally:
            terminal.close()
    root, name = checkout_root(), "chat-alone.cast" if cut_s >= LONG_CUT_S else "chat-through-a-cut.cast"
    target = out or (root / "docs" / "recordings" / name if root else Path(name))
    write_text(target, cast.text())
    click.echo(f"{target}: {len(cast.events)} events, {cast.events[-1][0]:.1f} s; play it with asciinema play")
