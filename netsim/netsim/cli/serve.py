"""`netsim serve`: the far end of a measurement."""

from __future__ import annotations

import signal
import socket
from types import FrameType

import click

from netsim.measure.far_end import serve
from netsim.run.address import Address, listen, parse_address
from netsim.run.session import say


@click.command("serve")
@click.option("--listen", "at", default=":7000", show_default=True, metavar="[HOST]:PORT", help="Where to listen.")
def command(at: str) -> None:
    """Be the far end that `record` measures against."""
    listener = listen(parse_address(at, "--listen"))

    def end(number: int, frame: FrameType | None) -> None:
        listener.shutdown(socket.SHUT_RDWR)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    say(f"netsim serves measurements on {Address(*listener.getsockname()[:2])}")
    serve(listener)
