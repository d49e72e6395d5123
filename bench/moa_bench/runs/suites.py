"""What a suite is to the harness: parts that are started one after the other, each with a result and a section.

Invariant: a part's name is that of its file in bench/results and of its section in a page of docs/.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from moa_shared.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Request:
    """What a user wants of a run.

    Args:
        questions: asked instead of a suite's own, where it asks any; None: its own.
        drafters: checkpoints by name, measured besides those in the package by suites that compare drafters.
        traces: recorded links, LINK=FILE, measured besides others by suites over links of one user.
        out: folder for results, instead of the checkout; None: the checkout, or nowhere if quick.
        journals: folder of the journals.
        afresh: begin again, whatever the journals hold.
    """

    model: str
    level: str
    pin: bool
    quick: bool
    questions: Path | None
    out: Path | None
    journals: Path
    afresh: bool = False
    drafters: Mapping[str, Path] = field(default_factory=dict)
    traces: tuple[str, ...] = ()

    def json_file(self, part: str) -> Path | None:
        """Where a part's result goes instead of the checkout; None: the checkout, or nowhere if quick."""
        return None if self.out is None else self.out / f"{part}.json"


@dataclass(frozen=True, slots=True)
class Part:
    """A measurement with one result.

    Args:
        name: of the file of results and of the page's section.
        page: of docs/, which has the section.
        seconds: about how many it takes; takes whether it is quick.
        start: measures and publishes.
        pictures: of docs/img/, without .png; * stands for any characters.
    """

    name: str
    page: str
    seconds: Callable[[bool], float]
    start: Callable[[Request], None]
    pictures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Suite:
    """What answers one question.

    Args:
        answers: the question, one sentence.
        parts: in the order in which they are run and shown.
    """

    name: str
    title: str
    answers: str
    parts: tuple[Part, ...]


def choose_parts(suites: tuple[Suite, ...], names: tuple[str, ...]) -> list[Part]:
    """The parts of the named suites in the order of the registry; `all` names every suite.

    Raises:
        ConfigError: there is no such suite.
    """
    there_are = [suite.name for suite in suites]
    for name in names:
        if name not in (*there_are, "all"):
            raise ConfigError(
                f"There is no suite {name!r}.", hint=f"There are {', '.join(there_are)}, and all of them: all."
            )
    return [part for suite in suites if "all" in names or suite.name in names for part in suite.parts]
