"""The chapters of the page of results, and the parts that are measured for each.

Invariant: a part's name is that of its file in bench/results and of its section in a page of docs/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError

from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class ChapterPart:
    """A suite with one effort, which gives one result.

    Args:
        full, quick: how much to measure; None: as the suite says.
    """

    suite: Suite[Any]
    full: Any = None
    quick: Any = None
    named: str = ""  # its name, where it is not the suite's

    @property
    def name(self) -> str:
        return self.named or self.suite.name

    def effort(self, *, quick: bool) -> Any:
        own = self.quick if quick else self.full
        return self.suite.effort(quick=quick) if own is None else own

    def seconds(self, *, quick: bool) -> float:
        return self.suite.seconds(self.effort(quick=quick))


@dataclass(frozen=True, slots=True)
class Chapter:
    """What answers one question."""

    name: str
    title: str
    answers: str  # the question, one sentence
    parts: tuple[ChapterPart, ...]  # in the order in which they are run and shown


def choose_parts(chapters: tuple[Chapter, ...], names: tuple[str, ...]) -> list[ChapterPart]:
    """The parts of the named chapters in their order; `all` names every chapter."""
    there_are = [chapter.name for chapter in chapters]
    for name in names:
        if name not in (*there_are, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.", hint=f"There are {', '.join(there_are)}, and all of them: all."
            )
    return [part for chapter in chapters if "all" in names or chapter.name in names for part in chapter.parts]
