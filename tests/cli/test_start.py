"""What starting a program imports, what it says to a command or option that does not exist, and its manual pages."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import moa_client.cli
import pytest

from tests.cli.client_program import Run
from tests.cli.conftest import PROGRAMS
from tests.support.programs import CHECKOUT, environment

ENVIRONMENT = environment(
    "proto", "shared", "server", "client", "netsim", "training", "bench", "kernels", COLUMNS="110"
)
HEAVY = {
    *("torch", "transformers", "grpc", "google", "numpy", "pydantic", "asyncio", "prompt_toolkit", "rich", "jinja2"),
    *("tokenizers", "huggingface_hub", "structlog", "logging", "tomllib", "platformdirs", "yaml"),
}
HEAVIEST = HEAVY - {"asyncio", "logging", "rich", "tomllib", "platformdirs"}
REPORT = """
import atexit, json, os, sys
atexit.register(lambda: os.write(2, json.dumps(sorted({{name.partition(".")[0] for name in sys.modules}})).encode()))
from {module} import {function}
sys.argv[:] = {arguments!r}
{function}()
"""


def imported(*arguments: str) -> set[str]:
    """The packages that a program has imported when it ends."""
    module, _, function = PROGRAMS[arguments[0]].partition(":")
    script = REPORT.format(module=module, function=function, arguments=list(arguments))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=ENVIRONMENT, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith((b"Usage: ", b"moa-", b"netsim", b"#", b"plain,")), done.stdout
    return set(json.loads(done.stderr))


def test_nobody_waits_for_what_help_does_not_need() -> None:
    client = [["moa-client", name, "--help"] for name in moa_client.cli.COMMANDS if name in ("chat", "config")]
    others = [[program, "--help"] for program in PROGRAMS]
    more = [["moa-client", "--version"], ["moa-server", "serve", "--help"]]
    for arguments in [*client, *others, *more]:
        assert not imported(*arguments) & HEAVY, arguments
    for name in moa_client.cli.COMMANDS:
        assert not imported("moa-client", name, "--help") & HEAVIEST, name
    assert not imported("moa-bench", "single", "--help") & {"torch", "grpc", "transformers", "numpy"}


def test_a_chat_through_the_daemon_needs_no_arrays_no_wire_and_no_models() -> None:
    script = """import json, sys
import moa_client.app, moa_client.commands.chat
before = sorted(sys.modules)
import moa_client.chat.page, moa_client.chat.terminal
shown = sorted(sys.modules)
import moa_client.in_process
print(json.dumps([before, shown, sorted(sys.modules)]))"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=ENVIRONMENT, timeout=60, check=True)
    single, chat, alone = ({name.partition(".")[0] for name in names} for names in json.loads(done.stdout))
    assert single & HEAVY <= {"asyncio", "logging", "rich", "tomllib"}
    assert chat & HEAVY <= {"asyncio", "logging", "rich", "tomllib", "prompt_toolkit"}
    assert not chat & {"moa", "moa_kernels", "sqlite3"}
    assert not alone & {"pydantic", "mcp"}  # which one without a daemon needs for tools only


@pytest.mark.parametrize(("words", "message"), [
    ("moa-client caht", "No such command 'caht'. Did you mean 'chat'?"),
    ("moa-client chat --temprature 1", "No such option '--temprature'. Did you mean '--temperature'?"),
    ("moa-server sreve", "No such command 'sreve'. Did you mean 'serve'?"),
    ("moa-train evalute", "No such command 'evalute'. Did you mean 'evaluate'?"),
    ("netsim porxy", "No such command 'porxy'. Did you mean 'proxy'?"),
])  # fmt: skip
def test_misspelt_commands_and_options_get_a_hint(program: Run, words: str, message: str) -> None:
    status, out, err = program(*words.split())
    assert (status, out, err.splitlines()[-1]) == (2, "", f"Error: {message}")


@pytest.mark.parametrize(("words", "expected"), [
    (["moa-client", "ch"], ["chat"]), (["moa-client", "chat", "--drafti"], ["--drafting"]),
    (["moa-client", "chat", "--drafting", ""], ["auto", "server", "device", "off"]),
    (["moa-client", "chat", "--drafter", "d"], ["default", "deep"]),
    (["moa-client", "config", "--drafting", "s"], ["server"]),
    (["moa-server", "serve", "--execution", "f"], ["float32"]), (["netsim", "rep"], ["replay", "report"]),
])  # fmt: skip
def test_tab_completes_commands_options_and_values(
    program: Run, monkeypatch: pytest.MonkeyPatch, words: list[str], expected: list[str]
) -> None:
    monkeypatch.setenv(f"_{words[0].replace('-', '_').upper()}_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    _, out, err = program(words[0])
    assert [line.partition(",")[2] for line in out.splitlines()] == expected, err


def test_a_device_needs_only_what_its_installation_has() -> None:
    """With the extra `client` alone: no library of forms, of servers or of training."""
    script = """
import importlib, pkgutil, sys
sys.modules.update(dict.fromkeys(("llguidance", "torch", "transformers", "gguf", "safetensors", "prometheus_client", "cryptography", "mcp")))
import moa_client
for module in pkgutil.walk_packages(moa_client.__path__, "moa_client."):
    if not module.name.startswith("moa_client.mcp.") and module.name != "moa_client.cli":
        importlib.import_module(module.name)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, env=ENVIRONMENT, timeout=60, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_each_program_and_command_has_a_page_in_which_troff_finds_no_mistake(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("man_pages", CHECKOUT / "docs" / "man_pages.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pages: list[Path] = module.write_pages(tmp_path)
    names = {page.name for page in pages if page.parent.name == "man1"}
    assert names > {"moa-client.1", "moa-client-chat.1", "moa-server-serve.1", "moa-train-fit.1", "netsim-run.1"}
    if shutil.which("groff") is not None:
        command = ["groff", "-K", "utf8", "-man", "-ww", "-z", *map(str, pages)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
