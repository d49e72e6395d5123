"""The command line. A command's module is imported when the command is used, so that `netsim --help` is instant."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

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
    "ctl": ("control", "Change a running link."),
    "report": ("control", "Draw a run's outputs as one HTML file."),
    "validate": ("measure", "Measure whether links on this machine do what they say."),
    "clean": ("control", "Remove what killed runs left."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"netsim.cli.{COMMANDS[cmd_name][0]}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NetsimError as error:
            click.echo(f"netsim: {error.message}", err=True)
            if error.hint:
                click.echo(f"  {error.hint}", err=True)
            ctx.exit(error.exit_code)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="moa", prog_name="netsim")
def main() -> None:
    """Links that behave like 4G, 5G and yesterday's train ride, for any TCP client and server."""
