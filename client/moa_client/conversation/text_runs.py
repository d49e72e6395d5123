"""Who wrote each stretch of an answer's text, and how likely the target found it. Pure.

A run is text whose tokens have one writer and, where chances are known, one token. Text that a token makes certain
counts as that token's: of a character in two tokens, the second one's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

from moa_shared.sampling.settings import TokenChances


class Provenance(Enum):
    """Where a committed token came from. No two names begin with the same letter, which the history keeps."""

    PROMPT = auto()  # the user's turn and the template around it
    DRAFT = auto()  # drafted here, confirmed by the target
    COPY = auto()  # the same, copied from earlier text of the conversation
    SERVER = auto()  # drafted by the server, confirmed by the target
    TARGET = auto()  # chosen by the target beyond all drafts
    ALONE = auto()  # standalone text that an earlier version has kept unverified

    @property
    def letter(self) -> str:
        """Stands for it where bytes count."""
        return self.name[0]


BY_LETTER = {each.letter: each for each in Provenance}


@dataclass(frozen=True, slots=True)
class TextRun:
    """A stretch of committed text.

    Args:
        characters: its length.
        writer: None: it is not known.
        chance: of its one token, that the target chooses it after the text before it; None: not known.
    """

    characters: int
    writer: Provenance | None = None
    chance: float | None = None


def runs_of(
    lengths: Sequence[int], writers: Sequence[Provenance] = (), chances: Sequence[TokenChances] = ()
) -> tuple[TextRun, ...]:
    """The runs of some tokens' text; none where neither writers nor chances are known.

    Args:
        lengths: of the text that comes with each token, in characters.
        writers, chances: of each token; empty: not known.
    """
    if not writers and not chances:
        return ()
    unknown = (None,) * len(lengths)
    known = tuple(math.exp(each.chosen) for each in chances)
    return joined(map(TextRun, lengths, writers or unknown, known or unknown))


def fitted(runs: tuple[TextRun, ...], characters: int) -> tuple[TextRun, ...]:
    """The runs of a text of so many characters: what is beyond them is the last token's."""
    if not runs:
        return joined((TextRun(characters),))
    *others, last = runs
    length = characters - sum(run.characters for run in others)
    return fitted(tuple(others), characters) if length <= 0 and others else (*others, replace(last, characters=length))


def joined(runs: Iterable[TextRun]) -> tuple[TextRun, ...]:
    """The same text in as few runs as can be."""
    whole: list[TextRun] = []
    for run in runs:
        if not run.characters:
            continue
        last = whole[-1] if whole else None
        if last is not None and last.chance is run.chance is None and last.writer is run.writer:
            whole[-1] = TextRun(last.characters + run.characters, run.writer)
        else:
            whole.append(run)
    return tuple(whole)
