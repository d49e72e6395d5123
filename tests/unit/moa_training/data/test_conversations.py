from __future__ import annotations

import json

import pytest
from moa_training.data.conversations import RowCounts, TrainingConversation, read_conversations
from moa_training.data.shards import TokenRow

GOOD = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "source": "x"}


def read(*lines: object) -> tuple[list[TrainingConversation | TokenRow], RowCounts]:
    counts = RowCounts()
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    return list(read_conversations(texts, counts, 50, "f")), counts


def test_good_rows_pass() -> None:
    rows, counts = read(GOOD, {"prompt_ids": [1, 2], "answer_ids": [3], "temperature": 0.8})
    assert isinstance(rows[0], TrainingConversation)
    assert rows[1] == TokenRow([1, 2, 3], [(2, 3)], "", 0.8, "f:1")
    assert counts.good == 2
    assert str(counts) == "2 rows, none malformed"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("", "empty"),
        ("{", "not JSON"),
        ("[1]", "not an object"),
        ({}, "without messages"),
        ({"messages": []}, "without messages"),
        ({"messages": "text"}, "without messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "with an unknown role"),
        ({"messages": ["a"]}, "with an unknown role"),
        ({"messages": [{"role": "user", "content": 5}]}, "with a message that is not text"),
        ({"messages": [{"role": "user", "content": "  "}]}, "without a user's message"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "without a user's message"),
        ({"prompt_ids": [1], "answer_ids": [50]}, "with tokens outside the vocabulary"),
        ({"prompt_ids": [-1], "answer_ids": [5]}, "with tokens outside the vocabulary"),
        ({"prompt_ids": [1], "answer_ids": []}, "with tokens outside the vocabulary"),
        ({"prompt_ids": [1], "answer_ids": [2], "temperature": "hot"}, "with a temperature that is not a number"),
    ],
)
def test_bad_rows_are_counted_by_their_reason(bad: object, reason: str) -> None:
    rows, counts = read(GOOD, bad, GOOD)
    assert len(rows) == counts.good == 2
    assert dict(counts.bad) == {reason: 1}
    assert str(counts) == f"2 rows; 1 left out: 1 {reason}"
