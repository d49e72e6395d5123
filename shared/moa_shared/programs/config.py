"""Configuration: flags over MOA_* environment over a TOML file, validated once, at the edge.

A settings class says everything about its settings once: type, default, limits, help. `programs/command_line.py` makes
options and tables from it. Pure but for reading the file and the environment that it is given. Every error names the
setting, where it came from, the value and what is allowed. Relative paths of a file begin at its folder. The types of
settings are few, so reading them here replaces a library of validation, which took a third of a program's start.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from moa_shared.errors import ConfigError, NotFoundError
from moa_shared.plain_text import is_text

YES, NO = frozenset({"1", "true", "on", "yes", "y", "t"}), frozenset({"0", "false", "off", "no", "n", "f"})
LIMITS: Mapping[str, tuple[Callable[[Any, Any], bool], str]] = {
    "ge": (lambda value, limit: value >= limit, "at least"),
    "gt": (lambda value, limit: value > limit, "more than"),
    "le": (lambda value, limit: value <= limit, "at most"),
    "lt": (lambda value, limit: value < limit, "less than"),
}
_PLAIN = (  # pydantic's words, and ours
    (r"(?s).* valid integer.*", "expected a whole number"),
    (r"(?s).* valid number.*", "expected a number"),
    (r"(?s).* valid boolean.*", "expected true or false"),
    (r".* valid string", "expected text"),
    (r".* valid (list|tuple)", "expected a list"),
    (r".* valid dictionary.*", "expected a JSON object"),
    (r".*is not a valid path", "expected a path"),
    ("Input should be greater than or equal to", "expected at least"),
    ("Input should be greater than", "expected more than"),
    ("Input should be less than or equal to", "expected at most"),
    ("Input should be", "expected"),
    (r"Value error, | after validation|\.$", ""),
)
_WHOLE = re.compile(r"\s*[+-]?\d+(?:_\d+)*(?:\.0*)?\s*", re.ASCII)


def read_value(kind: Any, value: object, limits: Mapping[str, float] = {}) -> Any:
    """A value of a setting.

    `kind`: of the field: bool, int, float, str, Path, a Literal of words, tuple[str, ...], or one of them or None.
    `value`: text, or what TOML has for it. `limits`: of a number: ge, gt, le, lt. ValueError: what was expected.
    """
    result = _read(kind, value)
    for name, limit in limits.items():
        holds, words = LIMITS[name]
        if not holds(result, limit):  # nor does it for NaN
            raise ValueError(f"expected {words} {limit}")
    return result


def plain_words(message: str) -> str:
    """What pydantic says of a value that it refuses, in the words of this module."""
    for theirs, ours in _PLAIN:
        message = re.sub(theirs, ours, message)
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
        return _read_choice(get_args(kind), value)
    if get_origin(kind) is tuple:
        if not isinstance(value, tuple | list):
            raise ValueError("expected a list of texts")
        return tuple(_read(str, part) for part in value)
    return _READERS[kind](value)


def _read_choice(choices: tuple[str, ...], value: object) -> object:
    if value in choices:
        return value
    *others, last = map(repr, choices)
    raise ValueError(f"expected {', '.join(others)} or {last}" if others else f"expected {last}")


def _read_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in YES | NO:
        return value.lower() in YES
    raise ValueError("expected on or off")


def _read_whole(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str) or not _WHOLE.fullmatch(value) or len(value) > 100:
        raise ValueError("expected a whole number")
    return int(value.partition(".")[0])


def _read_number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    try:
        if isinstance(value, str):
            return float(value)
    except ValueError:
        pass
    raise ValueError("expected a number")


def _read_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    if not is_text(value):
        raise ValueError("expected text in UTF-8")
    return value


def _read_path(value: object) -> Path:
    if not isinstance(value, str | Path):
        raise ValueError("expected a path")
    return Path(value)


_READERS: Mapping[Any, Callable[[object], object]] = {
    bool: _read_switch,
    int: _read_whole,
    float: _read_number,
    str: _read_text,
    Path: _read_path,
}


CONFIG_VARIABLE = "MOA_CONFIG"

Settings = TypeVar("Settings", bound="SettingsBase")
Value = TypeVar("Value")
Check = Callable[[Any], object]


@dataclass(frozen=True)
class SettingsBase:
    """Base of all settings classes: frozen dataclasses of `setting(...)`s, which `load_settings` alone checks.

    Other fields are arguments for tests and measurements, which no user can set.
    """

    RETIRED: ClassVar[Mapping[str, str]] = {}  # settings of earlier versions: what there is instead, a sentence
    FILE_WORDS: ClassVar[str] = f"the one that {CONFIG_VARIABLE} names"  # which file a program reads by itself

    @classmethod
    def usual_file(cls) -> Path | None:
        """The TOML file that a command reads where none is named; None: there is none."""
        return None

    def values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in settings_of(type(self))}

    def json_values(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in self.values().items()}


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


@dataclass(frozen=True, slots=True)
class SettingOrigin:
    """Where the value of a setting comes from."""

    source: Literal["command line", "environment", "file", "default"]
    name: str = ""  # the flag, the environment variable or the file's path


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

    Args:
        section: table of the TOML file ("server"); the environment's names are MOA_<SECTION>_<FIELD>.
        flags: from the command line; None and empty tuples count as not given.
        config_file: TOML file; None takes the one that MOA_CONFIG names, if any.
        shown: how messages name a setting that `flags` give; None: as its option.
    """
    known = settings_of(cls)
    given: dict[str, Any] = {}
    origins: dict[str, SettingOrigin] = {}
    for name, about in known.items():
        if environment.get(about.variable):
            given[name], origins[name] = environment[about.variable], SettingOrigin("environment", about.variable)
    path = config_file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    if path is not None:
        for name, value in _read_section(path, section).items():
            given[name], origins[name] = value, SettingOrigin("file", str(path))
    prefix = f"MOA_{section.upper()}_"
    for variable, text in environment.items():
        if variable.startswith(prefix):
            name = variable[len(prefix) :].lower()
            given[name], origins[name] = _from_text(known.get(name), text), SettingOrigin("environment", variable)
    for name, value in flags.items():
        if value is not None and value != ():
            label = shown(name) if shown is not None else known[name].flag_of(value) if name in known else flag_of(name)
            given[name], origins[name] = value, SettingOrigin("command line", label)
    for name in given:
        if name in cls.RETIRED:
            what = f"{_where(section, name, origins[name])} is not a setting any more."
            raise ConfigError(f"{what} {cls.RETIRED[name]}", hint="Leave it out: moa 0.2.0 was the last that had it.")
    values = {name: _read_given(known, section, name, value, origins[name]) for name, value in given.items()}
    return cls(**values), {name: origins.get(name, DEFAULT) for name in known}


