"""`moa-client history` as a user meets it: no command needs a server."""

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.conversation.events import Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.history.database import KeptResponse
from moa_client.history.reading import ConversationOrigin
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
