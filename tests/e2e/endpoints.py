"""Two endpoints of one real server: one behind a link that is cut while answers cross it, one without link and drafts."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from moa_bench.harness.links import RunningLink
from netsim.run import control

Answer = TypeVar("Answer")
KEY = "0123456789abcdef"  # that both want
CUT_S = 0.3
BEGUN = 6  # packets from the server: its first verdicts have come, and most answers have not
POLL_S = 0.005


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a client asks.

    `url`: of the endpoint behind the link, such as "http://127.0.0.1:8674"; `plain`: of the other one.
    """

    url: str
    plain: str
    link: RunningLink

    def same(self, ask: Callable[[str], Answer]) -> Answer:
        """What a client gets at both, which is the same: what `ask` makes of an endpoint's URL."""
        expected = ask(self.plain)
        with self.cutting():
            answer = ask(self.url)
        assert answer == expected
        return answer

    @contextmanager
    def cutting(self) -> Iterator[None]:
        """Cuts the link once, in the middle of the answer that the block asks for."""
        ended = threading.Event()
        cuts: list[float] = []
        thread = threading.Thread(target=self._cut_once, args=(ended, cuts))
        thread.start()
        try:
            yield
        finally:
            end = time.monotonic()
            ended.set()
            thread.join()
        assert cuts, "the answer was over before it could be cut"
        assert end - cuts[0] >= CUT_S, "the whole answer had crossed the link when it was cut"

    def _cut_once(self, ended: threading.Event, cuts: list[float]) -> None:
        before = self._packets()
        while not ended.wait(POLL_S):
            if self._packets() >= before + BEGUN:
                self.link.cut(CUT_S)
                cuts.append(time.monotonic())
                return

    def _packets(self) -> int:
        """From the server, so far."""
        assert self.link.control is not None
        packets: int = control.send(self.link.control, {"do": "status"})["packets"]["down"]["packets"]
        return packets
