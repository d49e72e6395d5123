"""What a program makes from its settings class: options, the command `config`, and the docs' table of options.

`load_settings` checks all values, so that a bad one reads the same from a flag, the environment and a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from moa_shared.programs.config import (
    CONFIG_VARIABLE,
    Setting,
    SettingOrigin,
    SettingsBase,
    flag_of,
    load_settings_and_origins,
    settings_of,
)
from moa_shared.programs.output import write_output
from moa_shared.programs.table import table
from moa_shared.programs.values import plain_kind
from moa_shared.text.plain_text import is_text

Command = TypeVar("Command", bound=Callable[..., Any])
PLACEHOLDERS: dict[object, str] = {int: "N", float: "X", str: "TEXT"}
JSON_FLAG = "--json"
_PIPE = r"\|"  # as a cell of a Markdown table has it


def text(value: str) -> str:
    """The type of an argument that is neither a setting nor a path.

    Raises:
        click.BadParameter: it is no text.
    """
    if not is_text(value):
        raise click.BadParameter(f"{value!r} is not text in UTF-8.")
    return value


def settings_options(
    cls: type[SettingsBase], section: str = "", without: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command one option per setting of a class, and `--config`, which it gets as `config_file`.

    Args:
        section: table of the TOML file; "": there is no such file, and no `--config`.
        without: fields that get no option.
    """

    def decorate(command: Command) -> Command:
        command = config_option(cls, section)(command) if section else command
        for about in reversed([about for name, about in settings_of(cls).items() if name not in without]):
            command = _parameter(about)(command)
        for name in cls.RETIRED:  # loading the settings refuses them, and says what there is instead
            names = flag_of(name), f"--no-{flag_of(name)[2:]}", name  # a switch, or with a value
            command = click.option(*names, is_flag=False, flag_value="on", hidden=True)(command)
        return command

    return decorate


def config_option(cls: type[SettingsBase], section: str) -> Callable[[Command], Command]:
    """Gives a command `--config`, which it gets as `config_file`: the file that is in force, or None."""
    return click.option(
        "--config",
        "config_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        envvar=CONFIG_VARIABLE,
        default=cls.usual_file,
        help=f"TOML file with a table [{section}].  [default: {cls.FILE_WORDS}]",
    )


def config_command(cls: type[SettingsBase], section: str) -> click.Command:
    """The command `config`: prints each setting that is in force, and where it comes from."""
    own = [name for name, about in settings_of(cls).items() if about.flag == JSON_FLAG]

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
    for about in settings_of(cls).values():
        option = _declaration(about).replace("/", "`, `")
        default = about.shown or f"`{_default_words(about)}`"
        cells = [f"`{option}`", default, about.text]
        lines.append(f"| {' | '.join(cell.replace('|', _PIPE) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def _parameter(about: Setting) -> Callable[[Command], Command]:
    if about.is_argument:
        return click.argument(about.name, metavar=about.flag, required=False)
    text = f"{about.text}  [default: {_default_words(about)}]"
    if about.kind is bool:
        return click.option(_declaration(about), about.name, default=None, help=text)
    return click.option(
        about.flag_of(),
        about.name,
        type=click.Path(path_type=Path) if plain_kind(about.kind) is Path else str,
        multiple=get_origin(about.kind) is tuple,
        metavar=_placeholder(about),
        help=text,
        shell_complete=_completion(about),
    )


def _completion(about: Setting) -> Callable[[click.Context, click.Parameter, str], list[str]] | None:
    """Completes the words that a value may be; None: its type completes it."""
    words = about.words
    return (lambda ctx, param, begun: [word for word in words if word.startswith(begun)]) if words else None


def _declaration(about: Setting) -> str:
    """An option with its placeholder, or both spellings of a switch."""
    flag = about.flag_of()
    if about.kind is bool:
        return f"{flag}/{about.flag_of(False)}"
    return flag if about.is_argument else f"{flag} {_placeholder(about)}"


def _placeholder(about: Setting) -> str:
    kind = plain_kind(about.kind)
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    return about.metavar or PLACEHOLDERS.get(kind, "TEXT")


def _default_words(about: Setting) -> str:
    return about.shown or _words(about.default)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_table(settings: SettingsBase, origins: dict[str, SettingOrigin]) -> str:
    rows = [("setting", "value", "from")]
    for name, about in settings_of(type(settings)).items():
        given, origin = getattr(settings, name), origins[name]
        value = _default_words(about) if given == about.default else _words(given)
        rows.append((name, value, f"{origin.source} {origin.name}".rstrip()))
    return table(rows)


def _as_json(settings: SettingsBase, origins: dict[str, SettingOrigin]) -> str:
    import json

    shown = {
        name: {"value": value, "source": origins[name].source, "name": origins[name].name or None}
        for name, value in settings.json_values().items()
    }
    return json.dumps(shown, indent=2) + "\n"
