"""The command line. A command's module is imported when the command is used, so that `netsim --help` is instant."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from netsim.cli.standard_streams import open_standard_streams
from netsim.errors import NetsimError

# Name: (module, what it does). The modules import pydantic and more; this table is all that --help needs.
COMMANDS = {
    "run": ("links", "Run a command whose traffic passes through a link."),
    "proxy": ("links", "Put a link before a server, on a port of its own."),
    "replay": ("links", "Drive a link from a recorded trace."),
    "profiles": ("profiles", "List the profiles."),
    "show": ("profiles", "Print a profile and the delays and losses it amounts to."),
    "netem": ("profiles", "Print the tc commands that make a kernel behave like a profile."),
    "convert": ("profiles", "Convert a trace between formats."),
    "record": ("measure", "Measure a real link to a server into a profile or a trace."),
    "serve": ("measure", "Be the far end that `record` measures against."),
    "ctl": ("control", "Change a running link, or list those that are running."),
    "report": ("control", "Draw a run's outputs as one picture."),
    "clean": ("control", "Remove what killed runs left."),
}
RETIRED = {"validate": "Its rules are tests of netsim now."}  # since 0.2.0


class _LazyGroup(click.Group):
    def main(self, *arguments: Any, **options: Any) -> Any:
        open_standard_streams()
        return super().main(*arguments, **options)

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        for name, (_, text) in COMMANDS.items():  # for help, hints and completion
            self.add_command(click.Command(name, short_help=text))

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in RETIRED:
            ctx.fail(f"Version 0.2.0 was the last with `netsim {args[0]}`. {RETIRED[args[0]]}")
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and command.name in COMMANDS:
            command = getattr(import_module(f"netsim.cli.{COMMANDS[command.name][0]}"), command.name)
        return name, command, rest

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NetsimError as error:
            click.echo(f"netsim: {error.message}", err=True)
            if error.hint:
                click.echo(f"  {error.hint}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moa-split", prog_name="netsim")
def main() -> None:
    """Links that behave like 4G, 5G and yesterday's train ride, for any TCP client and server."""
