"""`moa-client` where the server is not there, goes, or comes back; and on a device that holds nothing."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from moa_client.settings import ClientSettings
from moa_client.tools.template import ChatTemplate
from moa_shared.models import load_tokenizer, resolve

from tests.cli.client_program import (
    CHAT,
    ENVIRONMENT,
    PATIENT_CHAT,
    Run,
    Served,
    alone,
    make_drafter,
    make_model,
    options,
    serving,
    words,
)
from tests.support.programs import free_port, started
from tests.support.terminal import Terminal, opened

pytestmark = pytest.mark.xdist_group("client command line")
ASKED = [4, 10, 2, 5]  # "w10" in the tiny model's template


@pytest.fixture(autouse=True)
def _of_its_own(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CLIENT_DAEMON", "false")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def nowhere() -> str:
    """An address at which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def events(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


def test_an_address_is_all_that_a_new_device_needs(served: Served, run: Run, tmp_path: Path) -> None:
    arguments = ["chat", "--server", served.address, "--max-tokens", 6, "w10"]
    code, out, err = run(*arguments)
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=6)) + "\n")
    assert "Fetching the drafter for tiny" in err
    assert "\x1b" not in out + err
    assert list((tmp_path / "cache").glob("fetched/*/drafter-*.safetensors"))
    assert "Fetching" not in run(*arguments)[2]
    code, out, err = run(*arguments, "--offline")  # what was fetched writes alone
    assert code == 0
    assert len(out.split()) == 6
    assert err.startswith(
        "You are offline. Until a server is reachable, the small model on this device answers, much worse than tiny."
    )


def test_without_server_and_cache_it_says_what_is_missing(nowhere: str, run: Run) -> None:
    code, out, err = run("chat", "--server", nowhere, "w10")
    assert (code, out) == (69, "")
    assert "There is no moa server at 127.0.0.1:PORT: the connection was refused. Check --server HOST:PORT" in err
    code, out, err = run("chat", "--server", nowhere, "--offline", "w10")
    assert (code, out) == (66, "")
    assert err.startswith("Error: There is no drafter on this device to write with.")


def test_an_answer_that_no_server_has_verified_is_not_given_out_and_is_an_error(
    served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "standalone_seconds", 0.0)
    willing = options(served, server=nowhere, max_tokens=6, standalone="always")
    code, out, err = run("chat", *willing, "w10")
    assert (code, len(out.split())) == (69, 6)
    assert "(The last 6 tokens were written by the small model on this device; no server has checked them.)" in err
    code, out, err = run("chat", *options(served, server=nowhere, max_tokens=6), "w10")
    assert (code, out) == (69, "")
    assert err.endswith(
        "\nError: No server has verified the answer to its end. Ask again when a server is available.\n"
    )


def test_events_for_programs(served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "standalone_seconds", 0.0)
    answer = alone(served, ASKED, max_tokens=6)
    code, out, _ = run("chat", *options(served, max_tokens=6), "--json", "w10")
    first, *middle, last = events(out)
    assert (code, first["execution"]) == (0, {"level": "int8", "exact": True})
    assert first["drafter"]["reason"] == "as wished"  # type: ignore[index]
    ready = {"event": "ready", "target": "tiny", "server": served.address, "online": True}
    assert {name: first[name] for name in ready} == ready
    assert [token for event in middle if event["event"] == "committed" for token in event["tokens"]] == answer  # type: ignore[attr-defined]
    texts = [str(event.get("text", "")) for event in [*middle, last]]  # on a busy machine the link may be lost between
    assert "".join(texts) == words(answer)
    assert (last["event"], last["finish"], last["verified"]) == ("ended", "max_tokens", True)
    careful = options(served, server=nowhere, max_tokens=6)
    code, out, _ = run("chat", *careful, "--json", "w10")
    assert code == 69
    assert [event["event"] for event in events(out)] == ["ready", "asked", "held_back", "ended", "error"]
    assert events(out)[3]["finish"] == "unfinished"
    code, out, _ = run("chat", *careful, "--standalone", "always", "--json", "w10")
    told = events(out)
    assert [event["event"] for event in told] == ["ready", "asked", *["provisional"] * 6, "ended", "error"]
    assert (code, told[0]["online"], told[-2]["verified"], told[-1]["code"]) == (69, False, False, "unavailable")
    code, out, _ = run("chat", "--server", nowhere, "--json", "--cache-dir", "empty", "w10")
    assert (code, [event["event"] for event in events(out)]) == (69, ["error"])


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path, int]:
    """A model, a drafter and a port for a server that may be killed."""
    return make_model(tmp_path / "tiny", 1), make_drafter(tmp_path / "d.safetensors"), free_port()


