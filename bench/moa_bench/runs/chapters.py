"""What `moa-bench run` takes by name: chapters, and the parts that are measured for each.

Invariant: a part's name is that of its file in bench/results and of its section in a page of docs/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError

from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class Part:
    """A suite with one effort, which gives one result.

    Args:
        full, quick: how much to measure; None: as the suite says.
        named: its name, where it is not the suite's.
    """

    suite: Suite[Any]
    full: Any = None
    quick: Any = None
    named: str = ""

    @property
    def name(self) -> str:
        return self.named or self.suite.name

    def effort(self, *, quick: bool) -> Any:
        own = self.quick if quick else self.full
        return self.suite.effort(quick=quick) if own is None else own

    def seconds(self, *, quick: bool) -> float:
        """About how many it takes."""
        return self.suite.seconds(self.effort(quick=quick))


@dataclass(frozen=True, slots=True)
class Chapter:
    """Measurements that answer one question together.

    Args:
        parts: in the order in which they are run.
    """

    name: str
    parts: tuple[Part, ...]


def choose_parts(chapters: tuple[Chapter, ...], names: tuple[str, ...]) -> list[Part]:
    """The parts of the named chapters in their order; `all` names every chapter.

    Raises:
        ConfigError: there is no such chapter.
    """
    there_are = [chapter.name for chapter in chapters]
    for name in names:
        if name not in (*there_are, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.", hint=f"There are {', '.join(there_are)}, and all of them: all."
            )
    return [part for chapter in chapters if "all" in names or chapter.name in names for part in chapter.parts]
