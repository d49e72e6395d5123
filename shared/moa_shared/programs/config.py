"""Configuration: flags over MOA_* environment over a TOML file, validated once, at the edge.

A settings model says everything about its settings once: type, default, limits, help. `programs/command_line.py` makes
options and tables from it. Pure but for reading the file and the environment that it is given. Every error names the
setting, where it came from, the value and what is allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some takes a fifth of a program's start
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moa_shared.errors import ConfigError, NotFoundError

CONFIG_VARIABLE = "MOA_CONFIG"

Settings = TypeVar("Settings", bound="SettingsBase")
Value = TypeVar("Value")


class SettingsBase(BaseModel):
    """Base of all settings: frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


def setting(
    default: Value,
    text: str,
    metavar: str = "",
    *,
    shown: str = "",
    flag: str = "",
    variable: str = "",
    **limits: float,
) -> Value:
    """A field of a settings model.

    Args:
        default: its value where nobody gives one.
        text: what help and docs say about it: sentences.
        metavar: placeholder for its value; "": made from the type.
        shown: the default in words, where the value itself says little ("any").
        flag: its option, or the name of an argument ("MODEL"); "": an option with the field's name.
        variable: another environment variable that gives it, after all other sources.
        limits: pydantic's ge, gt, le, lt.
    """
    extra = {"metavar": metavar, "shown": shown, "flag": flag, "variable": variable}
    return cast("Value", Field(default, description=text, json_schema_extra=cast("Any", extra), **cast("Any", limits)))


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the value of a setting comes from.

    Args:
        source: the kind of place.
        name: the flag, the environment variable or the file's path.
    """

    source: Literal["command line", "environment", "file", "default"]
    name: str = ""


DEFAULT = Origin("default")


def traits_of(cls: type[SettingsBase], name: str) -> dict[str, str]:
    """What `setting` was told about a field besides its text; empty for a plain field."""
    extra = cls.model_fields[name].json_schema_extra
    return {key: str(value) for key, value in extra.items() if value} if isinstance(extra, dict) else {}


def flag_of(cls: type[SettingsBase], name: str, value: object = None) -> str:
    """The command line's option for a field; that of a switch depends on the value."""
    flag = traits_of(cls, name).get("flag") or f"--{name.replace('_', '-')}"
    return f"--no-{flag.removeprefix('--')}" if value is False else flag


def load_settings(
    cls: type[Settings],
    section: str,
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    shown: Callable[[str], str] | None = None,
) -> Settings:
    """Settings of one program.

    Args:
        cls: pydantic model of the settings.
        section: table of the TOML file ("server"); the environment's names are MOA_<SECTION>_<FIELD>.
        flags: from the command line; None and empty tuples count as not given.
        config_file: TOML file; None takes the one that MOA_CONFIG names, if any.
        shown: how messages name a setting that `flags` give; None: as its option.

    Raises:
        ConfigError: an unknown name or a value that is not allowed.
        NotFoundError: the file does not exist.
    """
    return load_settings_and_origins(cls, section, flags, config_file, environment, shown)[0]


def load_settings_and_origins(
    cls: type[Settings],
    section: str,
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    shown: Callable[[str], str] | None = None,
) -> tuple[Settings, dict[str, Origin]]:
    """As `load_settings`; also where the value of each field comes from."""
    given: dict[str, Any] = {}
    origins: dict[str, Origin] = {}
    for name in cls.model_fields:
        variable = traits_of(cls, name).get("variable", "")
        if environment.get(variable):
            given[name], origins[name] = environment[variable], Origin("environment", variable)
    path = config_file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    if path is not None:
        for name, value in _read_section(path, section).items():
            given[name], origins[name] = value, Origin("file", str(path))
    prefix = f"MOA_{section.upper()}_"
    for variable, text in environment.items():
        if variable.startswith(prefix):
            name = variable[len(prefix) :].lower()
            given[name], origins[name] = _from_text(cls, name, text), Origin("environment", variable)
    for name, value in flags.items():
        if value is not None and value != ():
            given[name] = value
            origins[name] = Origin("command line", shown(name) if shown is not None else flag_of(cls, name, value))
    try:
        settings = cls.model_validate(given)
    except ValidationError as error:
        raise _refusal(cls, section, error, origins) from None
    return settings, {name: origins.get(name, DEFAULT) for name in cls.model_fields}


def _refusal(
    cls: type[SettingsBase], section: str, error: ValidationError, origins: Mapping[str, Origin]
) -> ConfigError:
    """The first thing that pydantic refuses, as one sentence."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else section
    origin = origins.get(name, Origin("default", name))
    source = f"{name} in [{section}] of {origin.name}" if origin.source == "file" else origin.name
    if first["type"] == "extra_forbidden":
        return ConfigError(
            f"{source} is not a setting.", hint=f"Known settings: {', '.join(sorted(cls.model_fields))}."
        )
    problem = first["msg"].removeprefix("Value error, ").rstrip(".")
    return ConfigError(f"{source} is {first['input']!r}: {problem[:1].lower()}{problem[1:]}.")


def _read_section(path: Path, section: str) -> dict[str, Any]:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
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


def _from_text(cls: type[SettingsBase], name: str, text: str) -> Any:
    """Environment values are text; pydantic reads numbers and booleans from it, lists are separated by commas."""
    field = cls.model_fields.get(name)
    if field is not None and str(field.annotation).startswith(("tuple", "list")):
        return tuple(part for part in text.split(",") if part)
    return text
