"""Conversations for token shards, and questions to evaluate on, from JSON lines.

A row of conversations is {"messages": [{"role", "content"}, ...]}; bad ones are counted by their reason, not fatal. Its
answers are what its assistant turns hold, found as the difference between the chat template with and without them, so
that any template serves. Questions have the form of Spec-Bench, {"question_id", "category", "turns"}; only the first
turn is asked, and `reference` or `final_answer` may name the right result.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.progress import Progress

from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_lines

HUB_PREFIX = "hub:"
_PATTERNS = ("*.jsonl", "*.jsonl.zst")
_ROLES = ("system", "user", "assistant")
_FLUSH_ROWS = 512  # about 100 kB of compressed text a frame


@dataclass(frozen=True, slots=True)
class TrainingConversation:
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


_NUMBER = re.compile(r"(?:(?<![\w)])-)?\$?\d[\d,]*(?:\.\d+)?")
_MARKED = re.compile(r"####([^\n]*)|\\boxed\{([^}]*)\}")


@dataclass(frozen=True, slots=True)
class TaskQuestion:
    """A question with its tokens (chat template, opening of the answer included), and the number that its reference
    names as its result.
    """

    category: str
    prompt: tuple[int, ...]
    result: Decimal | None = None


def read_questions(
    path: Path, files: ModelFiles, limit: int | None, longest_prompt: int
) -> tuple[list[TaskQuestion], int]:
    """Questions of a file, or of each file of a folder that holds such, whose names are the categories then; at most
    `limit` of each. And how many rows were left out (malformed or too long).
    """
    if not path.exists():
        raise NotFoundError(
            f"There are no questions at {path}.", hint="Name a file of JSON lines, or a folder of such."
        )
    tokenizer = load_tokenizer(files)
    questions: list[TaskQuestion] = []
    taken: dict[str, int] = {}
    left_out = 0
    for file in sorted(path.glob("*.jsonl*")) if path.is_dir() else [path]:
        for line in read_lines(file):
            category, text, result = _parse_question(line)
            if text is None:
                left_out += not path.is_dir()  # a folder may hold files of other forms
                continue
            category = file.name.split(".")[0] if path.is_dir() or not category else category
            if limit is not None and taken.get(category, 0) >= limit:
                continue
            ids = template_ids(tokenizer, [{"role": "user", "content": text}], generate=True)
            if len(ids) > longest_prompt:
                left_out += 1
                continue
            taken[category] = taken.get(category, 0) + 1
            questions.append(TaskQuestion(category, tuple(ids), result))
    if not questions:
        raise DataError(f"{path} holds no question that can be asked.", hint='A row is {"category", "turns": [text]}.')
    return questions, left_out


def _parse_question(line: str) -> tuple[str, str | None, Decimal | None]:
    try:
        content = json.loads(line)
        turns = content["turns"]
        text = turns[0] if isinstance(turns, list) and turns and isinstance(turns[0], str) else None
        return str(content.get("category") or ""), text, reference_result(content)
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", None, None


def reference_result(row: dict[str, Any]) -> Decimal | None:
    """The number that a row of the questions names as its result: `final_answer`, or what the first reference marks
    (GSM8K's "#### 18").
    """
    given = row.get("final_answer")
    if given is not None:
        return _number(str(given))
    reference = row.get("reference")
    first = reference[0] if isinstance(reference, list) and reference else None
    return stated_result(first) if isinstance(first, str) and _MARKED.search(first) else None


def stated_result(text: str) -> Decimal | None:
    """The number that a text ends up with: a marked one ("#### 18", "\\boxed{18}"), or else the last one."""
    marked = [number for match in _MARKED.findall(text) if (number := _number("".join(match))) is not None]
    return marked[-1] if marked else _number(text)


def _number(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    try:
        return Decimal(found[-1].replace(",", "").replace("$", "")) if found else None
    except InvalidOperation:
        return None
