"""Workers of pytest-xdist as forks of one process that has collected the tests: all is imported once, and kept once."""

from __future__ import annotations

import gc
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

if TYPE_CHECKING:
    from execnet import XSpec

# What execnet starts in a worker's place. It has the worker forked, with the streams that execnet gives it, and ends
# when the worker ends.
CALLER = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(connection, [b"."], [0, 1, 2])
connection.recv(1)
"""


def fork_workers(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Has the workers that execnet is about to start forked, by a process that ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="moa-workers-")
    path, caller = Path(folder.name, "socket"), Path(folder.name, "caller.py")
    caller.write_text(CALLER)
    with socket.create_server(str(path), family=socket.AF_UNIX, backlog=len(specs)) as listener:
        code = f"import sys; sys.path = {sys.path}; from {__name__} import serve; serve({listener.fileno()})"
        arguments = [*config.invocation_params.args, "-n0", "--collect-only", "-qq"]
        server = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
    for spec in specs:
        if spec.popen:
            spec.python = shlex.join([sys.executable, "-IS", str(caller), str(path)])

    def end() -> None:
        server.communicate()
        folder.cleanup()

    config.add_cleanup(end)


def serve(listener_number: int) -> None:
    """Collects what its arguments name, then forks a worker for each that asks, until the standard input ends.

    Where that fails, it begins anew without: pytest takes a module as imported whose import failed, and the workers are
    to say what is wrong with it.
    """
    if sys.argv[1:] and pytest.main(sys.argv[1:]) != pytest.ExitCode.OK:
        os.execv(sys.executable, sys.orig_argv[: -len(sys.argv[1:])])
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the workers here
    with socket.socket(fileno=listener_number) as listener:
        while listener_number in select.select([listener_number, 0], [], [])[0]:
            connection, _ = listener.accept()
            if not os.fork():
                listener.close()
                work(connection)
            connection.close()
    os._exit(0)  # what was imported need not be taken apart


def work(connection: socket.socket) -> NoReturn:
    """Becomes a worker with the streams of the caller, to whom the connection ends with it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _, streams, *_ = socket.recv_fds(connection, 1, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__", "connection": connection})  # as execnet says
    sys.exit()
