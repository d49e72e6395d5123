"""From conversations to token shards.

State: the shard being written. A row's answers are what its assistant turns hold, found as the difference between the
chat template with and without them, so that any template serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress

from moa_training.data.conversations import RowCounts, TrainingConversation, read_conversations
from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, read_lines

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

_FLUSH_ROWS = 512  # about 100 kB of compressed text a frame


def prepare(files: ModelFiles, sources: Iterable[Path], output: Path, max_tokens: int, progress: Progress) -> RowCounts:
    """Writes the rows of `sources` into the shard `output`, replacing it; what was read and left out."""
    counts = RowCounts()
    output.unlink(missing_ok=True)
    fingerprint = files.fingerprint
    writer = ShardWriter(output, ShardHeader(files.tokenizer_hash, fingerprint))
    with progress.task(f"preparing {output.name}") as bar:
        for pending, row in enumerate(token_rows(files, sources, counts, max_tokens), start=1):
            writer.add(row)
            bar.advance(1)
            if pending % _FLUSH_ROWS == 0:
                writer.flush()
        writer.flush()
    return counts


def token_rows(files: ModelFiles, sources: Iterable[Path], counts: RowCounts, max_tokens: int) -> Iterator[TokenRow]:
    """Rows of all sources as tokens, at most `max_tokens` each."""
    tokenizer: Tokenizer | None = None
    vocab = int(files.config["vocab_size"])
    for path in sources:
        for row in read_conversations(read_lines(path), counts, vocab, path.name):
            if isinstance(row, TrainingConversation):
                if tokenizer is None:
                    from moa_shared.models import load_tokenizer

                    tokenizer = load_tokenizer(files)
                row = tokenize(tokenizer, row)
            cut = [(start, min(stop, max_tokens)) for start, stop in row.answers if start < max_tokens]
            if not cut:
                counts.good -= 1
                counts.bad["without an answer that fits"] += 1
                continue
            yield TokenRow(list(row.ids)[:max_tokens], cut, row.source, row.temperature, row.key)


def tokenize(tokenizer: Tokenizer, conversation: TrainingConversation) -> TokenRow:
    """Tokens of a conversation by the target's chat template, and where its answers lie."""
    messages = list(conversation.messages)
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


def template_ids(tokenizer: Tokenizer, messages: list[dict[str, str]], *, generate: bool) -> list[int]:
    """The chat template's tokens, followed by the opening of an answer if `generate`."""
    return tokenizer.encode(tokenizer.apply_chat_template(messages, add_generation_prompt=generate))
