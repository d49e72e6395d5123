"""Configuration: flags over MOA_* environment over a TOML file, validated once, at the edge.

A settings class says everything about its settings once: type, default, limits, help. `programs/command_line.py` makes
options and tables from it. Pure but for reading the file and the environment that it is given. Every error names the
setting, where it came from, the value and what is allowed. Relative paths of a file begin at its folder. The types of
settings are few, so reading them here replaces a library of validation, which took a third of a program's start.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.plain_text import is_text

LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "at least"),
    "gt": (lambda value, limit: value > limit, "more than"),
    "le": (lambda value, limit: value <= limit, "at most"),
    "lt": (lambda value, limit: value < limit, "less than"),
}
_WHOLE = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)


def read_value(kind: Any, value: object, limits: Mapping[str, float] = {}) -> Any:
    """A value of a setting.

    `kind`: of the field: bool, int, float, str, Path, a Literal of words, a tuple of one, or one or None.
    `value`: text, or what TOML has. `limits`: of numbers: ge, gt, le, lt. ValueError: what was expected.
    """
    result = _read(kind, value)
    for name, limit in limits.items():
        holds, words = LIMITS[name]
        if not all(holds(part, limit) for part in (result if isinstance(result, tuple) else [result])):  # nor for NaN
            raise ValueError(f"expected {words} {limit}")
    return result


def plain_words(message: str) -> str:
    """What pydantic says of a value that it refuses, in the words of this module."""
    message = re.sub(r"Value error, | after validation|\.$| valid(?= )", "", message)
    message = re.sub("a dictionary.*", "a JSON object", message.replace("Input should be", "expected"), flags=re.DOTALL)
    return re.sub(r"^(expected )?[A-Z]", lambda found: found[0].lower(), message)


def plain_kind(kind: Any) -> Any:
    """The type of a field without its "or None"."""
    if get_origin(kind) in (Union, UnionType):
        return next(part for part in get_args(kind) if part is not NoneType)
    return kind


def _read(kind: Any, value: object) -> object:
    if value is None and plain_kind(kind) is not kind:
        return None
    kind = plain_kind(kind)
    if get_origin(kind) is Literal:
        if value in get_args(kind):
            return value
        *others, last = map(repr, get_args(kind))
        raise ValueError(f"expected {', '.join(others)} or {last}" if others else f"expected {last}")
    if get_origin(kind) is tuple:
        if isinstance(value, dict):
            if not all(isinstance(each, str) for each in value.values()):
                raise ValueError("expected texts: a name with a dot needs quotes")
            value = [f"{name}={each}" for name, each in value.items()]
        if not isinstance(value, tuple | list):
            raise ValueError("expected a list")
        return tuple(_read(get_args(kind)[0], part) for part in value)
    read, expected = _READERS[kind]
    if (result := read(value)) is None:
        raise ValueError(f"expected {expected}")
    return result


def _read_whole(value: object) -> int | None:
    if isinstance(value, str):
        is_whole = len(value) <= 100 and _WHOLE.fullmatch(value) is not None
        return int(value.partition(".")[0]) if is_whole else None
    is_whole = isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    return int(value) if is_whole else None  # type: ignore[call-overload]


def _read_number(value: object) -> float | None:
    with suppress(ValueError):
        return float(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    return None


_SWITCH = dict.fromkeys(("1", "true", "on", "yes", "y", "t"), True)
_SWITCH |= dict.fromkeys(("0", "false", "off", "no", "n", "f"), False)
_READERS: Mapping[Any, tuple[Callable[[Any], object], str]] = {
    bool: (lambda value: value if isinstance(value, bool) else _SWITCH.get(str(value).lower()), "on or off"),
    int: (_read_whole, "a whole number"),
    float: (_read_number, "a number"),
    str: (lambda value: value if isinstance(value, str) and is_text(value) else None, "text in UTF-8"),
    Path: (lambda value: Path(value) if isinstance(value, str | Path) else None, "a path"),
}

CONFIG_VARIABLE = "MOA_CONFIG"

Settings = TypeVar("Settings", bound="SettingsBase")
Value = TypeVar("Value")
Check = Callable[[Any], object]


@dataclass(frozen=True)
class SettingsBase:
    """Base of all settings classes: frozen dataclasses of `setting(...)`s, which `load_settings` alone checks.

    No user can set other fields.
    """

    RETIRED: ClassVar[Mapping[str, str]] = {}  # settings of earlier versions: what there is instead, a sentence
    FILE_WORDS: ClassVar[str] = f"the one that {CONFIG_VARIABLE} names"  # which file a program reads by itself

    @classmethod
    def usual_file(cls) -> Path | None:
        """The TOML file that a command reads where none is named; None: there is none."""
        return None

    def json_values(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in settings_of(type(self))}
        return dict(json.loads(json.dumps(values, default=str)))


@dataclass(frozen=True, slots=True)
class Setting:
    """What a settings class says about one field."""

    text: str  # what help and docs say about it: sentences
    metavar: str = ""  # placeholder for its value; "": made from the type
    shown: str = ""  # the default in words, where the value itself says little ("any")
    flag: str = ""  # its option, or the name of an argument ("MODEL"); "": an option with the field's name
    variable: str = ""  # another environment variable that gives it, after all other sources
    check: Check | None = None  # raises ValueError for a value that is not allowed
    limits: Mapping[str, float] = field(default_factory=dict)
    may_be_path: bool = False  # of a text: one that names a file or a folder here is its path
    name: str = ""
    kind: Any = None
    default: Any = None

    @property
    def is_argument(self) -> bool:
        return bool(self.flag) and not self.flag.startswith("-")

    def flag_of(self, value: object = None) -> str:
        """The command line's option for it; that of a switch depends on the value."""
        flag = self.flag or flag_of(self.name)
        return f"--no-{flag.removeprefix('--')}" if value is False else flag

    @property
    def words(self) -> list[str]:
        """What its value may be in words, as its placeholder lists them; none: anything of its type."""
        if get_origin(kind := plain_kind(self.kind)) is Literal:
            return list(get_args(kind))
        return [word for word in self.metavar.split("|") if word.islower()]

    def read(self, value: object, folder: Path) -> Any:
        """A value of this setting. `folder`: where relative paths begin. ValueError: what was expected."""
        result = read_value(self.kind, value, self.limits)
        if self.check is not None:
            self.check(result)
        if isinstance(result, tuple):
            return tuple(_absolute(each, folder) if isinstance(each, Path) else each for each in result)
        if isinstance(result, Path):
            return _absolute(result, folder)
        if self.may_be_path and isinstance(result, str) and result.strip() and result not in self.words:
            path = _absolute(Path(result), folder)
            return str(path) if path.exists() else result  # otherwise it is a name on the hub
        return result


