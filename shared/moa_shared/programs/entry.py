"""How the programs for developers end: every known error is one sentence and an exit code of the catalogue."""

from __future__ import annotations

import sys

import click

from moa_shared.errors import MoaError
from moa_shared.programs.missing_packages import missing_extra
from moa_shared.programs.standard_streams import open_standard_streams


def run_program(command: click.Command, program: str) -> None:
    """Runs a command line.

    Args:
        program: its name, which begins each sentence.
    """
    open_standard_streams()
    try:
        command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except MoaError as error:
        _refuse(program, error)
    except ModuleNotFoundError as error:
        if (told := missing_extra(error)) is None:
            raise
        _refuse(program, told)


def _refuse(program: str, error: MoaError) -> None:
    print(f"{program}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
