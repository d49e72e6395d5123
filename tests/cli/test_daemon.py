"""The daemon as a process: started, shared by many chats, killed, and started again; and `moa-client history`, which needs no server."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.history.database import KeptResponse
from moa_client.history.reading import ConversationOrigin
from moa_client.history.store import HistoryStore
from moa_shared.sampling.settings import CHAT_DEFAULTS

from tests.cli.client_program import ENVIRONMENT, Run, Served, alone, make_drafter, make_model, serving, words
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
    assert (home.paths.socket.stat().st_mode & 0o777, home.paths.folder.stat().st_mode & 0o777) == (0o600, 0o700)
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
    assert httpx.get(f"{status['url']}/v1/models", timeout=100).status_code == 401
    home.kill()
    assert home.paths.socket.exists()
    assert (home.run("daemon", "status")[0], home.run("daemon", "start")[0]) == (3, 0)
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


def test_a_chat_and_programs_ask_the_models_of_all_listed_servers(served: Served, tmp_path: Path) -> None:
    model, drafter = make_model(tmp_path / "small", 2), make_drafter(tmp_path / "d.safetensors")
    places = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "MOA_CACHE_DIR": str(tmp_path / "cache")}
    aliases = {"DRAFTER": "none", "ALIASES": "gpt-4o-mini=small"}
    with serving(tmp_path, model, drafter) as other, daemon_home(ENVIRONMENT | places, **aliases) as home:
        for name, address in (("desk", served.address), ("gpu", other.address), ("gone", "127.0.0.1:1")):
            home.run("servers", "add", name, address)
        with opened([*CLIENT, "chat", "--max-tokens", "6"], home.environment) as chat:
            chat.wait_for("Talking to tiny")
            cut = r"\(cut after 6 tokens: /continue goes on\)"
            chat.enter("w10", cut)
            chat.enter(
                "/model", r"\*  tiny", "small +gpu", "gpt-4o-mini +small", "gone +no answer: There is no moa server"
            )
            chat.enter("/model gone", "Error: There is no moa server at gone")
            chat.enter("/model gpt-4o-mini", r"\(small answers from now on: what was said before is new text for it\)")
            chat.enter("w11", cut)
        first = alone(served, ASKED, max_tokens=6)
        second = alone(other, [4, 10, 2, 5, *first, 2, 4, 11, 2, 5], max_tokens=6)
        answers = home.history()
        assert [answer["text"] for answer in answers] == [words(first), words(second)]
        assert [answer["options"].get("model") for answer in answers] == ["tiny", None]
        with httpx.Client(base_url=home.status()["url"], timeout=100, trust_env=False) as client:
            assert [each["id"] for each in client.get("/v1/models").json()["data"]] == ["tiny", "small", "gpt-4o-mini"]
            asked = {"messages": [{"role": "user", "content": "w10"}], "max_tokens": 6, "temperature": 0}
            for name, by in (("gpt-4o-mini", other), ("small", other), ("tiny", served), ("default", served)):
                said = client.post("/v1/chat/completions", json={**asked, "model": name}).json()
                assert said["choices"][0]["message"]["content"] == words(alone(by, ASKED, max_tokens=6))
                assert said["model"] == by.model.name
            refused = client.post("/v1/chat/completions", json={**asked, "model": "gpt-5"})
            assert (refused.status_code, refused.json()["error"]["message"]) == (
                404,
                snapshot(
                    "There is no model 'gpt-5' here. No answer from gone. Ask for 'tiny', 'small', 'gpt-4o-mini', or 'default'."
                ),
            )


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


ORIGIN = ConversationOrigin("SmolLM2-135M-Instruct", b"t" * 2, b"k" * 2, "int8", "127.0.0.1:50051", "Be brief.")

SAMPLED = AnswerOptions(seed=3, repeat_penalty=1.1, logit_bias=((42, -5.0),)).decided(CHAT_DEFAULTS)
GREEDY = AnswerOptions(temperature=0.0).decided()


@pytest.fixture
def store(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HistoryStore]:
    """A history of two conversations, at the place where the program looks for it."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    names = iter([b"\0" * 5, b"\xff" * 5])
    monkeypatch.setattr("moa_client.history.store.secrets.token_bytes", lambda _: next(names))
    moments = iter(range(1_800_000_000, 1_900_000_000, 60))
    made = HistoryStore(tmp_path / "data" / "moa" / "history", lambda: float(next(moments)))
    first = made.create(ORIGIN)
    key = made.begin_answer(first, "What is gravity?\nIn one word.", SAMPLED)
    made.append_committed(key, [7, 8], [Provenance.PROMPT, Provenance.TARGET], "A *force*\x1b[2J.\nYes.")
    made.end_answer(key, "end_of_text", figures={"tokens": 1})
    key = made.begin_answer(first, "Why?", GREEDY)
    made.append_committed(key, [7, 9], [Provenance.PROMPT, Provenance.TARGET], "Because ")
    made.set_provisional(key, [1], "mass\x07", shown=1)
    made.end_answer(key, "unfinished", verified=False, provisional="mass\x07")
    second = made.create(ConversationOrigin("another model"), "Lists\x1b[2J")
    made.end_answer(made.begin_answer(second, "Name all numbers", replace(GREEDY, max_tokens=3)), "max_tokens")
    yield made
    made.close()
    monkeypatch.undo()
    time.tzset()