def flag_of(name: str) -> str:
    """The option of a setting that names none itself."""
    return f"--{name.replace('_', '-')}"


def setting(default: Value, text: str, metavar: str = "", **about: Any) -> Value:
    """A field of a settings class, with its default; `about`: as of `Setting`, and its limits: ge, gt, le, lt."""
    limits = {name: about.pop(name) for name in LIMITS if name in about}
    return field(default=default, metadata={"setting": Setting(text, metavar, limits=limits, **about)})


def settings_of(cls: type[SettingsBase]) -> Mapping[str, Setting]:
    kinds = get_type_hints(cls)
    return {
        each.name: replace(each.metadata["setting"], name=each.name, kind=kinds[each.name], default=each.default)
        for each in fields(cls)
        if "setting" in each.metadata
    }


class SettingOrigin(NamedTuple):
    """Where the value of a setting comes from."""

    source: Literal["command line", "environment", "file", "default"]
    name: str = ""  # the flag, the environment variable or the file's path
    where: str = ""  # in words, where the name does not say all


DEFAULT = SettingOrigin("default")


def load_settings_and_origins(
    cls: type[Settings],
    section: str,
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    shown: Callable[[str], str] | None = None,
) -> tuple[Settings, dict[str, SettingOrigin]]:
    """Settings of one program, and where the value of each field comes from.

    `section`: table of the TOML file ("server"); the environment's names are MOA_<SECTION>_<FIELD>. `flags`: None and
    empty tuples count as not given. `config_file`: None takes the one that MOA_CONFIG names, if any. `shown`: how
    messages name a setting that `flags` give; None: as its option.
    """
    known = settings_of(cls)
    given: dict[str, tuple[Any, SettingOrigin]] = {}
    for name, about in known.items():
        if environment.get(about.variable):
            given[name] = environment[about.variable], SettingOrigin("environment", about.variable)
    path = config_file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    for name, value in _read_section(path, section).items() if path is not None else ():
        given[name] = value, SettingOrigin("file", str(path), f"{name} in [{section}] of {path}")
    prefix = f"MOA_{section.upper()}_"
    for variable, text in environment.items():
        if variable.startswith(prefix):
            name = variable[len(prefix) :].lower()
            is_list = name in known and get_origin(known[name].kind) is tuple
            value = tuple(filter(None, text.split(","))) if is_list else text
            given[name] = value, SettingOrigin("environment", variable)
    for name, value in flags.items():
        if value is not None and value != ():
            label = shown(name) if shown is not None else known[name].flag_of(value) if name in known else flag_of(name)
            given[name] = value, SettingOrigin("command line", label)
    values = {name: _read_given(cls, known, name, *each) for name, each in given.items()}
    return cls(**values), {name: given[name][1] if name in given else DEFAULT for name in known}


