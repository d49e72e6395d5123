"""A child process for what an untrusted file makes of text: rendering its chat template, encoding with its tokenizer.

State: one process, started when it is first needed, and again after it was ended. It limits its own memory, and the
processor time of a request; one that exceeds them is gone, and the request is refused. One that computes, or waits to,
is waited for: so a busy machine is told from a child that hangs. Invariant: nothing of the file runs in this process.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from moa_shared.errors import ConfigError
from moa_shared.programs.machine import Life, life_of

PROGRAM = "from moa_shared.sandbox.child import main; main()"
# Of processor time; rendering a conversation takes a millisecond, encoding a megabyte up to a second on slow devices.
LEAST_SECONDS = 2
BYTES_A_SECOND = 200_000
LOOK_SECONDS = 0.1
MOST_IDLE = 600  # looks, one after the other, at which the child neither computes nor waits to
MOST_REPLY = 1 << 26
MEMORY_BYTES = 1 << 30  # of address space; the largest vocabularies served take a third of it while they are read


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

    def ask(self, function: str, **given: Any) -> Any:
        """What a function (module:name) gives in the child; both are JSON. ConfigError: it has refused it."""
        body = json.dumps([function, given]).encode()
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
        if "refused" in reply:
            raise ConfigError(reply["refused"], hint=reply["hint"])
        return reply["result"]

    def close(self) -> None:
        with self._lock:
            self._end()

    def _exchange(self, body: bytes, seconds: int) -> dict[str, Any]:
        process, channel = self._started()
        done = threading.Event()
        watch = threading.Thread(target=kill_if_stuck, args=(process, seconds, done.wait), daemon=True)
        watch.start()
        try:
            channel.send_bytes(json.dumps(seconds).encode())
            channel.send_bytes(body)
            return dict(json.loads(channel.recv_bytes(MOST_REPLY)))
        finally:
            done.set()

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
        code = self._end()
        if code in (-signal.SIGXCPU, -signal.SIGKILL):
            return f"it takes more than {seconds} s, or hangs"
        if code is None:
            return f"its process cannot be started: {error}"
        return f"its process has ended ({signal.Signals(-code).name if code < 0 else code})"

    def _end(self) -> int | None:
        process, channel, self._process, self._channel = self._process, self._channel, None, None
        if channel is not None:
            channel.close()
        if process is None:
            return None
        with suppress(subprocess.TimeoutExpired):
            return process.wait(0.2)  # one that has crashed says how
        process.kill()
        return process.wait()


def kill_if_stuck(
    process: subprocess.Popen[bytes],
    seconds: float,
    is_over: Callable[[float], bool],
    look: Callable[[int], Life | None] = life_of,
) -> None:
    """Kills a process that is idle for too long, or takes more processor time, until what it does is over."""
    began, idle = look(process.pid), 0
    while not is_over(LOOK_SECONDS):
        life = look(process.pid)
        idle = idle + 1 if life is None or life.is_idle else 0
        took = life.seconds - began.seconds if life is not None and began is not None else 0.0
        if idle >= MOST_IDLE or took > seconds + 1:  # it has a limit itself, which a service manager may forbid
            process.kill()
            return


@cache
def text_child(seconds: int = LEAST_SECONDS) -> TextChild:
    """The child of this process for requests that take so long."""
    child = TextChild(seconds)
    atexit.register(child.close)
    return child


def main() -> None:
    """What the child runs: reads requests from standard input, a socket, and answers each; limits itself first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    channel = Connection(sys.stdin.fileno())
    with suppress(EOFError):
        while True:
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + int(json.loads(channel.recv_bytes())))
            channel.send_bytes(_reply(channel.recv_bytes()))


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _reply(body: bytes) -> bytes:
    try:
        function, given = json.loads(body)
        module, _, name = function.partition(":")
        reply = json.dumps({"result": getattr(import_module(module), name)(**given)}).encode()
        if len(reply) <= MOST_REPLY:
            return reply
        error = "it gives too much text"
    except MemoryError:
        error = "it takes too much memory"
    except ConfigError as refusal:
        return json.dumps({"refused": refusal.message, "hint": refusal.hint}).encode()
    except Exception as failure:  # noqa: BLE001 (whatever a hostile file or template leads to)
        error = str(failure) or type(failure).__name__
    return json.dumps({"error": error[:500]}).encode()  # it may be the template's own
