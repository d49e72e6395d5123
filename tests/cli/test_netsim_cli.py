"""The command line of netsim: transcripts, statuses, and every message about bad input."""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from inline_snapshot import snapshot
from netsim.cli import main

from tests.support.messages import steady
from tests.support.programs import environment, started

ENVIRONMENT = environment("netsim")
NETSIM = [sys.executable, "-m", "netsim.cli"]


def netsim(*words: str) -> Result:
    return CliRunner().invoke(main, words, prog_name="netsim", catch_exceptions=False)


@pytest.mark.parametrize(("words", "named", "instead"), [
    ("validate --quick", "validate", "Its rules are tests of netsim now."),
    ("replay t --format=csv", "replay --format", "The content of a trace says which format it has."),
])  # fmt: skip
def test_what_earlier_versions_had_is_named(words: str, named: str, instead: str) -> None:
    result = netsim(*words.split())
    assert f"Error: Version 0.2.0 was the last with `netsim {named}`. {instead}\n" in result.stderr
    assert result.exit_code == 2


OWN = "A profile of your own is given by its file, for example ./my.yaml."
PROXY = "proxy --profile 4g --upstream"
CASES = [  # words, status, message, hint
    ("show 4gg", 2, "There is no profile '4gg'.", f"Did you mean 4g or 4g-rtt or 5g? {OWN}"),
    (f"{PROXY} :1 --event 5:change:6g", 2, "There is no profile '6g'.", f"Did you mean 5g or 4g? {OWN}"),
    (
        f"{PROXY} nowhere", 2, "--upstream: 'nowhere' is not an address.",
        "Write HOST:PORT or :PORT, for example 127.0.0.1:50051 or [::1]:50051.",
    ),
    (f"{PROXY} :1 --event 5", 2, "'5' names no event.", "Write SECONDS:EVENT, for example 12:blackhole:3."),
    (
        "run --profile 4g -- true", 2, "Say which server the link leads to.",
        "--upstream :50051 if it is running, --serve 'COMMAND' --port 50051 to start it at the far end of a tun link, "
        "or --port alone if you will start it in the server's namespace by hand.",
    ),
    (
        "run --profile 4g --backend proxy --upstream :9 -- no-such", 127,
        "The command 'no-such' does not start: No such file or directory.", None,
    ),
    ("ctl --control /none heal", 1, "No link answers at /none: No such file or directory.", None),
    (f"{PROXY} :9 --out /dev/null/run", 2, "Output folder /dev/null/run cannot be written: Not a directory.", None),
    (
        "report /none", 1, "/none does not hold a finished run: /none/summary.json: No such file or directory.",
        "A run writes its folder with --out and completes it when it ends.",
    ),
    ("record :1 x.txt", 1, "x.txt ends in neither .yaml nor .csv.", "A profile is .yaml, a trace .csv."),
]  # fmt: skip


@pytest.mark.parametrize(("words", "status", "message", "hint"), CASES)
def test_bad_input_gets_one_sentence(words: str, status: int, message: str, hint: str | None) -> None:
    result = netsim(*words.split())
    assert result.stderr == f"netsim: {message}\n" + (f"  {hint}\n" if hint else "")
    assert "Traceback" not in result.output
    assert result.exit_code == status


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = netsim("proxy", "--profile", "4g", "--listen", f":{port}", "--upstream", ":1")
    assert result.stderr.startswith(f"netsim: Port {port} is in use on 127.0.0.1.\n")
    assert result.exit_code == 2


def test_without_root_tun_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (["run", "--profile", "4g", "--upstream", ":1", "--", "true"], ["clean"]):
        result = netsim(*words)
        assert "needs root" in result.stderr
        assert "--backend proxy" in result.stderr
        assert result.exit_code == 77


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_proxy_says_one_line_when_it_listens_and_ends_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    ready, control = tmp_path / "ready", tmp_path / "c.sock"
    command = [
        *NETSIM, "proxy", "--profile", "4g", "--seed", "5", "--listen", "127.0.0.1:0", "--upstream", "127.0.0.1:9",
        "--ready-file", str(ready), "--control", str(control), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    with started(command, ENVIRONMENT) as proxy:
        line = proxy.out.readline()
        deadline = time.monotonic() + 60
        while not ready.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        address = ready.read_text().strip()
        assert line == f"netsim listens on {address} for 127.0.0.1:9 (4g, seed 5, control {control})\n"
        assert not address.endswith(":0")
        assert netsim("ctl", "--control", str(control), "cut", "--for", "0.1").output.startswith("done at ")
        assert '"profile": "4g"' in netsim("ctl", "--control", str(control), "status").output
        proxy.process.send_signal(number)
        code, rest, said = proxy.end()
    assert (code, rest) == (0, "")
    assert "(approximate: stream level)" in said
    assert (tmp_path / "out" / "summary.json").exists()
    assert not control.exists()


def test_links_have_names_by_which_they_are_listed_and_changed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    proxy = ["proxy", "--profile", "4g", "--upstream", ":9", "--name"]
    assert netsim("ctl", "list").stderr == "no link is running\n"
    assert netsim("ctl", "heal").stderr.startswith("netsim: No link is running.\n  Start one with")
    variables = {**ENVIRONMENT, "XDG_RUNTIME_DIR": str(tmp_path)}
    with started([*NETSIM, *proxy, "home"], variables) as home, started([*NETSIM, *proxy, "train"], variables) as train:
        assert [program.out.readline()[:16] for program in (home, train)] == ["netsim listens o"] * 2
        assert steady(netsim("ctl", "list").output) == snapshot("""\
name   backend  profile  address          connections
home   proxy    4g       127.0.0.1:PORT  0
train  proxy    4g       127.0.0.1:PORT  0
""")
        assert [each["name"] for each in json.loads(netsim("ctl", "list", "--json").output)] == ["home", "train"]
        for words in (("cut", "--name", "train"), ("--name", "train", "cut")):
            assert netsim("ctl", *words, "--direction", "up").output.startswith("done at ")
        control = str(tmp_path / "netsim/train.sock")
        cut = json.loads(netsim("ctl", "status", "--control", control).output)["directions"]
        assert [cut[direction]["cut"] for direction in ("up", "down")] == [True, False]
        for asked, said in (
            (("ctl", "heal"), "2 links are running.\n  Say which with --name: home, train"),
            (("ctl", "heal", "--name", "car"), "No link named car is running.\n  Running: home, train."),
            (("ctl", "heal", "--name", "a/b"), "'a/b' cannot be the name of a link."),
            (("ctl", "--control", control, "heal", "--name", "train"), "--name and --control both choose a link."),
            ((*proxy, "home"), "A link named home is running.\n  Choose another --name, or end that link."),
        ):
            assert netsim(*asked).stderr.startswith(f"netsim: {said}")
