"""The command line. Commands are imported when they are used, so that `netsim --help` is there at once."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

from netsim.errors import NetsimError

# Name: (module, what it does). The modules bring pydantic and more; this table is all that --help needs.
COMMANDS = {
    "run": ("run", "Run a command whose traffic passes through a link."),
    "proxy": ("proxy", "Put a link before a server, on a port of its own."),
    "replay": ("replay", "Drive a link from a recorded trace."),
    "profiles": ("profiles", "List the profiles."),
    "show": ("show", "Print a profile, with what it comes to."),
    "netem": ("netem", "Print the tc commands that make a kernel behave like a profile."),
    "convert": ("convert", "Convert a trace between formats."),
    "record": ("record", "Measure a real link to a server into a profile or a trace."),
    "serve": ("serve", "Be the far end that `record` measures against."),
    "ctl": ("ctl", "Change a link that is running."),
    "report": ("report", "Draw a run's outputs as one HTML file."),
    "validate": ("validate", "Measure whether links on this machine do what they say."),
    "clean": ("clean", "Remove what killed runs left behind."),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"netsim.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = module.command
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
