"""`moa-bench record`: a program on a terminal, its link cut in the middle of an answer, as an asciinema cast.

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
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import click
from moa_shared.errors import UnavailableError
from moa_shared.programs.progress import make_progress

from moa_bench.harness.child import child_environment
from moa_bench.harness.cores import on_cores, split_cores
from moa_bench.network.emulated import RunningLink, find_links, linked
from moa_bench.report.report import checkout_root, write_text

Surface = Literal["chat", "daemon", "endpoint", "page"]
TITLES: dict[Surface, str] = {
    "chat": "moa-client chat",
    "daemon": "moa-client chat, attached to the daemon,",
    "endpoint": "a program for OpenAI's API, over the daemon's endpoint,",
    "page": "the daemon's page",
}
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
        environment: of the program.
        cast: takes what the program writes.
        longest_s: how long it may run.
    """

    def __init__(self, arguments: Sequence[str], environment: dict[str, str], cast: Cast, longest_s: float) -> None:
        self._cast = cast
        self._longest_s = longest_s
        self._output = b""
        self._began = time.monotonic()
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [sys.executable, *arguments], environment)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def read_until(self, wanted: bytes | None, quiet_s: float, least_s: float = 0.0) -> None:
        """Reads until `wanted` has come, or, without it, to the program's end, or until nothing has come for `quiet_s`,
        and for `least_s`.

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
                except OSError:  # the program has ended
                    if wanted is None:
                        return
                    break
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


def run_recording(*, model: str, pin: bool, link: str, cut_s: float, surface: Surface, out: Path | None) -> None:
    """Records into docs/recordings of the checkout, or into `out`.

    Args:
        cut_s: how long the link loses everything.
        surface: a chat that runs alone, one that attaches to the daemon, or a program that uses the endpoint.

    Raises:
        MoaError: a server, link or client that fails.
    """
    chosen = find_links((link,))[0]
    server_cores, own_cores = split_cores(pin)
    from moa_shared.models import resolve

    from moa_bench.harness.servers import running_server

    resolve(model, progress=make_progress())
    cast = Cast(
        f"{TITLES[surface]} over {chosen.name}; the link is cut {CUT_AFTER_S:g} s after the question for {cut_s:g} s"
    )
    with (
        on_cores(own_cores),
        running_server(model, cores=server_cores) as server,
        linked(chosen, server.address, cores=own_cores) as running,
        tempfile.TemporaryDirectory(prefix="moa") as folder,
    ):
        environment = child_environment() | {
            "TERM": "xterm-256color",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "MOA_CLIENT_SERVER": running.address,
            "MOA_CLIENT_DAEMON": str(surface != "chat").lower(),
            "MOA_CLIENT_DAEMON_DIR": folder,
            "MOA_CLIENT_HISTORY": "false",
            "MOA_CLIENT_ENDPOINT_PORT": "0",
        }
        try:
            if surface == "page":
                from moa_bench.cut.page_recording import record_page

                root = checkout_root()
                picture = out or (root / "docs" / "recordings" if root else Path()) / "page-through-a-cut.webp"
                record_page(_daemon_url(environment), QUESTION, lambda: running.cut(cut_s), CUT_AFTER_S, cut_s, picture)
                return
            if surface == "endpoint":
                _record_program(environment, cast, running, cut_s)
            else:
                _record_chat(environment, cast, running, cut_s)
        finally:
            _client(environment, "daemon", "stop")
    root = checkout_root()
    name = "chat-alone" if surface == "chat" and cut_s >= LONG_CUT_S else f"{surface}-through-a-cut"
    target = out or (root / "docs" / "recordings" / f"{name}.cast" if root else Path(f"{name}.cast"))
    write_text(target, cast.text())
    click.echo(f"{target}: {len(cast.events)} events, {cast.events[-1][0]:.1f} s; play it with asciinema play")


def _record_chat(environment: dict[str, str], cast: Cast, running: RunningLink, cut_s: float) -> None:
    arguments = ["-P", "-m", "moa_client.cli", "chat", "--temperature", "0", "--max-tokens", str(ANSWER_TOKENS)]
    terminal = Terminal(arguments, environment, cast, LONGEST_S + cut_s)
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
        terminal.read_until(None, 1.0)
    finally:
        terminal.close()


def _record_program(environment: dict[str, str], cast: Cast, running: RunningLink, cut_s: float) -> None:
    terminal = Terminal(
        ["-P", "-m", "moa_bench.cut.ask_endpoint", _daemon_url(environment), QUESTION, str(ANSWER_TOKENS)],
        environment,
        cast,
        LONGEST_S + cut_s,
    )
    try:
        terminal.read_until(b" ", QUIET_S)  # it takes a moment to import the library
        cut = threading.Timer(CUT_AFTER_S, running.cut, (cut_s,))
        cut.start()
        terminal.read_until(None, QUIET_S, CUT_AFTER_S + cut_s + QUIET_S)
        cut.join()
    finally:
        terminal.close()


def _daemon_url(environment: dict[str, str]) -> str:
    """Where a daemon that is started serves the page and the endpoint."""
    _client(environment, "daemon", "start")
    return str(json.loads(_client(environment, "daemon", "status", "--json"))["url"])


def _client(environment: dict[str, str], *arguments: str) -> str:
    """What `moa-client` prints."""
    command = [sys.executable, "-P", "-m", "moa_client.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
