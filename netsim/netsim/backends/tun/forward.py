"""A process that forwards connections from the server's namespace to the upstream outside it.

It is the stream proxy with a perfect link, given a socket that already listens in the namespace, so a refusal by the
upstream is passed on as a refusal. It ends when its standard input does, which means that the emulator is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from netsim.backends.proxy.server import ProxyBackend
from netsim.output.recorder import RunRecorder
from netsim.profile import catalogue
from netsim.profile.scenario import Scenario
from netsim.run.address import parse_address
from netsim.run.loop import Loop


def main(fd: int, upstream: str) -> None:
    """Forwards from the listening socket `fd` until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the command; the emulator ends us
    loop = Loop()
    listener = socket.socket(fileno=fd)
    listener.setblocking(False)
    scenario = Scenario(catalogue.load("perfect"))
    backend = ProxyBackend(loop, scenario, RunRecorder(None), listener, parse_address(upstream, "upstream"))
    loop.read(sys.stdin.fileno(), lambda: loop.stop() if not os.read(sys.stdin.fileno(), 1) else None)
    signal.signal(signal.SIGTERM, lambda number, frame: loop.stop())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    loop.run()
    backend.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
