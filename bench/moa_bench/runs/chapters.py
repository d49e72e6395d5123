"""What `moa-bench run` takes by name: chapters, and the suites that are measured for each.

Invariant: a suite's name is that of its file in bench/results and of its section in a page of docs/.
"""

from dataclasses import dataclass
from typing import Any

from moa_shared.errors import ConfigError

from moa_bench.suite import Suite


@dataclass(frozen=True, slots=True)
class Chapter:
    """Measurements that answer one question together."""

    name: str
    parts: tuple[Suite[Any], ...]  # in the order in which they are run


def choose_parts(chapters: tuple[Chapter, ...], names: tuple[str, ...]) -> list[Suite[Any]]:
    """The suites of the named chapters in their order; `all` names every chapter."""
    there_are = [chapter.name for chapter in chapters]
    for name in names:
        if name not in (*there_are, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.", hint=f"There are {', '.join(there_are)}, and all of them: all."
            )
    return [part for chapter in chapters if "all" in names or chapter.name in names for part in chapter.parts]
