"""From conversations to token shards: JSON lines of {"messages": [{"role", "content"}, ...]}.

Bad rows are counted by their reason, not fatal. A row's answers are what its assistant turns hold, found as the
difference between the chat template with and without them, so that any template serves.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress

from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_lines

HUB_PREFIX = "hub:"
_PATTERNS = ("*.jsonl", "*.jsonl.zst")
_ROLES = ("system", "user", "assistant")
_FLUSH_ROWS = 512  # about 100 kB of compressed text a frame


@dataclass(frozen=True, slots=True)
class TrainingConversation:
    """A conversation in words."""

    messages: tuple[dict[str, str], ...]  # alternating user and assistant, perhaps after a system prompt
    source: str
    key: str  # identifies it within its file


@dataclass(slots=True)
class RowCounts:
    """What became of the rows read: how many were good, and how many bad, by reason."""

    good: int = 0
    bad: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        total = sum(self.bad.values())
        if not total:
            return f"{self.good:,} rows, none malformed"
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in self.bad.most_common())
        return f"{self.good:,} rows; {total:,} left out: {reasons}"


def find_sources(names: Iterable[str], progress: Progress) -> list[Path]:
    """Files of JSON lines; "hub:owner/name" means all of that data set."""
    found: list[Path] = []
    for name in names:
        if name.startswith(HUB_PREFIX):
            found += _fetch(name.removeprefix(HUB_PREFIX), progress)
        elif Path(name).is_file():
            found.append(Path(name))
        else:
            raise NotFoundError(
                f"There is no file {name}.", hint="Name files of JSON lines, or hub:owner/name for a hub data set."
            )
    return found


def _fetch(repository: str, progress: Progress) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    progress.note(f"Fetching the data set {repository} ...")
    try:
        folder = Path(snapshot_download(repository, repo_type="dataset", allow_patterns=list(_PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"The data set {repository} cannot be fetched ({reason}).", hint="Check name and network."
        ) from None
    files = sorted(path for pattern in _PATTERNS for path in folder.rglob(pattern))
    if not files:
        raise DataError(f"The data set {repository} holds no JSON lines.", hint="Convert it to JSON lines of messages.")
    return files


def read_conversations(sources: Iterable[Path], counts: RowCounts) -> Iterator[TrainingConversation]:
    """Good rows of files, in order; the others are counted in `counts` by their reason."""
    for path in sources:
        for number, line in enumerate(read_lines(path)):
            row = _parse(line, f"{path.name}:{number}")
            if isinstance(row, str):
                counts.bad[row] += 1
            else:
                counts.good += 1
                yield row


def _parse(line: str, key: str) -> TrainingConversation | str:
    """A row, or the reason why it is not valid."""
    if not line.strip():
        return "empty"
    try:
        content: Any = json.loads(line)
    except ValueError:
        return "not JSON"
    if not isinstance(content, dict):
        return "not an object"
    messages = content.get("messages")
    if not isinstance(messages, list) or not messages:
        return "without messages"
    for message in messages:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            return "with an unknown role"
        if not isinstance(message.get("content"), str):
            return "with a message that is not text"
    if not any(message["role"] == "user" and message["content"].strip() for message in messages):
        return "without a user's message"
    kept = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    return TrainingConversation(kept, str(content.get("source", "")), key)


def prepare(files: ModelFiles, sources: Iterable[Path], output: Path, max_tokens: int, progress: Progress) -> RowCounts:
    """Writes the rows of `sources` into the shard `output`, replacing it, each cut after `max_tokens`; what was read
    and left out.
    """
    counts = RowCounts()
    output.unlink(missing_ok=True)
    writer = ShardWriter(output, ShardHeader(files.tokenizer_hash, files.fingerprint))
    tokenizer, written = load_tokenizer(files), 0
    with progress.task(f"preparing {output.name}") as bar:
        for conversation in read_conversations(sources, counts):
            row = _tokenize(tokenizer, conversation)
            cut = [(start, min(stop, max_tokens)) for start, stop in row.answers if start < max_tokens]
            if not cut:
                counts.good -= 1
                counts.bad["without an answer that fits"] += 1
                continue
            writer.add(TokenRow(list(row.ids)[:max_tokens], cut, row.source, row.temperature, row.key))
            bar.advance(1)
            written += 1
            if written % _FLUSH_ROWS == 0:
                writer.flush()
        writer.flush()
    return counts


def _tokenize(tokenizer: Tokenizer, conversation: TrainingConversation) -> TokenRow:
    """Tokens of a conversation by the target's chat template, and where its answers lie."""
    messages = conversation.messages
    answers: list[tuple[int, int]] = []
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or index == 0:
            continue
        before = template_ids(tokenizer, messages[:index], generate=True)
        after = template_ids(tokenizer, messages[: index + 1], generate=False)
        if len(after) > len(before) and after[: len(before)] == before:
            answers.append((len(before), len(after)))
    ids = template_ids(tokenizer, messages, generate=False)
    return TokenRow(ids, answers, conversation.source, None, conversation.key)


def template_ids(tokenizer: Tokenizer, messages: Sequence[dict[str, str]], *, generate: bool) -> list[int]:
    """The chat template's tokens, followed by the opening of an answer if `generate`."""
    return tokenizer.encode(tokenizer.apply_chat_template(list(messages), add_generation_prompt=generate))
