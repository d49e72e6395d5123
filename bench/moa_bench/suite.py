"""What a suite is: a name, how much it measures, and where its measuring and its tables are.

A suite's package has its `Suite`, and the modules `measure` (`measure(effort, run)`, which gives a result, and perhaps
`check(result)`, which raises where that is a failure) and `tables` (`render(result)`). They are loaded when it begins,
so that help loads nothing heavy.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, TypeVar

from moa_shared.protocol.levels import INT8, LEVELS

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import FORMATS, SHAPES, USUAL_FORMAT, step_s
from moa_bench.options import option
from moa_bench.report.journal import Keep, measure_afresh

Effort = TypeVar("Effort")
Result = dict[str, Any]
Cores = set[int] | None


@dataclass(frozen=True, kw_only=True)
class SuiteInputs:
    """What a user can name for a measurement, whatever it measures.

    `questions` is a path as `read_all` takes it; `drafters` are checkpoints by name, besides those in the package.
    """

    model: str = option("default", "Target: default, hub id, folder or .gguf.")
    level: str = option(INT8, "Arithmetic of the target.", choices=LEVELS)
    pin: bool = option(False, "Pin the server to one core and everything else to another.")
    questions: Path = option(
        PACKAGED,
        "Ask these: JSON lines, or a folder of such files.",
        shown="40 each of MT-bench, GSM8K and HumanEval, which are in the package",
        metavar="PATH",
    )
    drafters: Mapping[str, Path] = option(
        {}, "Measure this checkpoint too, under that name (repeat).", "--drafter", metavar="NAME=PATH|ID"
    )
    traces: tuple[str, ...] = option(
        (),
        "Measure over this recorded link too, with that link's delay where the recording has none (repeat).",
        "--trace",
        metavar="LINK=FILE",
    )
    llama_cpp: Path | None = option(
        None, "Where npm has installed node-llama-cpp, to measure llama.cpp too.", metavar="FOLDER"
    )
    shape: str | None = option(
        None, "Measure a model of this real size, of random weights, with oracles' drafts.", choices=tuple(SHAPES)
    )
    stored: str | None = option(
        None, "How its weights are stored.", "--format", shown=USUAL_FORMAT, choices=tuple(FORMATS)
    )

    @property
    def suffix(self) -> str:
        """What the names of results of another target than the default one end in: "-8b", "-gemma3-270m"."""
        if self.shape is not None:
            return f"-{self.shape}" + (f"-{self.stored}" if self.stored not in (None, USUAL_FORMAT) else "")
        named = Path(self.model).name.removesuffix(".gguf").lower()
        return "" if self.model == "default" else f"-{re.sub(r'[^a-z0-9.]+', '-', named)}"

    @property
    def step_s(self) -> float:
        """About what a plain step of the target takes on one core, in seconds."""
        return step_s(self.shape or self.model)


@dataclass(frozen=True, kw_only=True)
class SuiteRun(SuiteInputs):
    """What a measurement is given besides its effort.

    Args:
        server_cores, own_cores: of the server, and of everything else; None: any.
    """

    server_cores: Cores = None
    own_cores: Cores = None
    keep: Keep = measure_afresh  # takes the key of a cell, and what measures it
    save: Callable[[Result], object] = lambda result: None  # takes the result so far, which an interrupted run keeps


@dataclass(frozen=True, slots=True)
class Suite(Generic[Effort]):
    """A measurement.

    Args:
        refuse: raises UsageError where options contradict each other, before anything is loaded.
        fixed: inputs that it has whatever a user names: its target, where it is a part of a run of several sizes.
    """

    name: str  # of its command
    about: str  # what it measures, for help
    package: str  # where its modules are
    full: Effort  # how much to measure
    quick: Effort | None  # just enough to show that it works; None: there is no such thing
    takes: tuple[str, ...]  # the fields of `SuiteInputs` that it uses
    estimate: Callable[..., float]  # seconds that an effort takes; where shapes are taken, by those of a plain step too
    refuse: Callable[[Effort, SuiteInputs], None] = lambda effort, inputs: None
    is_computed: bool = False  # nothing is measured, so that machine and commit say nothing about the figures
    fixed: Mapping[str, str] = field(default_factory=dict)

    def effort(self, *, quick: bool) -> Effort:
        return self.quick if quick and self.quick is not None else self.full

    def inputs(self, given: SuiteInputs) -> SuiteInputs:
        """What it measures with: what a user named, but for what is fixed."""
        return replace(given, **self.fixed)  # type: ignore[arg-type]  # all of them texts

    def seconds(self, effort: Effort, given: SuiteInputs | None = None) -> float:
        """About how many an effort takes."""
        steps = [self.inputs(given or SuiteInputs()).step_s] if "shape" in self.takes else []
        return self.estimate(effort, *steps)

    def measure(self, effort: Effort, run: SuiteRun) -> Result:
        """The result: "target", "name" where it is not the suite's, and whatever the tables show."""
        found: Result = import_module(f"{self.package}.measure").measure(effort, run)
        return found

    def render(self, result: Mapping[str, Any]) -> str:
        """Markdown tables of a result."""
        return str(import_module(f"{self.package}.tables").render(result))

    def check(self, result: Mapping[str, Any]) -> None:
        """Raises a MoaError where what was measured is a failure."""
        check = getattr(import_module(f"{self.package}.measure"), "check", None)
        if check is not None:
            check(result)
