"""What a suite is: a name, how much it measures, and the module that measures.

That has `measure(effort, run)`, which gives a result, and `render(result)`, its tables; it is loaded when it begins, so
that help loads nothing heavy. Its options are the settings of its effort, and of the inputs that it takes.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from moa_shared.programs.config import SettingsBase, load_settings, setting, settings_of
from moa_training.settings import Execution

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import SHAPES

MEASURE_WITH_IT = "Measure with that one."
Effort = TypeVar("Effort")
Options = TypeVar("Options", bound=SettingsBase)
Result = dict[str, Any]
Cores = set[int] | None
Keep = Callable[[str, Callable[[], Result]], Result]
"""keep(key, measure): what was measured under this key; measured only if the run's journal has it not."""


def with_given(usual: Options, flags: Mapping[str, Any]) -> Options:
    """Options with what a command line gave in place of some of them; others of `flags` are left out."""
    known = {*settings_of(type(usual)), *usual.RETIRED}
    given = {name: value for name, value in flags.items() if name in known and value not in (None, ())}
    read = load_settings(type(usual), "", given, environment={})
    return replace(usual, **{name: getattr(read, name) for name in given})


def _is_shape(value: str) -> None:
    if value not in SHAPES:
        raise ValueError(f"expected one of {', '.join(SHAPES)}")


def _name_drafters(value: tuple[str, ...]) -> None:
    if not all(all(each.rpartition("=")) for each in value):
        raise ValueError("expected NAME=PATH or NAME=ID")


@dataclass(frozen=True, kw_only=True)
class SuiteInputs(SettingsBase):
    """What a user can name for a measurement, whatever it measures."""

    RETIRED: ClassVar = dict.fromkeys(("format", "trace"), MEASURE_WITH_IT)

    model: str = setting("default", "Target: default, hub id, folder or .gguf.")
    level: Execution = setting("int8", "Arithmetic of the target.")
    pin: bool = setting(False, "Pin the server to one core and everything else to another.")
    questions: Path = setting(
        PACKAGED,
        "Ask these: JSON lines, or a folder of such files.",
        "PATH",
        shown="40 each of MT-bench, GSM8K and HumanEval, which are in the package",
    )
    drafter: tuple[str, ...] = setting(
        (), "Measure this checkpoint too, under that name (repeat).", "NAME=PATH|ID", shown="none", check=_name_drafters
    )
    llama_cpp: Path | None = setting(
        None, "Where npm has installed node-llama-cpp, to measure llama.cpp too.", "FOLDER", shown="not measured"
    )
    shape: str | None = setting(
        None,
        "Measure a model of this real size, of random weights, with oracles' drafts.",
        "|".join(SHAPES),
        shown="none",
        check=_is_shape,
    )

    @property
    def drafters(self) -> dict[str, Path]:
        """By name, which may have an equals sign, such as "MoA, N = 0"."""
        return {name: Path(path) for name, _, path in (each.rpartition("=") for each in self.drafter)}

    @property
    def suffix(self) -> str:
        """What the names of results of another target than the default one end in: "-8b", "-gemma3-270m"."""
        if self.shape is not None:
            return f"-{self.shape}"
        named = Path(self.model).name.removesuffix(".gguf").lower()
        return "" if self.model == "default" else f"-{re.sub(r'[^a-z0-9.]+', '-', named)}"


@dataclass(frozen=True, kw_only=True)
class SuiteRun(SuiteInputs):
    server_cores: Cores = None  # None: any
    own_cores: Cores = None
    keep: Keep = lambda key, measure: measure()


@dataclass(frozen=True, slots=True)
class Suite(Generic[Effort]):
    """A measurement.

    `refuse`: raises UsageError where options contradict each other, before anything is loaded. `fixed`: inputs that it
    has whatever a user names: its target, where it is a part of a run of several sizes.
    """

    name: str  # of its command
    about: str  # what it measures, for help
    module: str  # that measures, and renders
    full: Effort  # how much to measure
    quick: Effort  # just enough to show that it works
    takes: tuple[str, ...]  # the fields of `SuiteInputs` that it uses
    refuse: Callable[[Any, SuiteInputs], None] = lambda effort, inputs: None
    fixed: Mapping[str, str] = field(default_factory=dict)

    def inputs(self, given: SuiteInputs) -> SuiteInputs:
        """What it measures with: what a user named, but for what is fixed."""
        return replace(given, **self.fixed)  # type: ignore[arg-type]  # all of them texts
