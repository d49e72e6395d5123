"""How programs begin and end: standard streams, and every known error as one sentence and an exit code.

No command that installs something names moa by its name alone: no package registry has it, and there the name may be a
stranger's.
"""

import atexit
import errno
import gc
import json
import os
import shlex
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, suppress
from importlib.machinery import PathFinder
from importlib.metadata import distributions
from pathlib import Path
from typing import TextIO
from urllib.parse import urlsplit
from urllib.request import url2pathname

import click

from moa_shared.errors import ConfigError, MoaError, OutputError


def prepare_process(environment: MutableMapping[str, str] = os.environ) -> None:
    """To be called first by each program: opens its standard streams, and corrects its environment.

    A relative folder is to be ignored, as the XDG Base Directory Specification has it. No proxy is between programs of
    one machine.
    """
    atexit.register(gc.freeze)  # a search for garbage at the end takes 0.05 s, and 1 s with torch and transformers
    open_standard_streams()
    for name in (f"XDG_{each}" for each in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME", "RUNTIME_DIR", "STATE_HOME")):
        if not Path(environment.get(name, "/")).is_absolute():
            del environment[name]
    if any(name.lower().endswith("_proxy") for name in environment):
        from moa_shared.programs.addresses import except_loopback

        except_loopback(environment)


def run_program(command: click.Command, program: str) -> None:
    prepare_process()
    try:
        command.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except click.Abort:
        print("Stopped.", file=sys.stderr)
        sys.exit(130)
    except (MoaError, ModuleNotFoundError) as error:
        told = missing_extra(error) if isinstance(error, ModuleNotFoundError) else error
        if told is None:
            raise
        print(f"{program}: {told}", file=sys.stderr)
        sys.exit(told.exit_code)


# Modules that a program may lack, by the extra that has them.
DISTRIBUTION, DRAFTERS_WHEEL = "moa-split", "moa_split_drafters-*.whl"

_MODULES = {
    "torch": "torch transformers accelerate safetensors",
    "train": "zstandard",
    "cluster": "ray",
    "report": "matplotlib",
    "mcp": "mcp",
    "bench": "grpc structlog prompt_toolkit gguf tokenizers huggingface_hub jinja2",
}
EXTRAS = {module: extra for extra, modules in _MODULES.items() for module in modules.split()}


def missing_extra(error: ModuleNotFoundError) -> ConfigError | None:
    """The error for a user who lacks a module; None if it is in no extra, which is a defect."""
    module = (error.name or "").partition(".")[0]
    if (extra := EXTRAS.get(module)) is None:
        return None
    return ConfigError(f"This needs {module}, which is not installed.", hint=f"Install it: {install_extra(extra)}.")


def pip_install() -> str:
    """What installs into the environment of this program: its pip, or uv, which makes environments without pip."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if PathFinder.find_spec("pip") else f"uv pip install --python {python}"


def install_extra(extra: str) -> str:
    """The command that adds an extra of moa to this installation, from where that came from."""
    option, source = _origin()
    if not source:
        return f"{pip_install()} 'WHEEL[{extra}]', with the path of moa's wheel for WHEEL"
    whole = f"{source}[{extra}]" if source.startswith("/") else f"{DISTRIBUTION}[{extra}] @ {source}"
    return f"{pip_install()} {option}{shlex.quote(whole)}"


def install_drafters() -> str:
    """The command that adds the default model's drafters, from the checkout or release that this installation is of."""
    option, source = _origin()
    if source.startswith("/"):
        if Path(source, "drafters").is_dir():
            return f"{pip_install()} {option}{shlex.quote(f'{source}/drafters')}"
        for wheel in Path(source).parent.glob(DRAFTERS_WHEEL):
            return f"{pip_install()} {shlex.quote(str(wheel))}"
    return f"{pip_install()} {DRAFTERS_WHEEL}, with that file of the release"


def _origin() -> tuple[str, str]:
    """The option and the path or URL that moa was installed with (PEP 610); the latter is empty if it is not known."""
    # A checkout has metadata too, which say nothing of that.
    records = (each.read_text("direct_url.json") for each in distributions(name=DISTRIBUTION))
    told = json.loads(next(filter(None, records), "{}"))
    url = told.get("url", "")
    if url.startswith("file:"):
        path = url2pathname(urlsplit(url).path)
        is_editable = told.get("dir_info", {}).get("editable", False)
        return "--editable " if is_editable else "", path if Path(path).exists() else ""
    if repository := told.get("vcs_info"):
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return "", url


def open_standard_streams() -> None:
    """Opens what is closed of standard input, output and error, before a socket or a database takes its number."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free: this one
        if getattr(sys, name) is None:  # as Python leaves it where the descriptor was closed
            setattr(sys, name, open(descriptor, mode, closefd=False))  # noqa: SIM115 (as long as the program)


def write_output(text: str) -> None:
    """Writes to standard output, at once and all of it, also where another program has made it non-blocking.

    BrokenPipeError: its reader has enough. OutputError: it cannot be written.
    """
    with suppress(OSError, ValueError):
        os.set_blocking(sys.stdout.fileno(), True)
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise error if isinstance(error, BrokenPipeError) else _unwritable(error) from None


@contextmanager
def output_errors() -> Iterator[None]:
    """Wraps a whole program, for help texts and lists, which are not written by `write_output`.

    Characters that the locale lacks are written as "?": one that is not UTF-8 lacks most.
    """
    if (reconfigure := getattr(sys.stdout, "reconfigure", None)) is not None:
        reconfigure(errors="replace")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        is_full = error.errno == errno.ENOSPC and error.filename is None
        raise _unwritable(error) if is_full else error from None


def close_output() -> None:
    """Discards all further output, at exit too: what is still held would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unwritable(error: OSError) -> OutputError:
    close_output()
    return OutputError(f"Standard output cannot be written: {error.strerror or error}.")


class StartLine:
    """One line that is overwritten, and cleared at the end."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream, self._shown = stream or sys.stderr, ""
        self._can_clear = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        if self._can_clear and text != self._shown:
            self._stream.write(f"\r{text}\x1b[K\r" if text else "\r\x1b[K")
            self._stream.flush()
            self._shown = text

    def clear(self) -> None:
        self.show("")
