"""Configuration: flags over MOA_* environment over a TOML file, validated once, at the edge.

Pure but for reading the file and the environment that it is given. Every error names the setting, where it came from,
the value and what is allowed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for some takes a fifth of a program's start
from pydantic import BaseModel, ConfigDict, ValidationError

from moa_shared.errors import ConfigError, NotFoundError

CONFIG_VARIABLE = "MOA_CONFIG"

Settings = TypeVar("Settings", bound="SettingsBase")


class SettingsBase(BaseModel):
    """Base of all settings: frozen, and unknown names are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=False)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def load_settings(
    cls: type[Settings],
    section: str,
    flags: Mapping[str, Any],
    config_file: Path | None = None,
    environment: Mapping[str, str] = os.environ,
    shown: Callable[[str], str] = _flag,
) -> Settings:
    """Settings of one program.

    Args:
        cls: pydantic model of the settings.
        section: table of the TOML file ("server"); the environment's names are MOA_<SECTION>_<FIELD>.
        flags: from the command line; None and empty tuples count as not given.
        config_file: TOML file; None takes the one that MOA_CONFIG names, if any.
        shown: how messages name a setting that `flags` give.

    Raises:
        ConfigError: an unknown name or a value that is not allowed.
        NotFoundError: the file does not exist.
    """
    given: dict[str, Any] = {}
    origin: dict[str, str] = {}
    path = config_file or (Path(environment[CONFIG_VARIABLE]) if environment.get(CONFIG_VARIABLE) else None)
    if path is not None:
        for name, value in _read_section(path, section).items():
            given[name], origin[name] = value, f"{name} in [{section}] of {path}"
    prefix = f"MOA_{section.upper()}_"
    for variable, text in environment.items():
        if variable.startswith(prefix):
            name = variable[len(prefix) :].lower()
            given[name], origin[name] = _from_text(cls, name, text), variable
    for name, value in flags.items():
        if value is not None and value != ():
            given[name], origin[name] = value, shown(name)
    try:
        return cls.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = str(first["loc"][0]) if first["loc"] else section
        source = origin.get(name, name)
        if first["type"] == "extra_forbidden":
            raise ConfigError(
                f"{source} is not a setting.", hint=f"Known settings: {', '.join(sorted(cls.model_fields))}."
            ) from None
        if first["type"] == "missing":
            raise ConfigError(f"{name} is not set.", hint=f"Give --{name.replace('_', '-')}.") from None
        problem = first["msg"].removeprefix("Value error, ").rstrip(".")
        raise ConfigError(f"{source} is {first['input']!r}: {problem[:1].lower()}{problem[1:]}.") from None


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