def load_settings(cls: type[Settings], *arguments: Any, **named: Any) -> Settings:
    """As `load_settings_and_origins`, without these."""
    return load_settings_and_origins(cls, *arguments, **named)[0]


def _read_given(known: Mapping[str, Setting], section: str, name: str, value: object, origin: SettingOrigin) -> object:
    """A value that was given for a setting."""
    source = _where(section, name, origin)
    if name not in known:
        near = get_close_matches(name, known)
        hint = f"Did you mean {' or '.join(near)}?" if near else "See --help for the settings that there are."
        raise ConfigError(f"{source} is not a setting.", hint=hint)
    try:
        return known[name].read(value, Path(origin.name).parent if origin.source == "file" else Path())
    except ValueError as error:
        given = str(value) if isinstance(value, Path) else value
        raise ConfigError(f"{source} is {given!r}: {error}.") from None


def _where(section: str, name: str, origin: SettingOrigin) -> str:
    return f"{name} in [{section}] of {origin.name}" if origin.source == "file" else origin.name


def _absolute(path: Path, folder: Path) -> Path:
    """The path without `~`, from the root on."""
    try:
        return (folder / path.expanduser()).absolute()
    except RuntimeError:
        raise ValueError("there is no such user's home") from None
    except FileNotFoundError:
        raise ValueError("the current folder does not exist any more: give the whole path") from None


def _plain(value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _read_section(path: Path, section: str) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))  # some editors begin with a mark
    except FileNotFoundError:
        raise NotFoundError(f"The configuration file {path} does not exist.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {path} is not TOML: {error}.", hint="Correct that line.") from None
    except OSError as error:
        raise ConfigError(f"The configuration file {path} cannot be read: {error.strerror}.", hint="") from None
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"[{section}] of {path} is not a table.", hint=f"Write [{section}] above its settings.")
    return table


def _from_text(about: Setting | None, text: str) -> Any:
    """A value of the environment: text, and lists are separated by commas."""
    if about is not None and get_origin(about.kind) is tuple:
        return tuple(part for part in text.split(",") if part)
    return text
