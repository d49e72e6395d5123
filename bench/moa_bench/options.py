"""Command-line options that come from the fields of a dataclass: each is named once, with its default and its help."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields, replace
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import click

Made = TypeVar("Made")
Command = TypeVar("Command", bound=Callable[..., Any])
_OPTION = "option"
TEMPERATURE = "Of the answers; 0 is greedy, own what the model's files say."


@dataclass(frozen=True, slots=True)
class Option:
    """What a field does not say of its option.

    Args:
        least, most: its range.
    """

    text: str  # for help
    flag: str = ""  # its name; empty: made of the field's. With a slash it is a switch that can be turned off
    metavar: str | None = None
    shown: str = ""  # the default, for help, where it is not the field's
    choices: tuple[str, ...] = ()  # the words that it takes; none: those of its type
    least: float | None = None
    most: float | None = None


def option(default: Any, text: str, flag: str = "", **more: Any) -> Any:
    """A field with an option; `more`: of `Option`."""
    made = {_OPTION: Option(text, flag, **more)}
    if isinstance(default, Mapping):
        return field(default_factory=lambda: default, metadata=made)
    return field(default=default, metadata=made)


def options_of(cls: type, names: Iterable[str] | None = None) -> Callable[[Command], Command]:
    """Gives a command an option for each field that has one; it gets None, or nothing of it, where none was given.

    Args:
        names: only of these fields; None: of all.
    """
    wanted = None if names is None else set(names)
    hints = get_type_hints(cls)
    made = [
        _parameter(each, hints[each.name])
        for each in fields(cls)
        if _OPTION in each.metadata and (wanted is None or each.name in wanted)
    ]
    return lambda command: reduce(lambda inner, decorate: decorate(inner), reversed(made), command)


def with_given(usual: Made, flags: Mapping[str, Any]) -> Made:
    """A dataclass with what a command line gave in place of some of its fields; others of `flags` are left out."""
    found = {}
    for each in fields(usual):  # type: ignore[arg-type]  # any dataclass
        value = flags.get(each.name) if _OPTION in each.metadata else None
        if value is None or value == () or (value is False and not getattr(usual, each.name)):
            continue
        found[each.name] = dict(value) if isinstance(getattr(usual, each.name), Mapping) else value
    return replace(usual, **found)  # type: ignore[type-var]


class NamedPath(click.ParamType[tuple[str, Path]]):
    """NAME=PATH; the name may have an equals sign, such as "MoA, N = 0"."""

    name = "name=path"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Path]:
        name, equals, path = value.rpartition("=")
        if not (name and equals and path):
            raise click.UsageError(f"--drafter {value} is not NAME=PATH or NAME=ID.")
        return name, Path(path)


def _parameter(each: Field[Any], kind: Any) -> Callable[[Command], Command]:
    about: Option = each.metadata[_OPTION]
    flag = about.flag or f"--{each.name.replace('_', '-')}"
    if get_origin(kind) in (Union, UnionType):
        kind = next(one for one in get_args(kind) if one is not NoneType)
    if kind is bool:
        return click.option(flag, each.name, is_flag="/" not in flag or None, default=None, help=about.text)
    inner, many = get_args(kind), get_origin(kind) is tuple
    is_mapping = get_origin(kind) not in (None, tuple, Literal)
    several = (many and inner[-1] is Ellipsis) or is_mapping
    of_one = NamedPath() if is_mapping else _click_type(inner[0] if many else kind, about)
    default = about.shown or _words(each.default)
    return click.option(
        flag,
        each.name,
        type=of_one,
        multiple=several,
        nargs=len(inner) if many and not several else 1,
        metavar=about.metavar,
        help=about.text + (f"  [{default}]" if default else ""),
    )


def _click_type(kind: Any, about: Option) -> click.ParamType[Any]:
    if about.choices or get_origin(kind) is Literal:
        return click.Choice(about.choices or get_args(kind))
    if kind is int:
        least, most = (None if each is None else int(each) for each in (about.least, about.most))
        return click.INT if least is most is None else click.IntRange(least, most)
    if kind is float:
        return click.FloatRange(about.least, about.most)
    return click.Path(path_type=Path) if kind is Path else click.STRING


def _words(default: object) -> str:
    """A default for help; empty where there is nothing to say."""
    if isinstance(default, Sequence) and not isinstance(default, str):
        return ", ".join(map(str, default))
    if isinstance(default, float):
        return f"{default:g}"
    return str(default) if isinstance(default, str | int) and not isinstance(default, bool) else ""
