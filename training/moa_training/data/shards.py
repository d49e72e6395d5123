"""Token shards: one conversation a row, tokens of one tokenizer, in zstd-compressed JSON lines.

The first line of a file is its header (format, tokenizer hash, target fingerprint where the target wrote the answers).
Files grow by whole zstd frames, so that a kill loses at most the frame being written; readers take what is whole.
"""

import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import zstandard
from moa_shared.errors import DataError, DiskFullError, MismatchError, NotFoundError

FORMAT = "moa-tokens-1"
SUFFIX = ".jsonl.zst"
_LEVEL = 12  # 1.2 bytes a token at 50 MB/s; higher levels gain less than 3 %


@dataclass(frozen=True, slots=True)
class ShardHeader:
    tokenizer_hash: str  # of moa_shared.models.ModelFiles
    target_fingerprint: str = ""  # of the target that wrote the answers; empty for other text


@dataclass(frozen=True, slots=True)
class TokenRow:
    ids: Sequence[int]  # all of its tokens
    answers: Sequence[tuple[int, int]]  # (start, stop) of each answer among them
    source: str = ""  # where the prompt comes from
    temperature: float | None = None  # at which the target wrote the answer; None: not the target's own text
    key: str = ""  # identifies the prompt, so that a rewrite can be resumed


class ShardWriter:
    """Appends rows to a shard; each `flush` adds one whole frame."""

    def __init__(self, path: Path, header: ShardHeader) -> None:
        self._path = path
        self._pending: list[str] = []
        if path.is_file() and path.stat().st_size:
            check_header(path, header.tokenizer_hash)
            _cut_torn_frame(path)
        else:
            self._pending.append(json.dumps({"format": FORMAT, **asdict(header)}))

    def add(self, row: TokenRow) -> None:
        self._pending.append(json.dumps(asdict(row), separators=(",", ":")))

    def flush(self) -> None:
        """Writes the waiting rows; raises DiskFullError if there is no room, and the file then ends as before."""
        if not self._pending:
            return
        frame = zstandard.ZstdCompressor(level=_LEVEL).compress(("\n".join(self._pending) + "\n").encode())
        size = self._path.stat().st_size if self._path.exists() else 0
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(frame)
        except OSError as error:
            if self._path.exists():
                with self._path.open("r+b") as file:
                    file.truncate(size)
            raise DiskFullError(f"The shard {self._path} cannot be written ({error.strerror}).") from None
        self._pending.clear()


def read_lines(path: Path) -> Iterator[str]:
    """Lines of a text file, decompressed where its name ends in .zst; a torn last frame is left out."""
    if not path.is_file():
        raise NotFoundError(f"There is no file {path}.", hint="Check the path.")
    if path.suffix != ".zst":
        with path.open(encoding="utf-8", errors="replace") as text:
            yield from text
        return
    read = False
    with path.open("rb") as raw:
        reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        try:
            for line in io.TextIOWrapper(reader, "utf-8", errors="replace", newline="\n"):
                read = True
                if line.endswith(("\n", "}")):
                    yield line.removesuffix("\n")
        except zstandard.ZstdError as error:
            if not read:
                raise DataError(f"{path} is not zstd-compressed ({error}).") from None


def _cut_torn_frame(path: Path) -> None:
    """Truncates a shard to its whole frames: a kill may have left part of one."""
    data = path.read_bytes()
    whole = 0
    while whole < len(data):
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        try:
            decompressor.decompress(data[whole:])
        except zstandard.ZstdError:
            break
        if not decompressor.eof:
            break
        whole = len(data) - len(decompressor.unused_data)
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)


def check_header(path: Path, tokenizer_hash: str) -> ShardHeader:
    first = next(read_lines(path), "")
    try:
        content: Any = json.loads(first)
        if content.pop("format") != FORMAT:
            raise KeyError("format")
        header = ShardHeader(**content)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{path} is not a token shard.", hint="Make one with moa-train prepare.") from None
    if header.tokenizer_hash != tokenizer_hash:
        raise MismatchError(
            f"The shard {path} was made with another tokenizer ({header.tokenizer_hash[:12]}, "
            f"the target's is {tokenizer_hash[:12]}).",
            hint="Prepare the text again with this target.",
        )
    return header


def read_shard(path: Path, tokenizer_hash: str, vocab_size: int) -> Iterator[TokenRow]:
    check_header(path, tokenizer_hash)
    for number, line in enumerate(read_lines(path)):
        if number == 0:
            continue
        try:
            content = json.loads(line)
            content["answers"] = [(int(start), int(stop)) for start, stop in content["answers"]]
            row = TokenRow(**content)
            if not row.ids or min(row.ids) < 0 or max(row.ids) >= vocab_size:
                raise ValueError("tokens outside the vocabulary")
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"Row {number} of the shard {path} is damaged ({error}).") from None
        yield row


def find_shards(paths: Iterable[Path]) -> list[Path]:
    """Shard files among files and folders, sorted within a folder."""
    found: list[Path] = []
    for path in paths:
        inside = sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]
        if not inside or not inside[0].is_file():
            raise NotFoundError(f"There are no token shards at {path}.", hint="Make them with moa-train prepare.")
        found += inside
    return found
