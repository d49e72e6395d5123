"""The command line. A command's module is imported when the command is used, so that `netsim --help` is instant."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from netsim.errors import NetsimError

# Name: (module, what it does). The modules import pydantic and more; this table is all that --help needs.
COMMANDS = {
    "run": ("links", "Run a command whose traffic passes through a link."),
    "proxy": ("links", "Put a link before a server, on a port of its own."),
    "replay": ("links", "Drive a link from a recorded trace."),
    "profiles": ("commands", "List the profiles."),
    "show": ("commands", "Print a profile and the delays and losses it amounts to."),
    "record": ("commands", "Measure a real link to a server into a profile or a trace."),
    "serve": ("commands", "Be the far end that `record` measures against."),
    "ctl": ("commands", "Change a running link, or list those that are running."),
    "report": ("commands", "Draw a run's outputs as one picture."),
    "clean": ("commands", "Remove what killed runs left."),
}
RETIRED = {  # commands and options, since 0.2.0: what there is instead
    "validate": "Its rules are tests of netsim now.",
    "netem": "`netsim show` prints the delays, losses and rates to give to tc.",
    "convert": "Every command reads traces of both formats.",
    "show --fields": "docs/netsim.md describes every field.",
    "replay --format": "The content of a trace says which format it has.",
}
PATH = click.Path(path_type=Path)


def open_standard_streams() -> None:
    """Opens what is closed of standard input, output and error on /dev/null: no socket may become descriptor 2."""
    for descriptor, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
        if getattr(sys, name) is None:  # as Python leaves it where the descriptor was closed
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (as long as the program)


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
        ours = args[1 : args.index("--")] if "--" in args else args[1:]
        for asked in (args[0], *(f"{args[0]} {word.partition('=')[0]}" for word in ours)):
            if asked in RETIRED:
                ctx.fail(f"Version 0.2.0 was the last with `netsim {asked}`. {RETIRED[asked]}")
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
