"""How busy the machine is: an idle process sleeps 2 ms at a time and counts how late it wakes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType, TracebackType

from netsim.output.lateness import LatenessHistogram
from netsim.run.process import environment

SLEEP_S = 0.002
# Two cores at a load of 3 showed a median of 0.09 ms and 2.3 ms at 99 %; with two busy loops more, 0.08 and 8.9 ms.
BUSY_MEDIAN_S = 0.5e-3
BUSY_P99_S = 3e-3


class MachineProbe:
    """Watches how busy the machine is while its block runs; `busy` and `description` tell afterwards."""

    def __init__(self) -> None:
        self.busy = False
        self.description = ""

    def __enter__(self) -> MachineProbe:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "netsim.validate.machine"],
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        said, _ = self._process.communicate()
        median_s, p99_s = map(float, said.split()) if said else (0.0, 0.0)
        self.busy = median_s > BUSY_MEDIAN_S or p99_s > BUSY_P99_S
        self.description = f"an idle process woke {median_s * 1e3:.2f} ms late, 99 % {p99_s * 1e3:.1f} ms"


def watch() -> None:
    """Runs until SIGTERM, then prints median and 99 % of the lateness in seconds."""
    histogram = LatenessHistogram()
    going = True

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal going
        going = False

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while going:
        due = time.monotonic() + SLEEP_S
        time.sleep(SLEEP_S)
        histogram.add(max(0.0, time.monotonic() - due))
    print(histogram.quantile_s(0.5), histogram.quantile_s(0.99))


if __name__ == "__main__":
    watch()
