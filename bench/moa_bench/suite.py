"""What a suite is: a name, how much it measures, and the module that measures.

That has `measure(effort, run)`, which gives a result, and `render(result)`, its tables; it is loaded when it begins, so
that help loads nothing heavy. Command-line options come from the fields of dataclasses.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click
from moa_shared.defaults import INT8, LEVELS

from moa_bench.harness.questions import PACKAGED
from moa_bench.harness.shapes import SHAPES

Command = TypeVar("Command", bound=Callable[..., Any])
Effort = TypeVar("Effort")
Result = dict[str, Any]
Cores = set[int] | None
JsonObject = dict[str, Any]
SHAPE = click.Choice(tuple(SHAPES))
Keep = Callable[[str, Callable[[], JsonObject]], JsonObject]
"""keep(key, measure): what was measured under this key; measured only if the run's journal has it not."""


def option(default: Any, text: str, flag: str = "", *, shown: str = "", **click_option: Any) -> Any:
    """A field with an option.

    Args:
        flag: its name; "": made of the field's.
        shown: the default, for help, where it is not the field's.
        click_option: what click is told, where it does not follow from the field's type.
    """
    made = {"option": (flag, text, shown, click_option)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: default, metadata=made)
    return field(default=default, metadata=made)


def options_of(cls: type, names: Iterable[str] | None = None) -> Callable[[Command], Command]:
    """Gives a command the options of these fields; it gets None or () of what is not given."""
    wanted = None if names is None else set(names)
    hints = get_type_hints(cls)
    made = [
        _option(each, hints[each.name])
        for each in fields(cls)
        if "option" in each.metadata and (wanted is None or each.name in wanted)
    ]
    return lambda command: reduce(lambda inner, decorate: decorate(inner), reversed(made), command)


def _option(each: Field[Any], kind: Any) -> Callable[[Command], Command]:
    flag, text, shown, more = each.metadata["option"]
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        more = ({"multiple": True} if inner[-1] is Ellipsis else {"nargs": len(inner)}) | more
        kind = inner[0]
    if kind is bool:
        more = {"is_flag": True} | more
    elif get_origin(kind) is Literal:
        more = {"type": click.Choice(get_args(kind))} | more
    else:
        more = {"type": click.Path(path_type=Path) if kind is Path else kind} | more
    default: Any = each.default
    if not shown and kind is not bool and isinstance(default, str | int | float | tuple):
        several = default if isinstance(default, tuple) else (default,)
        shown = ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in several)
    flags = (flag or f"--{each.name.replace('_', '-')}", each.name)
    return click.option(*flags, default=None, help=f"{text}  [{shown}]" if shown else text, **more)


def with_given(usual: Effort, flags: Mapping[str, Any]) -> Effort:
    """A dataclass with what a command line gave in place of some of its fields; others of `flags` are left out."""
    found = {}
    for each in fields(usual):  # type: ignore[arg-type]  # any dataclass
        value = flags.get(each.name) if "option" in each.metadata else None
        if value not in (None, ()):
            found[each.name] = dict(value) if isinstance(getattr(usual, each.name), Mapping) else value
    return replace(usual, **found)  # type: ignore[type-var]


def named_path(value: str) -> tuple[str, Path]:
    """NAME=PATH; the name may have an equals sign, such as "MoA, N = 0"."""
    name, equals, path = value.rpartition("=")
    if not (name and equals and path):
        raise click.UsageError(f"--drafter {value} is not NAME=PATH or NAME=ID.")
    return name, Path(path)


@dataclass(frozen=True, kw_only=True)
class SuiteInputs:
    """What a user can name for a measurement, whatever it measures."""

    model: str = option("default", "Target: default, hub id, folder or .gguf.")
    level: str = option(INT8, "Arithmetic of the target.", type=click.Choice(LEVELS))
    pin: bool = option(False, "Pin the server to one core and everything else to another.")
    questions: Path = option(
        PACKAGED,
        "Ask these: JSON lines, or a folder of such files.",
        shown="40 each of MT-bench, GSM8K and HumanEval, which are in the package",
        metavar="PATH",
    )
    drafters: Mapping[str, Path] = option(
        {}, "Measure this checkpoint too, under that name (repeat).", "--drafter", metavar="NAME=PATH|ID",
        type=named_path, multiple=True,
    )  # fmt: skip
    llama_cpp: Path | None = option(
        None, "Where npm has installed node-llama-cpp, to measure llama.cpp too.", metavar="FOLDER"
    )
    shape: str | None = option(
        None,
        "Measure a model of this real size, of random weights, with oracles' drafts.",
        type=SHAPE,
    )

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
