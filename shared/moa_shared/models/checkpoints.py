"""Where copies of a recurrent state are kept, as a state cannot be cut: at the ends of full pages of a text.

One takes as much as hundreds to thousands of positions (docs/adr/0044-hybrids.md), so there are few of them.
"""

from collections.abc import Sequence

from moa_kernels import PAGE_ROWS, Cache

CHECKPOINT_EVERY = 2048  # positions of a prompt
NEWEST_CHECKPOINTS = 2  # besides these: before the newest answer, and where a text departed from an earlier one


def kept_checkpoints(places: Sequence[int]) -> list[int]:
    """Which checkpoints of a text stay, ascending as `places` are."""
    others = [place for place in places if place % CHECKPOINT_EVERY]
    return [place for place in places if place not in others[:-NEWEST_CHECKPOINTS]]


def most_checkpoints(rows: int) -> int:
    """Of a text of so many rows."""
    return min(rows // CHECKPOINT_EVERY + NEWEST_CHECKPOINTS, rows // PAGE_ROWS)


def checkpoints_between(start: int, stop: int) -> list[int]:
    """Where a text that is read from `start` to `stop` leaves some: often enough, and at its last full page."""
    places = {*range(-(-start // CHECKPOINT_EVERY) * CHECKPOINT_EVERY, stop, CHECKPOINT_EVERY)}
    return sorted(place for place in places | {stop // PAGE_ROWS * PAGE_ROWS} if start < place)


def leave_checkpoint(cache: Cache) -> None:
    """Leaves one after the last row of a cache, and drops those that do not stay."""
    cache.snapshot()
    held = list(cache.states.snapshots)
    kept = kept_checkpoints([each.rows for each in held])
    for each in held:
        if each.rows not in kept:
            cache.states.forget(each)
