"""How programs begin and end."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from moa_shared.programs import entry
from moa_shared.programs.entry import EXTRAS, StartLine, install_drafters, install_extra, missing_extra, prepare_process

from tests.support.messages import steady
from tests.support.programs import CHECKOUT
from tests.unit.moa_shared.programs.test_machine import Terminal

PIP = f"{sys.executable} -m pip install "


def test_the_environment_is_corrected() -> None:
    """Relative folders are ignored, and programs of one machine have no proxy between them."""
    environment = {"XDG_DATA_HOME": "data", "XDG_STATE_HOME": "", "XDG_CACHE_HOME": "/cache", "HOME": "home"}
    prepare_process(environment)
    assert environment == {"XDG_CACHE_HOME": "/cache", "HOME": "home"}
    environment = {"ALL_PROXY": "http://proxy:1"}
    prepare_process(environment)
    assert "127.0.0.1" in environment["no_proxy"].split(",")


def test_a_module_is_named_by_its_extra() -> None:
    told = missing_extra(ModuleNotFoundError("No module named 'zstandard'", name="zstandard.backend"))
    assert told is not None
    words = (
        "This needs zstandard, which is not installed. Install it: PYTHON -m pip install --editable 'CHECKOUT[train]'."
    )
    assert steady(str(told)) == words
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))["project"]
    assert {*EXTRAS.values()} <= {*project["optional-dependencies"]}


@pytest.mark.parametrize(("told", "extra", "drafters"), [
    (
        {"url": "file://TMP/my%20checkout", "dir_info": {"editable": True}},
        "--editable 'TMP/my checkout[mcp]'",
        "--editable 'TMP/my checkout/drafters'",
    ),
    ({"url": "file://TMP/my%20checkout", "dir_info": {}}, "'TMP/my checkout[mcp]'", "'TMP/my checkout/drafters'"),
    (
        {"url": "file://TMP/dist/moa_split-1-py3.whl", "archive_info": {}},
        "'TMP/dist/moa_split-1-py3.whl[mcp]'",
        "TMP/dist/moa_split_drafters-2-py3.whl",
    ),
    (
        {"url": "https://x.example/moa", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
        "'moa-split[mcp] @ git+https://x.example/moa@abc'",
        "moa_split_drafters-*.whl, with that file of the release",
    ),
    (
        None,
        "'WHEEL[mcp]', with the path of moa's wheel for WHEEL",
        "moa_split_drafters-*.whl, with that file of the release",
    ),
])  # fmt: skip
def test_a_hint_is_for_this_installation(
    told: object, extra: str, drafters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my checkout" / "drafters").mkdir(parents=True)
    (tmp_path / "dist").mkdir()
    for name in ("moa_split-1-py3.whl", "moa_split_drafters-2-py3.whl"):
        (tmp_path / "dist" / name).touch()
    text = json.dumps(told).replace("TMP", str(tmp_path)) if told else None
    found = [SimpleNamespace(read_text={"direct_url.json": each}.get) for each in (None, text)]  # a checkout's first
    monkeypatch.setattr(entry, "distributions", lambda name: found)
    monkeypatch.setattr("importlib.machinery.PathFinder.find_spec", lambda _: True)
    commands = (install_extra("mcp"), install_drafters())
    assert commands == tuple(PIP + each.replace("TMP", str(tmp_path)) for each in (extra, drafters))


PROGRAM = """
import sys
from moa_shared.errors import MoaError
from moa_shared.programs.entry import output_errors, write_output
try:
    with output_errors():
        {}
except MoaError as error:
    print(f"Error: {{error}}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


def ends(code: str, target: str, **environment: str) -> tuple[int, str]:
    """Exit code and standard error of a program whose standard output is `target`."""
    with open(target, "wb") as out:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM.format(code)],
            stdout=out,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
            timeout=60,
        )
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", ["write_output('answer')", "print('help')", "print('x' * 100_000)"])
def test_a_disk_that_is_full_is_one_sentence(code: str) -> None:
    status, said = ends(code, "/dev/full")
    assert status == 74
    assert said.startswith("Error: Standard output cannot be written: No space left on device. ")
    assert said.count("\n") == 1


def test_characters_that_the_encoding_lacks_are_marks(tmp_path: object) -> None:
    path = f"{tmp_path}/out"
    assert ends("write_output('caf\u00e9 \u6f22\\n')", path, PYTHONIOENCODING="ascii", PYTHONUTF8="0") == (0, "")
    with open(path) as file:
        assert file.read() == "caf? ?\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_nothing_is_lost_where_somebody_has_made_standard_output_non_blocking(unbuffered: str) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(theirs, False)
    code = "for _ in range(100): write_output('x' * 5_000)"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen([sys.executable, "-c", PROGRAM.format(code)], stdout=theirs, env=environment) as program:
        os.close(theirs)
        with open(ours, "rb") as reader:
            assert len(reader.read()) == 500_000
    assert program.returncode == 0


# Runs a program's entry point, then writes what its first three descriptors are, and whether it may print to each.
CODE = """
import os, sys
from importlib import import_module
program, report = sys.argv[1:]
sys.argv = [program, "--help"]
try:
    import_module(program).main()
except SystemExit:
    pass
streams = [sys.stdin, sys.stdout, sys.stderr]
told = [f"{os.path.realpath(f'/proc/self/fd/{each}')} {streams[each].isatty()}" for each in range(3)]
with open(report, "w") as file:
    file.write("\\n".join(told))
"""
PROGRAMS = ("moa_server.cli", "moa_client.cli", "moa_training.cli", "moa_bench.cli", "netsim.cli")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_that_is_started_without_standard_streams_has_them_on_dev_null(program: str, tmp_path: Path) -> None:
    report = tmp_path / "report"
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    subprocess.run([*closed, sys.executable, "-c", CODE, program, str(report)], timeout=60, check=True)
    assert report.read_text().splitlines() == ["/dev/null False"] * 3


@pytest.mark.parametrize(
    ("term", "shown"), [("xterm", "\rStarting ...\x1b[K\r\rLoading ...\x1b[K\r\r\x1b[K"), ("dumb", ""), (None, "")]
)
def test_a_line_is_replaced_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch, term: str | None, shown: str) -> None:
    monkeypatch.delenv("TERM", raising=False)
    if term is not None:
        monkeypatch.setenv("TERM", term)
    line = StartLine(terminal := Terminal())
    line.clear()
    line.show("Starting ...")
    line.show("Loading ...")
    line.clear()
    line.clear()
    assert terminal.getvalue() == shown
