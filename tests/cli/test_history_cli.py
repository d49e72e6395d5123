"""`moa-client history` as a user meets it: no command needs a server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.text_runs import Provenance
from moa_client.history.records import ConversationOrigin
from moa_client.history.responses import KeptResponse
from moa_client.history.store import HistoryStore
from moa_shared.sampling.settings import CHAT_DEFAULTS

from tests.cli.client_program import Run

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
    assert run("history", "list", "--json") == (0, "[]\n", "")
    assert run("history", "show", "last") == snapshot((66, "", "Error: No conversation is kept yet.\n"))
    assert run("history", "delete", "--all", "--yes") == (0, "", "No conversation is kept.\n")


@pytest.mark.parametrize(
    "command", [("show",), ("export",), ("search",), ("delete", "--yes")], ids=lambda each: each[0]
)
def test_what_is_no_text_is_refused(run: Run, command: tuple[str, ...]) -> None:
    code, out, err = run("history", *command, "caf\udce9")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].endswith("'caf\\udce9' is not text in UTF-8.")


def test_conversations_are_listed(run: Run, store: HistoryStore) -> None:
    code, out, err = run("history", "list")
    assert (code, err) == (0, "")
    assert out == snapshot("""\
ID        LAST USED         QUESTIONS  MODEL                  TITLE
77777777  2027-01-15 08:07  1          another model          Lists�[2J
aaaaaaaa  2027-01-15 08:04  2          SmolLM2-135M-Instruct  What is gravity? (1 to be checked)
""")
    assert run("history", "list", "-n", 1)[1:] == snapshot(
        (
            """\
ID        LAST USED         QUESTIONS  MODEL          TITLE
77777777  2027-01-15 08:07  1          another model  Lists�[2J
""",
            "1 more: --all lists them.\n",
        )
    )
    assert "aaaaaaaa" not in run("history", "list", "-n", 1)[1]
    assert run("history", "list", "--unverified", "--json")[1] == snapshot("""\
[
  {
    "id": "aaaaaaaa",
    "title": "What is gravity?",
    "created": 1800000000.0,
    "updated": 1800000240.0,
    "model": "SmolLM2-135M-Instruct",
    "server": "127.0.0.1:50051",
    "questions": 2,
    "unverified": 1
  }
]
""")


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
    assert run("history", "show", "last")[1] == snapshot("""\
Lists�[2J
Conversation 77777777 of 2027-01-15 08:05
with another model

> Name all numbers


(cut: max_tokens)
""")
    assert run("history", "show", "b") == snapshot(
        (66, "", "Error: There is no conversation b. `moa-client history list` shows those that are kept.\n")
    )


def test_a_conversation_is_exported(run: Run, store: HistoryStore, tmp_path: Path) -> None:
    assert run("history", "export", "a")[1] == snapshot("""\
# What is gravity?

Conversation aaaaaaaa of 2027-01-15 08:00  \n\
with SmolLM2-135M-Instruct (int8) at 127.0.0.1:50051  \n\
System prompt: Be brief.  \n\

## Question 1

> What is gravity?
> In one word.

A *force*�[2J.
Yes.

*(chosen with --temperature 0.7 --top-p 0.95 --repeat-penalty 1.1 --repeat-last-n 64 --seed 3 --logit-bias 42=-5)*

## Question 2

> Why?

Because [unverified:] mass�

*(a server is still to check and complete this answer)*
""")
    file = tmp_path / "a.json"
    assert run("history", "export", "a", "--format", "json", "-o", file) == (0, "", "")
    assert json.loads(file.read_text()) == snapshot(
        {
            "id": "aaaaaaaa",
            "title": "",
            "created": 1800000000.0,
            "updated": 1800000240.0,
            "model": "SmolLM2-135M-Instruct",
            "target_fingerprint": "7474",
            "tokenizer_hash": "6b6b",
            "execution": "int8",
            "server": "127.0.0.1:50051",
            "system": "Be brief.",
            "answers": [
                {
                    "question": """\
What is gravity?
In one word.\
""",
                    "text": """\
A *force*\x1b[2J.
Yes.\
""",
                    "provisional": "",
                    "standing": "decided",
                    "finish": "end_of_text",
                    "outcome": None,
                    "asked": 1800000060.0,
                    "ended": 1800000120.0,
                    "options": {
                        "temperature": 0.7,
                        "top_k": 0,
                        "top_p": 0.95,
                        "seed": 3,
                        "max_tokens": 0,
                        "stop": [],
                        "min_p": 0.0,
                        "repeat_penalty": 1.1,
                        "repeat_last_n": 64,
                        "presence_penalty": 0.0,
                        "frequency_penalty": 0.0,
                        "logit_bias": {"42": -5.0},
                        "loop_guard": True,
                    },
                    "question_tokens": [7],
                    "tokens": [8],
                    "provenance": "T",
                    "provisional_tokens": [],
                    "written_alone": 0,
                    "kept": 0,
                    "figures": {"tokens": 1},
                    "versions": [],
                },
                {
                    "question": "Why?",
                    "text": "Because ",
                    "provisional": "mass\x07",
                    "standing": "unverified",
                    "finish": "unfinished",
                    "outcome": None,
                    "asked": 1800000180.0,
                    "ended": 1800000240.0,
                    "options": {
                        "temperature": 0.0,
                        "top_k": 0,
                        "top_p": 1.0,
                        "seed": 0,
                        "max_tokens": 0,
                        "stop": [],
                        "min_p": 0.0,
                        "repeat_penalty": 1.0,
                        "repeat_last_n": 64,
                        "presence_penalty": 0.0,
                        "frequency_penalty": 0.0,
                        "logit_bias": {},
                        "loop_guard": True,
                    },
                    "question_tokens": [7],
                    "tokens": [9],
                    "provenance": "T",
                    "provisional_tokens": [1],
                    "written_alone": 1,
                    "kept": 0,
                    "figures": {},
                    "versions": [],
                },
            ],
        }
    )
    assert run("history", "export", "a", "-o", tmp_path) == snapshot(
        (74, "", "Error: TMP cannot be written: Is a directory. Write to another place, or free some space there.\n")
    )


def test_words_are_found(run: Run, store: HistoryStore) -> None:
    assert run("history", "search", "forc", "yes") == snapshot(
        (
            0,
            """\
aaaaaaaa  2027-01-15 08:01  question 1 of: What is gravity?
    A *force*�[2J. Yes.
""",
            "",
        )
    )
    assert run("history", "search", "mass")[1] == snapshot("""\
aaaaaaaa  2027-01-15 08:03  question 2 of: What is gravity?
    Because mass�
""")
    assert run("history", "search", "mass", "--json")[1] == snapshot("""\
[
  {
    "id": "aaaaaaaa",
    "title": "What is gravity?",
    "question": 2,
    "asked": 1800000180.0,
    "snippet": "Because mass\\u0007"
  }
]
""")
    assert run("history", "search", "nowhere") == (0, "", "Nothing was found.\n")


def test_conversations_are_deleted_for_good(run: Run, store: HistoryStore) -> None:
    assert run("history", "delete", "a") == snapshot((2, "", "Error: This would delete 1 conversation. Add --yes.\n"))
    assert run("history", "delete") == snapshot(
        (2, "", "Error: Which conversations are to be deleted? Give IDs, or --all.\n")
    )
    assert run("history", "delete", "a", "aaaa", "--yes") == snapshot((0, "", "1 conversation deleted.\n"))
    assert [each.identifier for each in store.list()] == ["77777777"]
    store.responses.keep(KeptResponse("resp_1", None, 0.0, "[]", "{}"))
    assert run("history", "delete", "--all", "--yes") == snapshot(
        (0, "", "1 conversation and 1 response to programs deleted.\n")
    )
    assert store.responses.count() == 0
    assert store.identifiers() == []


def test_another_folder_may_be_named(run: Run, store: HistoryStore, tmp_path: Path) -> None:
    assert run("history", "list", "--history-dir", tmp_path / "empty")[1] == ""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "history.db").write_text("nothing" * 1000)
    assert run("history", "list", "--history-dir", broken) == snapshot(
        (
            74,
            "",
            "Error: The history TMP/broken/history.db is damaged, or no history; it was left as it is. Move it elsewhere, or restore a copy.\n",
        )
    )
