"""Time several things in turn, so that each round holds one measurement of each and disturbances hit all alike."""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from moa_shared.programs.garbage import collector_paused


def time_interleaved(
    cases: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    reset: Callable[[], object] = lambda: None,
    warm_up: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Milliseconds of each case, [repeats] each; entry i of all of them was measured in round i.

    Args:
        reset: run before each measurement, not timed.
        warm_up: rounds thrown away (first-call set-up of kernels, cold caches).
    """

    def timed(case: Callable[[], object]) -> Callable[[], float]:
        def measure() -> float:
            reset()
            start = clock()
            case()
            return (clock() - start) * 1e3

        return measure

    return collect_interleaved({name: timed(case) for name, case in cases.items()}, repeats, warm_up=warm_up)


def collect_interleaved(
    cases: Mapping[str, Callable[[], float]], repeats: int, *, warm_up: int = 2
) -> dict[str, list[float]]:
    """What each case says of itself, [repeats] each; entry i of all of them was measured in round i.

    The order rotates by one from round to round, so that no case always follows the same other one. The garbage
    collector is off meanwhile.
    """
    taken: dict[str, list[float]] = {name: [] for name in cases}
    with without_collector():
        for turn in range(-warm_up, repeats):
            for name in rotated(list(cases), turn):
                measured = cases[name]()
                if turn >= 0:
                    taken[name].append(measured)
    return taken


def rotated(names: Sequence[str], turn: int) -> list[str]:
    """The names, beginning with another one in each turn."""
    return [names[(place + turn) % len(names)] for place in range(len(names))]


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    with collector_paused():
        yield
