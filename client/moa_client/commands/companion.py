"""`moa-client companion`: chooses the small model that writes on this device while no server answers."""

from __future__ import annotations

import click
from moa_shared.programs.command_line import text


@click.group(invoke_without_command=True)
@click.pass_context
def companion(context: click.Context) -> None:
    """Choose the small model that writes here while no server answers; alone, say which, what it is worth, its size."""
    if context.invoked_subcommand is None:
        from moa_client.commands.actions import companion as actions

        actions.show()


@companion.command("set")
@click.argument("model", metavar="default|auto|NAME|FILE", type=text)
def set_(model: str) -> None:
    """Choose it for all chats and the daemon: one that `moa-server models` lists, a file, a folder or a hub id.

    auto is the one that the server offers; default is a demonstration of 135 million weights.
    """
    from moa_client.commands.actions import companion as actions

    actions.choose(model)


@companion.command()
def off() -> None:
    """Do without, and be offered none."""
    from moa_client.commands.actions import companion as actions

    actions.forget()
