"""How programs begin, and how those for developers end: every known error is one sentence and an exit code."""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path

import click

from moa_shared.errors import MoaError
from moa_shared.programs.missing_packages import missing_extra
from moa_shared.programs.standard_streams import open_standard_streams

FOLDERS = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")


def prepare_process(environment: MutableMapping[str, str] = os.environ) -> None:
    """To be called first by each program: opens its standard streams, and corrects its environment.

    A relative folder is to be ignored, as the XDG Base Directory Specification has it. No proxy is between programs of
    one machine. At the program's end its memory is not searched for garbage, which takes 0.05 s, and 1 s with torch and
    transformers.
    """
    atexit.register(gc.freeze)
    open_standard_streams()
    for name in FOLDERS:
        if not Path(environment.get(name, "/")).is_absolute():
            del environment[name]
    if any(name.lower().endswith("_proxy") for name in environment):
        from moa_shared.programs.proxies import except_loopback

        except_loopback(environment)


def run_program(command: click.Command, program: str) -> None:
    """Runs a command line.

    Args:
        program: its name, which begins each sentence.
    """
    prepare_process()
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
