"""`moa-client chat --companion`: without a server, at the first contact with one, and where it does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from inline_snapshot import snapshot

from tests.cli.client_program import CHAT, ENVIRONMENT, Run, Served, alone, make_model, words
from tests.support.programs import free_port
from tests.support.terminal import Terminal
from tests.support.tiny_models import WORDS, save_tokenizer

pytestmark = pytest.mark.xdist_group("client command line")
ASKED = [4, 10, 2, 5]  # "w10" in the tiny model's template
TOKENS = 6


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MOA_CLIENT_DAEMON", "false")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "cache"


def test_offline_it_is_a_chat_with_a_small_model_of_which_nothing_else_need_be_here(served: Served, run: Run) -> None:
    code, out, err = run(
        "chat", "--offline", "--server", f"127.0.0.1:{free_port()}", "--companion", served.model, "--max-tokens", TOKENS,
        "w10",
    )  # fmt: skip
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=TOKENS)) + "\n")
    assert "You are offline. Until a server is reachable, tiny on this device answers.\n" in err


def test_what_it_has_written_is_checked_by_the_first_server(
    served: Served, run: Run, tmp_path: Path, cache: Path
) -> None:
    small = make_model(tmp_path / "small", 2)
    environment = ENVIRONMENT | {
        "MOA_CLIENT_HISTORY": "true", "XDG_DATA_HOME": str(tmp_path / "data"), "MOA_CACHE_DIR": str(cache),
    }  # fmt: skip
    arguments = ["--server", served.address, "--companion", str(small), "--max-tokens", str(TOKENS)]
    chat = Terminal([*CHAT, "--offline", *arguments], environment)
    try:
        chat.wait_for("Until a server is reachable, small on this device answers.")
        chat.at_prompt("w10\r")
        chat.wait_for("cut after 6 tokens")
        chat.at_prompt("/online\r")
        chat.wait_for("which continues what small on this device has")
        chat.wait_for("The server has corrected the answer")
        chat.at_prompt("w11\r")
        chat.wait_for("cut after 6 tokens")
        chat.at_prompt("/bye\r")
        assert chat.end() == 0
    finally:
        chat.close()
    kept = json.loads(run("history", "export", "last", "--format", "json")[1])
    assert kept["model"] == "tiny"
    first, second = kept["answers"]
    expected = alone(served, ASKED, max_tokens=TOKENS)
    assert first["tokens"] == expected
    assert second["tokens"] == alone(served, [*ASKED, *expected, 2, 4, 11, 2, 5], max_tokens=TOKENS)


def test_one_with_another_vocabulary_is_refused(served: Served, run: Run, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other", 2)
    save_tokenizer(other, [*WORDS[:5], "other", *WORDS[6:]])
    code, out, err = run("chat", "--server", served.address, "--companion", other, "w10")
    assert (code, out) == (78, "")
    assert err.splitlines()[-1] == snapshot(
        "Error: other cannot be a companion of tiny: token 5 is 'w5' there and 'other' here. Choose a small model of the target's own family (docs/drafters.md#a-companion)."
    )


def test_one_is_chosen_once_for_all_chats(served: Served, run: Run, tmp_path: Path) -> None:
    nowhere = ("--server", f"127.0.0.1:{free_port()}")
    alone_there = ("chat", "--offline", *nowhere, "--max-tokens", TOKENS, "w10")
    assert run("companion")[:2] == (
        0,
        snapshot(
            "No companion: while no server answers, the drafter writes a few words. `moa-client companion set default`\n"
        ),
    )
    assert run("companion", "set", tmp_path / "nowhere.gguf")[0] == 66
    code, out, _ = run("companion", "set", served.model)
    assert (code, out.split(",")[0]) == (0, "From now on: tiny")
    assert "which server's model it stands in for" in run("companion")[1]
    code, out, err = run(*alone_there)
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=TOKENS)) + "\n"), err
    assert "tiny on this device answers" not in run(*alone_there, "--companion", "none")[2]
    assert run("companion", "off")[:2] == (0, "From now on: no companion.\n")
    assert "tiny on this device answers" not in run(*alone_there)[2]


def test_what_is_kept_and_does_not_fit_this_server_is_left_out(
    served: Served, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOA_CLIENT_SERVER", served.address)
    other = make_model(tmp_path / "other", 2)
    save_tokenizer(other, [*WORDS[:5], "other", *WORDS[6:]])
    assert run("companion", "set", other)[0] == 0
    code, out, err = run("chat", "--max-tokens", TOKENS, "w10")
    assert (code, out) == (0, words(alone(served, ASKED, max_tokens=TOKENS)) + "\n")
    assert "So there is no companion." in err
    assert run("companion", "set", other)[0] == 78  # now that server's model is known