def test_one_answer_through_a_killed_server_is_the_same(own: tuple[Path, Path, int], tmp_path: Path) -> None:
    model, drafter, port = own
    environment = ENVIRONMENT | {"XDG_STATE_HOME": str(tmp_path)}
    arguments = ["--max-tokens", "400", "w10"]
    stack = ExitStack()
    with serving(tmp_path, model, drafter, port) as running:
        expected = words(alone(running, ASKED, max_tokens=400))
        client = stack.enter_context(started([*PATIENT_CHAT, *options(running), *arguments], environment))
        begun = client.out.read(10)
        running.process.kill()
    with stack, serving(tmp_path, model, drafter, port):
        code, rest, err = client.end()
    assert begun + rest == expected + "\n"
    assert code == 0, err
    log = (tmp_path / "moa/log/client.log").read_text()
    logged = [line.split(": ", 1)[1] for line in log.splitlines() if " WARNING " in line]
    [lost, opened] = [line for line in logged if line.startswith("stream")]
    address = f"127.0.0.1:{port}"
    assert lost.startswith(f"stream 1 to {address} lost: ")
    assert re.fullmatch(rf"stream \d+ to {address} opened in \d+ ms", opened)
    links = [line.split(": ")[0] for line in logged if not line.startswith("stream")]
    silences = len(links) // 2  # the others are of a server whose first step takes long on a busy machine
    assert links == ["link offline", "link back"] * silences
    assert logged.index(opened) < len(logged) - 1  # it is back after that


def test_a_chat_continues_offline_and_is_corrected_online(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))
    terminal.enter("/offline", "Offline, as requested. Questions wait for the server")
    terminal.enter("w10", r"You are offline: the question waits")
    assert not terminal.display.dim
    terminal.enter("/undo", "Taken back: w10")
    terminal.enter("/standalone", "much worse than tiny")
    terminal.enter("w10", "cut after 6 tokens")
    assert len(re.findall(r"w\d+", terminal.display.dim)) == 6
    terminal.enter("w11", "cut after 6 tokens", r"link OFFLINE[^\n]*12 words to be checked")
    terminal.type("/online\r")
    first = [*ASKED, *alone(served, ASKED, max_tokens=6)]
    second = [*first, *template.next_turn("w11", first)]
    answers = rf"> w10\n{words(first[len(ASKED) :])}\n.*> w11\n{words(alone(served, second, max_tokens=6))}\n"
    terminal.wait_until(lambda: re.search(answers, terminal.text, re.DOTALL), "answers corrected in their places")
    terminal.wait_until(lambda: re.search(r"link (good|slow)(?!.*server)[^\n]*\s*$", terminal.text), "all verified")
    for question in ("w10", "w11"):
        assert re.search(rf'has corrected the answer to "{question}"; \d of 6 tokens', terminal.text)
    assert terminal.display.dim.split() == []
    terminal.type("/stats\r")
    told = r"standalone 6 tokens, \d kept\n"
    terminal.wait_until(lambda: re.search(told, terminal.text), told)
    terminal.type("/bye\r")
    assert terminal.end() == 0


TOKENS = 6


def test_what_it_has_written_is_checked_by_the_first_server(
    served: Served, run: Run, tmp_path: Path, cache: Path
) -> None:
    small = make_model(tmp_path / "small", 2)
    environment = ENVIRONMENT | {
        "MOA_CLIENT_HISTORY": "true", "XDG_DATA_HOME": str(tmp_path / "data"), "MOA_CACHE_DIR": str(cache),
    }  # fmt: skip
    arguments = ["--server", served.address, "--companion", str(small), "--max-tokens", str(TOKENS)]
    with opened([*CHAT, "--offline", *arguments], environment) as chat:
        chat.wait_for("Until a server is reachable, small on this device answers.")
        chat.enter("w10", "cut after 6 tokens")
        chat.enter("/online", "which continues what small on this device has", "The server has corrected the answer")
        chat.enter("w11", "cut after 6 tokens")
        chat.enter("/bye")
        assert chat.end() == 0
    kept = json.loads(run("history", "export", "last", "--format", "json")[1])
    assert kept["model"] == "tiny"
    first, second = kept["answers"]
    expected = alone(served, ASKED, max_tokens=TOKENS)
    assert first["tokens"] == expected
    assert second["tokens"] == alone(served, [*ASKED, *expected, 2, 4, 11, 2, 5], max_tokens=TOKENS)


def test_one_is_chosen_once_for_all_chats(served: Served, run: Run, tmp_path: Path) -> None:
    nowhere = ("--server", f"127.0.0.1:{free_port()}")
    alone_there = ("chat", "--offline", *nowhere, "--max-tokens", TOKENS, "w10")
    assert run("companion")[1].startswith("No companion: while no server answers, the drafter writes a few words.")
    assert run("companion", "set", tmp_path / "nowhere.gguf")[0] == 66
    code, out, _ = run("companion", "set", served.model)
    assert (code, out.split(",")[0]) == (0, "From now on: tiny")
    assert "which server's model it stands in for" in run("companion")[1]
    code, out, err = run(*alone_there)
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=TOKENS)) + "\n"), err
    assert "tiny on this device answers" not in run(*alone_there, "--companion", "none")[2]
    assert run("companion", "off")[:2] == (0, "From now on: no companion.\n")
    assert "tiny on this device answers" not in run(*alone_there)[2]
