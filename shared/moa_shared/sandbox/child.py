"""A child process for what an untrusted file makes of text: rendering its chat template, encoding with its tokenizer.

State: one process (child_program.py), started when it is first needed, and again after it was ended. It has limits of
memory and of processor time a request; one that exceeds them is gone, and the request is refused.
Invariant: nothing of the file runs in this process, and no request waits longer than its limit.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moa_shared.errors import ConfigError

if TYPE_CHECKING:
    from moa_shared.sampling.settings import Constraint
    from moa_shared.sandbox.chat_template import Messages

PROGRAM = "from moa_shared.sandbox.child_program import main; main()"
# Of processor time; rendering a conversation takes a millisecond, encoding a megabyte up to a second on slow devices.
LEAST_SECONDS = 2
BYTES_A_SECOND = 200_000
PATIENCE = 30  # seconds of waiting for each second of processor time, which is what bounds it, on a busy machine
MOST_REPLY = 1 << 26


class ChildError(Exception):
    """What was asked for exceeds a limit of the child, or has failed there; the text says which."""


class TextChild:
    """A child process, or none yet; what fails there is a ChildError. `seconds`: of processor time a request."""

    def __init__(self, seconds: int = LEAST_SECONDS) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()  # one request at a time
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Connection | None = None

    def start(self) -> None:
        """Starts the process now, so that the first request need not wait for it."""
        with self._lock, suppress(OSError):  # a request says why it cannot be started
            self._started()

    def render(
        self,
        template: str,
        special: Mapping[str, str],
        messages: Messages,
        *,
        add_generation_prompt: bool,
        arguments: Mapping[str, Any],
    ) -> str:
        given = {"template": template, "special": dict(special), "messages": [dict(each) for each in messages]}
        return str(self._ask("render", **given, add_generation_prompt=add_generation_prompt, arguments=dict(arguments)))

    def encode(self, folder: Path, text: str, *, is_guarded: bool = False) -> list[int]:
        """The token ids of a text, by the tokenizer in `folder`; as `JsonTokenizer.encode`."""
        return [int(each) for each in self._ask("encode", folder=str(folder), text=text, is_guarded=is_guarded)]

    def try_files(self, folder: Path) -> None:
        """Loads the tokenizer in `folder`, and uses it and its chat template a little."""
        self._ask("try", folder=str(folder))

    def try_constraint(self, constraint: Constraint) -> None:
        """Compiles a constraint, and finds what an answer may begin with; ConfigError: it cannot be enforced."""
        problem = self._ask("constrain", kind=constraint.kind.value, text=constraint.text)
        if problem is not None:
            raise ConfigError(problem["message"], hint=problem["hint"])

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ask(self, do: str, **request: Any) -> Any:
        body = json.dumps({"do": do, **request}).encode()
        seconds = self._seconds + len(body) // BYTES_A_SECOND
        with self._lock:
            try:
                reply = self._exchange(body, seconds)
            except (EOFError, OSError) as error:
                raise ChildError(self._reason(error, seconds)) from None
            except BaseException:  # such as Ctrl-C: its answer would be taken for that of the next request
                self._end()
                raise
        if "error" in reply:
            raise ChildError(str(reply["error"]))
        return reply["result"]

    def _exchange(self, body: bytes, seconds: int) -> dict[str, Any]:
        process, channel = self._started()
        deadline = threading.Timer(seconds * PATIENCE, process.kill)
        deadline.start()
        try:
            channel.send_bytes(json.dumps(seconds).encode())
            channel.send_bytes(body)
            reply: dict[str, Any] = json.loads(channel.recv_bytes(MOST_REPLY))
            return reply
        finally:
            deadline.cancel()

    def _started(self) -> tuple[subprocess.Popen[bytes], Connection]:
        if self._process is not None and self._process.poll() is not None:
            self._end()  # it was ended while it was idle
        if self._process is None or self._channel is None:
            ours, theirs = socket.socketpair()
            self._channel = Connection(ours.detach())
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM], stdin=theirs.fileno(), stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL, process_group=0,  # Ctrl-C is for this process
                    env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"},
                )  # fmt: skip
        return self._process, self._channel

    def _reason(self, error: Exception, seconds: int) -> str:
        """Why there is no reply; the process is ended."""
        code = self._end()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it takes more than {seconds} s"
        if code is None:
            return f"its process cannot be started: {error}"
        return f"its process has ended ({signal.Signals(-code).name if code < 0 else code})"

    def _end(self) -> int | None:
        """The exit code; None: there was no process."""
        process, channel = self._process, self._channel
        self._process = self._channel = None
        if channel is not None:
            channel.close()
        if process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.2)  # one that has crashed says how
        process.kill()
        return process.wait()


@cache
def constraint_child() -> TextChild:
    """The child of this process that tries constraints: its own, since one may take all of its time."""
    child = TextChild(1)  # compiling for a model's vocabulary takes up to four times as long
    atexit.register(child.close)
    return child


@cache
def text_child() -> TextChild:
    child = TextChild()
    atexit.register(child.close)
    return child
