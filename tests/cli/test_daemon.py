"""The daemon as a process: started, shared by many chats, killed, and started again."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from inline_snapshot import snapshot

from tests.cli.client_program import ENVIRONMENT, Served, alone, make_drafter, make_model, serving, words
from tests.support.daemon_home import CLIENT, Home, daemon_home
from tests.support.programs import free_port
from tests.support.terminal import opened

ASKED = [4, 10, 2, 5]  # the tiny model's template around "w10"


@pytest.fixture
def home(served: Served) -> Iterator[Home]:
    with daemon_home(ENVIRONMENT, **_settings(served.address, served)) as home:
        yield home


def _settings(address: str, served: Served) -> dict[str, str]:
    return {"SERVER": address, "MODEL": str(served.model), "DRAFTER": str(served.drafter)}


def test_it_starts_answers_says_how_it_is_and_ends(home: Home, served: Served) -> None:
    assert home.run("daemon", "status")[:2] == (
        3,
        snapshot("No daemon is running. `moa-client daemon start` starts one.\n"),
    )
    code, _, err = home.run("daemon", "start")
    assert code == 0, err
    assert f"(process {home.pid()})" in err
    assert home.paths.socket.stat().st_mode & 0o777 == 0o600
    assert home.paths.folder.stat().st_mode & 0o777 == 0o700
    code, out, err = home.run("chat", "--max-tokens", "8", "w10")
    assert code == 0, err
    assert out == words(alone(served, ASKED, max_tokens=8)) + "\n"
    status = home.status()
    assert (status["phase"], status["target"], status["server"]) == ("ready", "tiny", served.address)
    assert "link good" in home.run("daemon", "status")[1]
    assert "listens on" in home.paths.log.read_text()
    pid = home.pid()
    assert home.run("daemon", "start")[2] == f"The daemon is already running (process {pid}).\n"
    code, _, err = home.run("daemon", "run")
    assert (code, err) == (
        2,
        f"Error: A daemon is already running (process {pid}). `moa-client daemon status` says more about it.\n",
    )
    assert home.run("daemon", "stop") == (0, "", f"The daemon (process {pid}) has ended.\n")
    assert home.run("daemon", "stop")[2] == "No daemon is running.\n"
    assert not home.paths.socket.exists()


def test_it_starts_again_with_the_same_options_and_environment_and_after_a_kill_another_one_takes_its_place(
    home: Home,
) -> None:
    given = {"MOA_CLIENT_THREADS": "2", "MOA_ENDPOINT_KEY": "a-key-that-is-long-enough"}
    home.environment |= given
    home.run("daemon", "start", "--drafting", "device")
    for variable in given:
        del home.environment[variable]
    since = home.status()["since"]
    assert home.run("daemon", "restart")[0] == 0
    status = home.status()
    assert status["since"] > since
    assert (status["settings"]["drafting"], status["settings"]["threads"]) == ("device", 2)
    assert httpx.get(f"{status['url']}/v1/models", timeout=20).status_code == 401
    home.kill()
    assert home.paths.socket.exists()
    assert home.run("daemon", "status")[0] == 3
    assert home.run("daemon", "start")[0] == 0
    assert home.status()["pid"] == home.pid()


def test_a_chat_starts_it_and_survives_its_death(home: Home, served: Served) -> None:
    with opened([*CLIENT, "chat", "--max-tokens", "6"], home.environment) as chat:
        chat.wait_for(f"Talking to tiny at {served.address}")
        chat.enter("w10", r"\(cut after 6 tokens: /continue goes on\)")
        home.kill()
        chat.wait_for("The daemon has ended.")
        chat.enter("w11", r"\(cut after 6 tokens: /continue goes on\)")
    first = alone(served, ASKED, max_tokens=6)
    second = alone(served, [*ASKED, *first, 2, 4, 11, 2, 5], max_tokens=6)
    assert [answer["text"] for answer in home.history()] == [words(first), words(second)]


def test_what_a_chat_does_not_name_is_the_daemon_s_and_what_it_names_otherwise_makes_it_run_alone(
    home: Home, served: Served
) -> None:
    home.run("daemon", "start", "--companion", str(served.model), "--drafting", "device")
    with opened([*CLIENT, "chat"], home.environment) as chat:
        assert "without it" not in chat.wait_for("Talking to tiny")
        assert (home.status()["conversations"], home.status()["companion"]) == (1, "tiny")
        assert ", companion tiny, level " in home.run("daemon", "status")[1]
    named = ["--max-tokens", "6", "--drafting", "auto"]  # the default
    with opened([*CLIENT, "chat", *named], home.environment) as chat:
        chat.wait_for(r"\(The daemon runs with a setting other than this chat's: drafting. The chat runs without it.\)")
        chat.wait_for("Talking to tiny")


def test_nonsense_on_the_socket_is_told_and_harms_nobody(home: Home) -> None:
    home.run("daemon", "start")
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(home.paths.socket))
        with peer.makefile("rwb") as lines:
            deep = b"[" * 100_000 + b"]" * 100_000 + b"\n"
            for line in (b"hello\n", b"[1]\n", b'{"do": "dance"}\n', deep, b'{"do": "\xff"}\n'):
                lines.write(line)
                lines.flush()
                assert json.loads(lines.readline())["event"] == "error"
            for message, event in (({"do": "open", "conversation": None}, "opened"), ({"do": "what"}, "error")):
                lines.write(json.dumps(message).encode() + b"\n")
                lines.flush()
                assert json.loads(lines.readline())["event"] == event
            with suppress(OSError):  # it has left before everything was written
                lines.write(b'{"do": "ask", "question": "' + b"x" * (2 << 20) + b'"}\n')
                lines.flush()
    assert home.status()["phase"] == "ready"


@pytest.mark.long
def test_without_a_server_it_runs_and_says_why_until_there_is_one(tmp_path: Path) -> None:
    model, drafter = make_model(tmp_path / "tiny", 1), make_drafter(tmp_path / "d.safetensors")
    port = free_port()
    with ExitStack() as stack:
        nobody = Served(model, drafter, f"127.0.0.1:{port}", subprocess.Popen(["true"]))
        nobody.process.wait()
        settings = _settings(nobody.address, nobody) | {"CACHE_DIR": str(tmp_path / "cache"), "DRAFTER": "none"}
        home = stack.enter_context(daemon_home(ENVIRONMENT, **settings))
        assert home.run("daemon", "start")[0] == 0
        code, out, err = home.run("chat", "w10")
        assert (code, out) == (69, "")
        assert f"There is no moa server at 127.0.0.1:{port}" in err
        status = home.status()
        assert status["phase"].startswith("waiting: ")
        health = f"{status['url']}/health"
        refused = httpx.get(health, trust_env=False)
        assert (refused.status_code, refused.json()["status"]) == (503, "unavailable")
        assert f"There is no moa server at 127.0.0.1:{port}" in refused.json()["reason"]
        with serving(tmp_path, model, drafter, port) as served:
            while home.status()["phase"] != "ready":
                pass
            assert httpx.get(health, trust_env=False).json()["status"] == "ok"
            assert httpx.head(status["url"], trust_env=False).status_code == 200  # as ollama's clients ask
            assert home.run("chat", "--max-tokens", "8", "w10")[1] == words(alone(served, ASKED, max_tokens=8)) + "\n"
