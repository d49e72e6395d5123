"""`moa-client doctor` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from tests.cli.client_program import Run, Served
from tests.support.messages import steady

pytestmark = pytest.mark.xdist_group("client command line")
STEPS = [
    "name",
    "connection",
    "TLS",
    "server",
    "round trip",
    "download",
    "upload",
    "drafter",
    "companion",
    "speed here",
    "expect",
]


@pytest.fixture(autouse=True)
def _own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))


def test_a_server_whose_drafter_is_not_here_and_then_is(run: Run, served: Served) -> None:
    code, out, _ = run("doctor", "--server", served.address)
    assert (code, out.splitlines()[0]) == (0, served.address)
    assert "warn  drafter      not here yet: " in out
    assert "The first chat fetches " in out
    run("chat", "--server", served.address, "--max-tokens", "2", "w10")
    code, out, _ = run("doctor", "--server", served.address, "--json")
    [told] = json.loads(out)
    assert (code, told["server"]) == (0, served.address)
    assert [each["name"] for each in told["checks"]] == STEPS
    assert not [each for each in told["checks"] if each["state"] in ("fail", "skip")]


def test_the_exit_code_is_that_of_the_first_failure(run: Run, served: Served) -> None:
    run("servers", "add", "gone", "127.0.0.1:1")
    run("servers", "add", "home", served.address)
    run("servers", "use", "home", "gone")
    code, out, _ = run("doctor")
    assert code == 69
    assert [line for line in out.splitlines() if line and line[0] != " "] == [
        f"home ({served.address})",
        "gone (127.0.0.1:1)",
    ]
    assert run("doctor", "--server", "home")[0] == 0
    assert run("doctor", "--server", "home", "--model", "nothing.gguf")[0] == 66


def test_a_key_that_cannot_be_read_stops_only_its_own_server(run: Run, served: Served, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("abc")
    key.chmod(0o600)
    run("servers", "add", "guarded", "127.0.0.1:1", "--key-file", key)
    run("servers", "add", "home", served.address)
    key.chmod(0o644)
    code, out, _ = run("doctor", "--server", "guarded,home")
    assert code == 2
    assert steady("".join(out.splitlines(keepends=True)[:3])) == snapshot("""\
guarded (127.0.0.1:PORT)
  fail  protection   Others can read the key file TMP/key
                     Protect it: chmod 600 TMP/key
""")
    assert f"home ({served.address})\n  ok    name " in out
