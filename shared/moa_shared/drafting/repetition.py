"""A guard against loops in a drafter's standalone text. Pure.

Drafters this small fall into loops within tens of tokens (docs/drafters.md); standalone text is provisional, so barring
a repeated run changes what is shown until the server has decided, and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

RUN = 6  # tokens; with 4 the target's likelihood falls more, with 8 repetition is above the target's own


def barred_after(written: Sequence[int], run: int = RUN) -> frozenset[int]:
    """Tokens that would write a run of `run` tokens a second time after `written`."""
    if len(written) < run:
        return frozenset()
    newest = tuple(written[1 - run :])
    span = run - 1
    return frozenset(
        written[at + span] for at in range(len(written) - span) if tuple(written[at : at + span]) == newest
    )
