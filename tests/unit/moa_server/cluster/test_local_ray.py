"""The start of a Ray of this machine, played by a program that does what Ray might."""

from __future__ import annotations

import re
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.cluster import local_ray
from moa_server.cluster.local_ray import LocalRay, end_local, find_local, start_local
from moa_shared.errors import UnavailableError

GOOD = "print('Ray runtime started', flush=True); time.sleep(60)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where heads have their folders."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def play(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Has this program take the place of Ray's head; ARGV is its folder."""
    head = f"import os, socket, sys, time; folder = sys.argv[1]; {program}"
    monkeypatch.setattr(local_ray, "_command", lambda ray, cpus: [sys.executable, "-c", head, ray.folder])


def refusal(monkeypatch: pytest.MonkeyPatch, folder: Path, program: str) -> tuple[str, list[str]]:
    """Why a start fails, and what was said meanwhile; checks that nothing is left of it."""
    play(monkeypatch, program)
    said: list[str] = []
    with pytest.raises(UnavailableError) as caught:
        start_local(1, said.append)
    assert list(folder.iterdir()) == []
    assert find_local() is None
    return re.sub(r":\d+", ":PORT", str(caught.value)).replace(str(folder), "TMP"), said


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the head outlives its Popen
def test_a_head_has_its_token_where_only_its_user_is(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    play(monkeypatch, f"os.mkdir(folder + '/ray'); os.chmod(folder + '/ray', 0o777); {GOOD}")
    head = start_local(1, print)
    try:
        assert head == find_local()
        assert Path(head.folder).parent == folder
        assert stat.S_IMODE(Path(head.folder).stat().st_mode) == 0o700
        assert stat.S_IMODE(head.token.stat().st_mode) == 0o600
        assert head.environment()["RAY_AUTH_TOKEN_PATH"] == str(head.token)
        assert not head.token.is_relative_to(Path(head.folder) / "ray")
    finally:
        end_local(head)
    assert list(folder.iterdir()) == []
    assert find_local() is None


def test_ray_is_told_to_stay_within_this_machine() -> None:
    head = LocalRay("127.0.0.1:50000", 0, "", "FOLDER")
    command = local_ray._command(head, 2)
    assert "--node-ip-address=127.0.0.1" in command
    assert "--temp-dir=FOLDER/ray" in command
    assert head.environment()["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"


def test_a_start_that_fails_leaves_nothing_and_gives_the_reason(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    words, said = refusal(monkeypatch, folder, "print('hello'); print('no room for it'); sys.exit(3)")
    assert words == snapshot(
        "Ray has not started: it ended with code 3. Its last words: no room for it. Try again when this machine is less busy."
    )
    assert said == ["Ray has not started: it ended with code 3. Its last words: no room for it. Trying again."]


def test_a_start_that_takes_long_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(local_ray, "START_SECONDS", 1.0)
    monkeypatch.setattr(local_ray, "SAY_SECONDS", 0.5)
    words, said = refusal(monkeypatch, folder, "time.sleep(60)")
    assert words == snapshot(
        "Ray has not started: it waits for its control store (gcs_server). Try again when this machine is less busy."
    )
    assert re.sub(r"\d+ s", "N s", said[0]) == snapshot(
        "Ray has been starting for N s: it waits for its control store (gcs_server)."
    )


def test_a_ray_that_others_reach_is_ended(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    words, _ = refusal(monkeypatch, folder, f"held = socket.create_server(('0.0.0.0', 0)); {GOOD}")
    assert words == snapshot(
        "Ray listens at 0.0.0.0:PORT, where other machines reach it. Use the Ray that moa's extra `cluster` installs, or start one yourself and name it (--address)."
    )


def test_a_token_that_was_changed_is_not_used(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    words, _ = refusal(monkeypatch, folder, f"open(folder + '/token', 'w').write('e' * 64); {GOOD}")
    assert re.sub("moa-ray-[^/]+", "moa-ray-N", words) == snapshot(
        "Somebody has changed TMP/moa-ray-N/token. Set TMPDIR to a folder of your own."
    )


def test_a_folder_that_was_opened_is_not_used(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    words, _ = refusal(monkeypatch, folder, f"os.chmod(folder, 0o777); {GOOD}")
    assert re.sub("moa-ray-[^ ]+", "moa-ray-N", words) == snapshot(
        "Others have access to TMP/moa-ray-N now. Set TMPDIR to a folder of your own."
    )


def test_an_interrupted_start_leaves_nothing(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(local_ray, "SAY_SECONDS", 0.0)
    play(monkeypatch, "time.sleep(60)")

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start_local(1, interrupt)
    assert list(folder.iterdir()) == []
