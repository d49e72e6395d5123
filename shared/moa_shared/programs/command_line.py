"""What a program makes from its settings class: options, the command `config`, and the docs' table of options.

`load_settings` checks all values, so that a bad one reads the same from a flag, the environment and a file. Commands
whose modules are imported when they run keep --help and completion instant.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click

from moa_shared.errors import ConfigError
from moa_shared.plain_text import is_text
from moa_shared.programs.config import (
    CONFIG_VARIABLE,
    Setting,
    SettingsBase,
    flag_of,
    load_settings_and_origins,
    plain_kind,
    settings_of,
)
from moa_shared.programs.entry import write_output

Command = TypeVar("Command", bound=Callable[..., Any])
JSON_FLAG = "--json"


def text(value: str) -> str:
    """The type of an argument that is neither a setting nor a path."""
    if not is_text(value):
        raise click.BadParameter(f"{value!r} is not text in UTF-8.")
    return value


def settings_options(
    cls: type[SettingsBase], section: str = "", without: Sequence[str] = ()
) -> Callable[[Command], Command]:
    """Gives a command one option per setting of a class, and `--config`, which it gets as `config_file`.

    `section`: table of the TOML file; "": no `--config`. `without`: fields that get no option.
    """

    def decorate(command: Command) -> Command:
        command = config_option(cls, section)(command) if section else command
        for about in reversed([about for name, about in settings_of(cls).items() if name not in without]):
            command = _parameter(about)(command)
        for name in cls.RETIRED:  # loading the settings refuses them, and says what there is instead
            if name in without:
                continue
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
    own = [name for name, about in settings_of(cls).items() if about.flag == JSON_FLAG]

    @click.command("config")
    @settings_options(cls, section, own)
    @click.option(JSON_FLAG, "as_json", is_flag=True, help="Print one JSON object.")
    def config(as_json: bool, config_file: Path | None, **flags: Any) -> None:
        """Print each setting that is in force, and where it comes from: an option, the environment, a file, default."""
        settings, origins = load_settings_and_origins(cls, section, flags, config_file)
        if as_json:
            shown = {
                name: {"value": value, "source": origins[name].source, "name": origins[name].name or None}
                for name, value in settings.json_values().items()
            }
            write_output(json.dumps(shown, indent=2) + "\n")
            return
        rows = [("setting", "value", "from")]
        for name, about in settings_of(cls).items():
            given, origin = getattr(settings, name), origins[name]
            value = _default_words(about) if given == about.default else _words(given)
            rows.append((name, value, f"{origin.source} {origin.name}".rstrip()))
        write_output(table(rows))

    return config


def options_table(cls: type[SettingsBase]) -> str:
    lines = ["| option | default | |", "| --- | --- | --- |"]
    for about in settings_of(cls).values():
        option = _declaration(about).replace("/", "`, `")
        default = about.shown or f"`{_default_words(about)}`"
        cells = (cell.replace("|", r"\|") for cell in (f"`{option}`", default, about.text))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _parameter(about: Setting) -> Callable[[Command], Command]:
    if about.is_argument:
        return click.argument(about.name, metavar=about.flag, required=False)
    text, words = f"{about.text}  [default: {_default_words(about)}]", about.words
    if about.kind is bool:
        return click.option(_declaration(about), about.name, default=None, help=text)
    parts = get_args(about.kind) if get_origin(about.kind) is tuple else ()
    complete = (lambda ctx, param, begun: [word for word in words if word.startswith(begun)]) if words else None
    return click.option(
        about.flag_of(),
        about.name,
        type=click.Path(path_type=Path) if plain_kind(about.kind) is Path else str,
        multiple=Ellipsis in parts,
        nargs=1 if not parts or Ellipsis in parts else len(parts),
        metavar=_placeholder(about),
        help=text,
        shell_complete=complete,  # None: its type completes it
    )


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
    return about.metavar or {int: "N", float: "X"}.get(kind, "TEXT")


def _default_words(about: Setting) -> str:
    return about.shown or _words(about.default)


def _words(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}  # of a program's group


class LazyCommand(click.Command):
    """Stands for a command in help, hints and completion."""

    def __init__(self, name: str, path: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.path = path


class LazyGroup(click.Group):
    """Commands by name, some of them as (module:attribute, one line of help)."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, tuple[str, str]] = {}, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, (path, short_help) in lazy.items():
            self.add_command(LazyCommand(name, path, short_help))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, loaded(command) if command is not None else None, rest


def loaded(command: click.Command) -> click.Command:
    if isinstance(command, LazyCommand):
        module, _, attribute = command.path.partition(":")
        command = getattr(import_module(module), attribute)
    return command


def retired_command(group: click.Group, name: str, hint: str) -> None:
    """Refuses a command of an earlier version, whatever is given to it."""

    @group.command(name, hidden=True, add_help_option=False, context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1)
    def refuse(words: tuple[str, ...]) -> None:
        raise ConfigError(f"{name} is not a command any more: moa 0.2.0 was the last that had it.", hint=hint)


def table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> str:
    """Rows with their cells below each other, two spaces apart; `right`: the columns that end below each other."""
    columns = [
        [cell.rjust(width) if index in right else cell.ljust(width) for cell in column]
        for index, column in enumerate(zip(*rows, strict=True))
        for width in (max(map(len, column)),)
    ]
    return "".join(f"{'  '.join(cells).rstrip()}\n" for cells in zip(*columns, strict=True))