def load_settings(cls: type[Settings], *arguments: Any, **named: Any) -> Settings:
    """As `load_settings_and_origins`, without these."""
    return load_settings_and_origins(cls, *arguments, **named)[0]


def read_table(cls: type[Settings], section: str, table: Mapping[str, Any], path: Path) -> Settings:
    """The settings of one table of a file, which is read already; section "": of what stands above all tables."""
    known, place = settings_of(cls), f"[{section}] of {path}" if section else str(path)
    origins = {name: SettingOrigin("file", str(path), f"{name} in {place}") for name in table}
    return cls(**{name: _read_given(cls, known, name, value, origins[name]) for name, value in table.items()})


def _read_given(
    cls: type[SettingsBase], known: Mapping[str, Setting], name: str, value: object, origin: SettingOrigin
) -> object:
    where = origin.where or origin.name
    if name in cls.RETIRED:
        hint = "Leave it out: moa 0.2.0 was the last that had it."
        raise ConfigError(f"{where} is not a setting any more. {cls.RETIRED[name]}", hint=hint)
    if name not in known:
        near = get_close_matches(name, known)
        hint = f"Did you mean {' or '.join(near)}?" if near else "See --help for the settings that there are."
        raise ConfigError(f"{where} is not a setting.", hint=hint)
    try:
        return known[name].read(value, Path(origin.name).parent if origin.source == "file" else Path())
    except ValueError as error:
        given = str(value) if isinstance(value, Path) else value
        raise ConfigError(f"{where} is {given!r}: {error}.") from None


def _absolute(path: Path, folder: Path) -> Path:
    """The path without `~`, from the root on."""
    try:
        return (folder / path.expanduser()).absolute()
    except RuntimeError:
        raise ValueError("there is no such user's home") from None
    except FileNotFoundError:
        raise ValueError("the current folder does not exist any more: give the whole path") from None


def read_toml(path: Path, hint: str) -> dict[str, Any] | None:
    """What a file holds; None: there is none. `hint`: on one that is not TOML."""
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.", hint=hint) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.", hint="") from None


def _read_section(path: Path, section: str) -> dict[str, Any]:
    if (document := read_toml(path, "Correct that line.")) is None:
        raise NotFoundError(f"The configuration file {path} does not exist.")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] of {path} is not a table.", hint=f"Write [{section}] above its settings.")
    return table
