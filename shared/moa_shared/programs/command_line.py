"""What a program makes from its settings model: options, the command `config`, and the docs' table of options.

The model checks all values, so that a bad one reads the same from a flag, the environment and a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from moa_shared.programs.config import Origin, SettingsBase, flag_of, load_settings_and_origins, traits_of
from moa_shared.programs.output import write_output

Command = TypeVar("Command", bound=Callable[..., Any])
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}  # of a program's group
PLACEHOLDERS: dict[object, str] = {int: "N", float: "X", str: "TEXT"}
JSON_FLAG = "--json"
_PIPE = r"\|"  # as a cell of a Markdown table has it


def settings_options(
    cls: type[SettingsBase], section: str, without: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command one option per field of a settings model, and `--config`, which it gets as `config_file`.

    Args:
        section: table of the TOML file.
        without: fields that get no option.
    """

    def decorate(command: Command) -> Command:
        text = f"TOML file with a table [{section}].  [default: the one that MOA_CONFIG names]"
        command = click.option("--config", "config_file", metavar="FILE", type=click.Path(path_type=Path), help=text)(
            command
        )
        for name in reversed([name for name in cls.model_fields if name not in without]):
            command = _parameter(cls, name)(command)
        return command

    return decorate


def config_command(cls: type[SettingsBase], section: str) -> click.Command:
    """The command `config`: prints each setting that is in force, and where it comes from."""
    own = [name for name in cls.model_fields if flag_of(cls, name) == JSON_FLAG]

    @click.command("config")
    @settings_options(cls, section, own)
    @click.option(JSON_FLAG, "as_json", is_flag=True, help="Print one JSON object.")
    def config(as_json: bool, config_file: Path | None, **flags: Any) -> None:
        """Print each setting that is in force, and where it comes from: an option, the environment, a file, default."""
        settings, origins = load_settings_and_origins(cls, section, flags, config_file)
        write_output((_as_json if as_json else _as_table)(settings, origins))

    return config


def options_table(cls: type[SettingsBase]) -> str:
    """The options of a program as a Markdown table."""
    lines = ["| option | default | |", "| --- | --- | --- |"]
    for name, field in cls.model_fields.items():
        option = _declaration(cls, name).replace("/", "`, `")
        default = traits_of(cls, name).get("shown") or f"`{_default_words(cls, name)}`"
        cells = [f"`{option}`", default, str(field.description)]
        lines.append(f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _parameter(cls: type[SettingsBase], name: str) -> Callable[[Command], Command]:
    field = cls.model_fields[name]
    if _is_argument(cls, name):
        return click.argument(name, metavar=flag_of(cls, name), required=False)
    text = f"{field.description}  [default: {_default_words(cls, name)}]"
    if field.annotation is bool:
        return click.option(_declaration(cls, name), name, default=None, help=text)
    is_path = Path in (field.annotation, *get_args(field.annotation))
    return click.option(
        flag_of(cls, name),
        name,
        type=click.Path(path_type=Path) if is_path else str,
        multiple=get_origin(field.annotation) is tuple,
        metavar=_placeholder(cls, name),
        help=text,
    )


def _declaration(cls: type[SettingsBase], name: str) -> str:
    """An option with its placeholder, or both spellings of a switch."""
    flag = flag_of(cls, name)
    if cls.model_fields[name].annotation is bool:
        return f"{flag}/{flag_of(cls, name, False)}"
    return flag if _is_argument(cls, name) else f"{flag} {_placeholder(cls, name)}"


def _is_argument(cls: type[SettingsBase], name: str) -> bool:
    return not flag_of(cls, name).startswith("-")


def _placeholder(cls: type[SettingsBase], name: str) -> str:
    kind = cls.model_fields[name].annotation
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return traits_of(cls, name).get("metavar") or PLACEHOLDERS.get(kind, "TEXT")


def _default_words(cls: type[SettingsBase], name: str) -> str:
    return traits_of(cls, name).get("shown") or _words(cls.model_fields[name].default)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_table(settings: SettingsBase, origins: dict[str, Origin]) -> str:
    cls = type(settings)
    rows = [("setting", "value", "from")]
    for name, origin in origins.items():
        is_default = getattr(settings, name) == cls.model_fields[name].default
        value = _default_words(cls, name) if is_default else _words(getattr(settings, name))
        rows.append((name, value, f"{origin.source} {origin.name}".rstrip()))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return "".join(f"{name:{widths[0]}}  {value:{widths[1]}}  {source}\n" for name, value, source in rows)


def _as_json(settings: SettingsBase, origins: dict[str, Origin]) -> str:
    values = settings.model_dump(mode="json")
    shown = {
        name: {"value": values[name], "source": origin.source, "name": origin.name or None}
        for name, origin in origins.items()
    }
    return json.dumps(shown, indent=2) + "\n"
