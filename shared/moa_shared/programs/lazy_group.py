"""A group of commands whose modules are imported when a command runs, so that --help and completion are instant."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110}  # of a program's group


class LazyCommand(click.Command):
    """Stands for a command in help, hints and completion.

    Args:
        path: of the command itself: "module:attribute".
        short_help: one line of help.
    """

    def __init__(self, name: str, path: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.path = path

    def load(self) -> click.Command:
        """Imports the command itself."""
        module, _, attribute = self.path.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


class LazyGroup(click.Group):
    """Commands by name, some of them as (module:attribute, one line of help).

    Args:
        lazy: those commands, in the order of the help.
    """

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
    """The command itself."""
    return command.load() if isinstance(command, LazyCommand) else command