def test_nothing_is_kept_at_first(run: Run) -> None:
    assert run("history", "list") == (0, "", "No conversation is kept yet.\n")
    assert run("history", "show", "last") == (66, "", "Error: No conversation is kept yet.\n")
    assert run("history", "delete", "--all", "--yes") == (0, "", "No conversation is kept.\n")


def test_conversations_are_listed(run: Run, store: HistoryStore) -> None:
    code, out, err = run("history", "list")
    assert (code, err) == (0, "")
    assert out == snapshot("""\
ID        LAST USED         QUESTIONS  MODEL                  TITLE
77777777  2027-01-15 08:07  1          another model          Lists�[2J
aaaaaaaa  2027-01-15 08:04  2          SmolLM2-135M-Instruct  What is gravity? (1 to be checked)
""")
    _, out, err = run("history", "list", "-n", 1)
    assert ("aaaaaaaa" in out, err) == (False, "1 more: --all lists them.\n")


def test_a_conversation_is_shown_with_what_is_not_verified(run: Run, store: HistoryStore) -> None:
    code, out, err = run("history", "show", "aaa")
    assert (code, err) == (0, "")
    assert out == snapshot("""\
What is gravity?
Conversation aaaaaaaa of 2027-01-15 08:00
with SmolLM2-135M-Instruct (int8) at 127.0.0.1:50051
System prompt: Be brief.

> What is gravity?
> In one word.

A *force*�[2J.
Yes.
(chosen with --temperature 0.7 --top-p 0.95 --repeat-penalty 1.1 --repeat-last-n 64 --seed 3 --logit-bias 42=-5)

> Why?

Because [unverified:] mass�
(a server is still to check and complete this answer)
""")
    assert run("history", "show", "last")[1].endswith("> Name all numbers\n\n\n(cut: max_tokens)\n")
    code, _, err = run("history", "show", "b")
    assert (code, "There is no conversation b." in err) == (66, True)


def test_a_conversation_is_exported(run: Run, store: HistoryStore) -> None:
    text = run("history", "export", "a")[1]
    assert text.startswith("# What is gravity?\n\nConversation aaaaaaaa of 2027-01-15 08:00  \n")
    assert "\n## Question 2\n\n> Why?\n\nBecause [unverified:] mass�\n" in text
    told = json.loads(run("history", "export", "a", "--format", "json")[1])
    first, second = told["answers"]
    assert (told["target_fingerprint"], told["tokenizer_hash"], told["execution"]) == ("7474", "6b6b", "int8")
    assert (first["text"], first["tokens"], first["options"]["seed"]) == ("A *force*\x1b[2J.\nYes.", [8], 3)
    assert (first["standing"], first["finish"], first["provenance"]) == ("decided", "end_of_text", "T")
    assert (second["standing"], second["text"], second["provisional"]) == ("unverified", "Because ", "mass\x07")


def test_words_are_found(run: Run, store: HistoryStore) -> None:
    found = "aaaaaaaa  2027-01-15 08:01  question 1 of: What is gravity?\n    What is gravity? In one word. A *force*�[2J. Yes.\n"
    assert run("history", "search", "forc", "yes") == (0, found, "")
    assert run("history", "search", "mass")[1].endswith("question 2 of: What is gravity?\n    Why? Because mass�\n")
    assert run("history", "search", "nowhere") == (0, "", "Nothing was found.\n")


def test_conversations_are_deleted_for_good(run: Run, store: HistoryStore) -> None:
    assert run("history", "delete", "a") == (2, "", "Error: This would delete 1 conversation. Add --yes.\n")
    assert run("history", "delete")[0] == 2
    assert run("history", "delete", "a", "aaaa", "--yes") == (0, "", "1 conversation deleted.\n")
    assert [each.identifier for each in store.list()] == ["77777777"]
    store.responses.keep(KeptResponse("resp_1", None, 0.0, "[]", "{}"))
    told = "1 conversation and 1 response to programs deleted.\n"
    assert run("history", "delete", "--all", "--yes") == (0, "", told)
    assert (store.responses.count(), store.identifiers()) == (0, [])
