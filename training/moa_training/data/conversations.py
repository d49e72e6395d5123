"""Reading conversations: JSON lines of `messages`, or of tokens that the target wrote; bad rows are counted, not fatal.

Pure but for the files. Two forms of a row: {"messages": [{"role", "content"}, ...]} and
{"prompt_ids": [...], "answer_ids": [...], "temperature": t} (text that is already the target's own).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from moa_training.data.shards import TokenRow

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """A conversation in words.

    Args:
        messages: alternating user and assistant, perhaps after a system prompt.
        key: identifies it within its file.
    """

    messages: tuple[dict[str, str], ...]
    source: str
    key: str


@dataclass(slots=True)
class RowCounts:
    """What became of the rows read."""

    good: int = 0
    bad: Counter[str] = field(default_factory=Counter)  # by reason

    def __str__(self) -> str:
        total = sum(self.bad.values())
        if not total:
            return f"{self.good:,} rows, none malformed"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.bad.most_common())
        return f"{self.good:,} rows; {total:,} left out: {reasons}"


def read_conversations(
    lines: Iterable[str], counts: RowCounts, vocab_size: int, name: str = ""
) -> Iterator[TrainingConversation | TokenRow]:
    """Good rows, in order; the others are counted in `counts` by their reason."""
    for number, line in enumerate(lines):
        if not line.strip():
            counts.bad["empty"] += 1
            continue
        try:
            content: Any = json.loads(line)
        except ValueError:
            counts.bad["not JSON"] += 1
            continue
        row = parse_row(content, f"{name}:{number}", vocab_size)
        if isinstance(row, str):
            counts.bad[row] += 1
        else:
            counts.good += 1
            yield row


def parse_row(content: Any, key: str, vocab_size: int) -> TrainingConversation | TokenRow | str:
    """A row, or the reason why it is not valid."""
    if not isinstance(content, dict):
        return "not an object"
    source = str(content.get("source", ""))
    if "prompt_ids" in content:
        return _parse_tokens(content, source, key, vocab_size)
    messages = content.get("messages")
    if not isinstance(messages, list) or not messages:
        return "without messages"
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            return "with an unknown role"
        if not isinstance(message.get("content"), str):
            return "with a message that is not text"
    if not any(message["role"] == "user" and message["content"].strip() for message in messages):
        return "without a user's message"
    kept = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    return TrainingConversation(kept, source, key)


def _parse_tokens(content: dict[str, Any], source: str, key: str, vocab_size: int) -> TokenRow | str:
    prompt, answer = content.get("prompt_ids"), content.get("answer_ids")
    if not _are_tokens(prompt, vocab_size) or not _are_tokens(answer, vocab_size):
        return "with tokens outside the vocabulary"
    temperature = content.get("temperature")
    if temperature is not None and not isinstance(temperature, int | float):
        return "with a temperature that is not a number"
    ids = [*prompt, *answer]  # type: ignore[misc]
    return TokenRow(ids, [(len(prompt), len(ids))], source, temperature, str(content.get("key", key)))  # type: ignore[arg-type]


def _are_tokens(value: Any, vocab_size: int) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(token, int) and 0 <= token < vocab_size for token in value)
    )
