import errno
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.errors import DataError, DiskFullError, NotFoundError
from moa_training.data.shards import ShardHeader, ShardWriter, TokenRow, find_shards, read_lines, read_shard

HEADER = ShardHeader("tok", "target")


def write(path: Path, *rows: TokenRow) -> None:
    writer = ShardWriter(path, HEADER)
    for row in rows:
        writer.add(row)
    writer.flush()


def ids_of(path: Path) -> list[Any]:
    return [each.ids for each in read_shard(path, "tok", 100)]


def row(*ids: int) -> TokenRow:
    return TokenRow(list(ids), [(1, len(ids))], "s", 0.0, str(ids))


@given(ids=st.lists(st.lists(st.integers(0, 99), min_size=2, max_size=9), max_size=9))
def test_rows_come_back_as_they_were(tmp_path_factory: pytest.TempPathFactory, ids: list[list[int]]) -> None:
    path = tmp_path_factory.mktemp("s") / "a.jsonl.zst"
    rows = [row(*each) for each in ids]
    write(path, *rows)
    assert list(read_shard(path, "tok", 100)) == rows


@pytest.mark.parametrize("lost", [1, 7, 20])
def test_a_torn_frame_is_left_out_and_cut_before_the_next_one(tmp_path: Path, lost: int) -> None:
    path = tmp_path / "a.jsonl.zst"
    write(path, row(1, 2))
    whole = path.stat().st_size
    write(path, row(3, 4), row(5, 6))
    assert ids_of(path) == [[1, 2], [3, 4], [5, 6]]
    path.write_bytes(path.read_bytes()[:-lost])
    assert path.stat().st_size > whole
    assert ids_of(path)[:1] == [[1, 2]]
    write(path, row(7, 8))
    assert ids_of(path) == [[1, 2], [7, 8]]


@pytest.mark.parametrize("text", ["", "{}\n", '{"format": "else"}\n', "[1]\n", "words\n", None])
def test_what_is_no_shard_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(b"plain text, not compressed at all" if text is None else zstandard.compress(text.encode()))
    with pytest.raises(DataError, match="not"):
        list(read_shard(path, "tok", 100))


@pytest.mark.parametrize("bad", ['{"ids": [1, 100], "answers": []}', '{"ids": []}', '{"ids": "x", "answers": []}', "5"])
def test_a_damaged_row_is_named(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "a.jsonl.zst"
    header = json.dumps({"format": "moa-tokens-1", "tokenizer_hash": "tok"})
    path.write_bytes(zstandard.compress(f"{header}\n{bad}\n".encode()))
    with pytest.raises(DataError, match="Row 1"):
        list(read_shard(path, "tok", 100))


def test_a_full_disk_leaves_the_shard_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl.zst"
    write(path, row(1, 2))
    before = path.read_bytes()
    writer = ShardWriter(path, HEADER)
    writer.add(row(3, 4))
    real_open = Path.open

    def full(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode != "ab":
            return real_open(self, mode, *args, **kwargs)
        with real_open(self, "ab") as file:
            file.write(b"half a frame")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(DiskFullError, match=r"cannot be written \(No space left on device\)"):
        writer.flush()
    monkeypatch.undo()
    assert path.read_bytes() == before
    writer.flush()
    assert ids_of(path) == [[1, 2], [3, 4]]


def test_shards_are_found_in_folders_in_order_and_lines_in_plain_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        write(tmp_path / f"{name}.jsonl.zst", row(1, 2))
    assert [path.name for path in find_shards([tmp_path])] == ["a.jsonl.zst", "b.jsonl.zst"]
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(NotFoundError):
            find_shards([missing])
    (tmp_path / "a.jsonl").write_text("one\ntwo")
    assert [line.strip() for line in read_lines(tmp_path / "a.jsonl")] == ["one", "two"]
    with pytest.raises(NotFoundError):
        list(read_lines(tmp_path / "b.jsonl"))
