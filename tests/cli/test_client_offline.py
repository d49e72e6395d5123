"""`moa-client` where the server is not there, goes, or comes back; and on a device that holds nothing."""

from __future__ import annotations

import json
import os
import re
from contextlib import ExitStack
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.settings import ClientSettings
from moa_shared.models import load_tokenizer, resolve
from moa_shared.text.template import ChatTemplate

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
from tests.support.terminal import Terminal

pytestmark = pytest.mark.xdist_group("client command line")
ASKED = [4, 10, 2, 5]  # "w10" in the tiny model's template


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name.startswith("MOA_CLIENT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def nowhere() -> str:
    """An address at which nothing listens."""
    return f"127.0.0.1:{free_port()}"


def untimed(err: str) -> str:
    return re.sub(r"[\d.]+ m?s \([\d.]+ tokens/s\), first after [\d.]+ m?s", "SECONDS", err)


def events(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.splitlines()]


# ---------------------------------------------------------------- a device that holds nothing


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
    assert err == snapshot(
        "Error: There is no moa server at 127.0.0.1:PORT: the connection was refused. Check --server HOST:PORT, and that moa-server runs there.\n"
    )
    code, out, err = run("chat", "--server", nowhere, "--offline", "w10")
    assert (code, out) == (66, "")
    assert err == snapshot(
        "Error: There is no drafter on this device to write with. Connect to a server once to fetch one.\n"
    )


# ---------------------------------------------------------------- one answer


def test_an_answer_that_no_server_has_verified_is_not_given_out_and_is_an_error(
    served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "alone_seconds", 0.0)
    willing = options(served, server=nowhere, max_tokens=6, alone="always")
    code, out, err = run("chat", *willing, "w10")
    assert (code, len(out.split())) == (69, 6)
    assert "(The last 6 tokens were written by the small model on this device; no server has checked them.)" in err
    code, out, err = run("chat", *options(served, server=nowhere, max_tokens=6), "w10")
    assert (code, out) == (69, "")
    assert untimed(err) == snapshot("""\
There is no moa server at 127.0.0.1:PORT: the connection was refused.
(No server has read this question: it is answered when one is back.)
0 tokens
Error: No server has verified the answer to its end. Ask again when a server is available.
""")


def test_offline_on_request_is_no_error(served: Served, run: Run) -> None:
    code, out, err = run("chat", *options(served, max_tokens=6), "--offline", "w10")
    assert (code, len(out.split())) == (0, 6)
    assert untimed(err) == snapshot("""\
You are offline. Until a server is reachable, the small model on this device answers, much worse than tiny.
(The last 6 tokens were written by the small model on this device; no server has checked them.)
(cut after 6 tokens: --max-tokens)
6 tokens in SECONDS; alone 6 tokens, not checked yet
""")


def test_events_for_programs(served: Served, nowhere: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ClientSettings.__init__.__kwdefaults__ or {}, "alone_seconds", 0.0)
    answer = alone(served, ASKED, max_tokens=6)
    code, out, _ = run("chat", *options(served, max_tokens=6), "--json", "w10")
    first, *middle, last = events(out)
    assert (code, first["execution"]) == (0, {"level": "int8", "exact": True})
    assert first["drafter"]["reason"] == "as wished"  # type: ignore[index]
    assert (first["event"], first["target"], first["server"], first["online"]) == (
        "ready",
        "tiny",
        served.address,
        True,
    )
    assert [token for event in middle if event["event"] == "committed" for token in event["tokens"]] == answer  # type: ignore[attr-defined]
    texts = [str(event.get("text", "")) for event in [*middle, last]]  # on a busy machine the link may be lost between
    assert "".join(texts) == words(answer)
    assert (last["event"], last["finish"], last["verified"]) == ("ended", "max_tokens", True)
    careful = options(served, server=nowhere, max_tokens=6)
    code, out, _ = run("chat", *careful, "--json", "w10")
    assert code == 69
    assert [event["event"] for event in events(out)] == ["ready", "asked", "held_back", "ended", "error"]
    assert events(out)[3]["finish"] == "unfinished"
    code, out, _ = run("chat", *careful, "--alone", "always", "--json", "w10")
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
    log = tmp_path / "client.log"
    arguments = ["--max-tokens", "400", "--log-file", str(log), "w10"]
    stack = ExitStack()
    with serving(tmp_path, model, drafter, port) as running:
        expected = words(alone(running, ASKED, max_tokens=400))
        client = stack.enter_context(started([*PATIENT_CHAT, *options(running), *arguments], ENVIRONMENT))
        begun = client.out.read(10)
        running.process.kill()
    with stack, serving(tmp_path, model, drafter, port):
        code, rest, err = client.end()
    assert begun + rest == expected + "\n"
    assert code == 0, err
    logged = [line.split(": ", 1)[1] for line in log.read_text().splitlines() if " WARNING " in line]
    [lost, opened] = [line for line in logged if line.startswith("stream")]
    address = f"127.0.0.1:{port}"
    assert lost.startswith(f"stream 1 to {address} lost: ")
    assert re.fullmatch(rf"stream \d+ to {address} opened in \d+ ms", opened)
    links = [line.split(": ")[0] for line in logged if not line.startswith("stream")]
    silences = len(links) // 2  # the others are of a server whose first step takes long on a busy machine
    assert links == ["link offline", "link back"] * silences
    assert logged.index(opened) < len(logged) - 1  # it is back after that


@pytest.mark.long
def test_one_answer_through_a_server_that_is_replaced_by_one_of_another_drafter_is_the_same(
    own: tuple[Path, Path, int], tmp_path: Path
) -> None:
    model, drafter, port = own
    arguments = ["--max-tokens", "400", "--json", "w10"]
    stack = ExitStack()
    with serving(tmp_path, model, drafter, port) as running:
        expected = words(alone(running, ASKED, max_tokens=400))
        client = stack.enter_context(started([*PATIENT_CHAT, *options(running), *arguments], ENVIRONMENT))
        begun = client.out.read(300)
        running.process.kill()
    with stack, serving(tmp_path, model, make_drafter(tmp_path / "other.safetensors", seed=2), port):
        code, rest, err = client.end()
    told = events(begun + rest)
    assert code == 0, err
    assert "".join(str(event.get("text", "")) for event in told) == expected
    [replaced] = [event for event in told if event["event"] == "server"]
    assert replaced["what"] == "drafter"


# ---------------------------------------------------------------- a chat


@pytest.mark.long
def test_a_chat_takes_the_other_drafter_of_a_replaced_server_and_outlives_another_model(
    own: tuple[Path, Path, int], tmp_path: Path
) -> None:
    model, drafter, port = own
    with serving(tmp_path, model, drafter, port) as running:
        asked = ["--server", running.address, "--max-tokens", "6"]
        program = Terminal([*CHAT, *asked], ENVIRONMENT | {"MOA_CACHE_DIR": os.environ["MOA_CACHE_DIR"]})
        program.wait_for("Talking to tiny")
        program.at_prompt("w10\r")
        program.wait_for("cut after 6 tokens")
        first = [*ASKED, *alone(running, ASKED, max_tokens=6)]
        running.process.kill()
    program.wait_for(r"\(offline: ")
    with serving(tmp_path, model, make_drafter(tmp_path / "other.safetensors", seed=2), port) as running:
        program.wait_for(r"\(The server has another drafter now")
        program.wait_for(r"\((\w+) drafts from now on\)")
        template = ChatTemplate(load_tokenizer(resolve(str(running.model))))
        second = [*first, *template.next_turn("w11", first)]
        program.at_prompt("w11\r")
        program.wait_for("cut after 6 tokens")
        whole = [*second, *alone(running, second, max_tokens=6)]
        assert words(whole[len(second) :]) in program.text
        running.process.kill()
    with serving(tmp_path, make_model(tmp_path / "other", 2), drafter, port):
        program.wait_for(r"serves other\s+now: this\s+conversation\s+with\s+tiny\s+is\s+kept")
        program.type("w12")
    with serving(tmp_path, model, drafter, port) as running:
        program.type("\r")  # who asks need not wait
        program.wait_for("cut after 6 tokens")
        third = [*whole, *template.next_turn("w12", whole)]
        program.wait_until(
            lambda: re.search(words(alone(running, third, max_tokens=6)), program.text), "the answer to w12"
        )
        program.close()


def test_a_chat_continues_offline_and_is_corrected_online(served: Served, terminal: Terminal) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))
    terminal.at_prompt("/offline\r")
    terminal.wait_for("Offline, as requested. Questions wait for the server")
    terminal.at_prompt("w10\r")
    terminal.wait_for(r"You are offline: the question waits")
    assert not terminal.display.dim
    terminal.at_prompt("/undo\r")
    terminal.wait_for("Taken back: w10")
    terminal.at_prompt("/alone\r")
    terminal.wait_for("much worse than tiny")
    terminal.at_prompt("w10\r")
    terminal.wait_for("cut after 6 tokens")
    assert len(re.findall(r"w\d+", terminal.display.dim)) == 6
    terminal.at_prompt("w11\r")
    terminal.wait_for("cut after 6 tokens")
    terminal.wait_for(r"link OFFLINE[^\n]*12 words to be checked")
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
    told = r"this session: alone 12 tokens, \d+ kept\n"
    terminal.wait_until(lambda: re.search(told, terminal.text), told)
    terminal.type("/bye\r")
    assert terminal.end() == 0


