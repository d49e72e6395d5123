"""The command `completion` of a program: the script by which a shell completes its commands, options and values."""

from __future__ import annotations

import click

from moa_shared.programs.output import write_output

# How a user has it in each new shell.
INSTALL = {
    "bash": '# Bash 4.4 or newer. Add this line to ~/.bashrc:\n#   eval "$({program} completion bash)"\n',
    "zsh": '# Add this line to ~/.zshrc, after compinit:\n#   eval "$({program} completion zsh)"\n',
    "fish": "# Run once:\n#   {program} completion fish > ~/.config/fish/completions/{program}.fish\n",
}


def completion_command(program: str) -> click.Command:
    """The command of a program.

    Args:
        program: its name on the command line.
    """

    @click.command("completion")
    @click.argument("shell", type=click.Choice(list(INSTALL)))
    @click.pass_context
    def completion(context: click.Context, shell: str) -> None:
        """Print a script by which SHELL completes by Tab; its first lines say how to install it."""
        write_output(completion_script(context.find_root().command, program, shell))

    return completion


def completion_script(command: click.Command, program: str, shell: str) -> str:
    """The script for a shell, after how to install it."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    kinds = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    kind = kinds[shell](command, {}, program, f"_{program.replace('-', '_').upper()}_COMPLETE")
    # Not `source()`, which for bash starts one to ask for its version.
    return INSTALL[shell].replace("{program}", program) + (kind.source_template % kind.source_vars()).lstrip("\n")
