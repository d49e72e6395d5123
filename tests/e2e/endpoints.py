"""Two endpoints of one real server: one behind a link that is cut while answers cross it, one without link and drafts."""

import threading
import time
from collections.abc import Callable
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
        """What a client gets at both, which is the same: what `ask` makes of an endpoint's URL.

        It asks until an answer that crosses the link is cut in its middle.
        """
        expected = ask(self.plain)
        while True:
            ended, cuts = threading.Event(), list[float]()
            thread = threading.Thread(target=self._cut_once, args=(ended, cuts))
            thread.start()
            try:
                answer = ask(self.url)
            finally:
                end = time.monotonic()
                ended.set()
                thread.join()
            assert answer == expected
            if cuts and end - cuts[0] >= CUT_S:
                return answer

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