def test_keys_typed_into_an_answer_are_the_next_question(terminal: Terminal) -> None:
    terminal.at_prompt("/set max_tokens 700\r")
    terminal.wait_for("max_tokens is 700 now")
    terminal.at_prompt("w10\r")
    terminal.wait_for(r"(w\d+ ){20}")  # of the answer; the question may be above what is looked at
    terminal.type("/set top_k\r")
    terminal.wait_for(r"cut after 700 tokens[^\n]*\n> /set top_k\ntop_k is 0 \(the default\)\.")
    assert terminal.text.count("/set top_k") == 1


def test_settings_go_back_to_their_defaults(terminal: Terminal) -> None:
    for typed, said in {
        "/set stop w3 w4": "stop is 'w3 w4' now.",
        "/set stop default": "stop is not set now.",
        "/set max_tokens default": "max_tokens is 2048 now.",
        "/set seed": "seed is a new one for each question.",
        "/set system default": "A new conversation begins, with this system prompt.",
        "/set server x": "server cannot be set here. What can: temperature,",
        "/set": "system the model's own",
    }.items():
        terminal.at_prompt(f"{typed}\r")
        terminal.wait_for(re.escape(said))


def test_help_lists_every_command(terminal: Terminal) -> None:
    terminal.at_prompt("/help\r")
    text = terminal.wait_for(r"makes a new\s+line")
    for command in ("help", "reset", "set", "set NAME VALUE", "status", "offline", "online", "stats", "bye"):
        assert f"/{command}" in text
        if " " not in command and command not in ("help", "bye"):
            terminal.at_prompt(f"/{command}\r")
            assert "There is no command" not in terminal.wait_for(r"\n")


@pytest.mark.long
def test_a_server_that_goes_while_nobody_asks_is_missed_and_found_again(
    own: tuple[Path, Path, int], tmp_path: Path
) -> None:
    model, drafter, port = own
    with serving(tmp_path, model, drafter, port) as running:
        program = Terminal([*CHAT, *options(running, max_tokens=6)], ENVIRONMENT)
        program.wait_for("Talking to tiny")
        program.at_prompt("w10\r")
        program.wait_for("cut after 6 tokens")
        running.process.kill()
    program.wait_for(r"\(offline: ")
    with serving(tmp_path, model, drafter, port):
        program.wait_for(r"\(the server is back\)")
        program.close()
