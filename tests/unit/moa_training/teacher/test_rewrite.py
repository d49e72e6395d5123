from __future__ import annotations

from pathlib import Path

import pytest
import torch
from inline_snapshot import snapshot
from moa_shared.errors import DiskFullError, MismatchError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.shards import ShardWriter, TokenRow, read_shard
from moa_training.teacher.rewrite import RewriteOptions, rewrite
from moa_training.teacher.same_target import SameTarget

from tests.support.messages import raises
from tests.support.part_runners import LastFirst
from tests.support.tiny_training import tiny_files, write_conversations

OPTIONS = RewriteOptions(prompt_tokens=14, answer_tokens=10, slots=6, dtype=torch.float32, part_answers=7)


def rows(path: Path, files: ModelFiles) -> list[TokenRow]:
    return list(read_shard(path, files.tokenizer_hash, 96))


def test_every_prompt_is_answered_once_though_it_was_killed(
    tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output, whole = (tmp_path / name for name in ("in.jsonl", "out.jsonl.zst", "whole.jsonl.zst"))
    write_conversations(source, 40)
    real_flush, flushed = ShardWriter.flush, 0

    def killed(self: ShardWriter) -> None:
        nonlocal flushed
        flushed += 1
        if flushed > 2:
            raise KeyboardInterrupt
        real_flush(self)

    monkeypatch.setattr(ShardWriter, "flush", killed)
    with pytest.raises(KeyboardInterrupt):
        rewrite(files, [source], output, OPTIONS, SilentProgress())
    assert len(rows(output, files)) == 14
    assert len(list((tmp_path / "out.jsonl.zst.parts").iterdir())) == 1  # finished, and not in the shard yet
    monkeypatch.setattr(ShardWriter, "flush", real_flush)
    counts = rewrite(files, [source], output, OPTIONS, SilentProgress())
    written = rows(output, files)
    assert len({row.key for row in written}) == len(written) == 40 - counts.bad["with too long a prompt"]
    assert all(len(row.ids) <= 24 for row in written)
    assert {row.temperature for row in written} == {0.0, 0.8}
    assert not (tmp_path / "out.jsonl.zst.parts").exists()
    assert rewrite(files, [source], output, OPTIONS, SilentProgress()).good == len(written)
    rewrite(files, [source], whole, OPTIONS, SilentProgress())
    assert output.read_bytes() == whole.read_bytes()  # the kill left no trace


def test_the_order_of_the_parts_leaves_no_trace(tmp_path: Path, files: ModelFiles) -> None:
    source, output, whole = (tmp_path / name for name in ("in.jsonl", "out.jsonl.zst", "whole.jsonl.zst"))
    write_conversations(source, 40)
    rewrite(files, [source], whole, OPTIONS, SilentProgress())
    rewrite(files, [source], output, OPTIONS, SilentProgress(), runner=LastFirst())
    assert output.read_bytes() == whole.read_bytes()
    answers = [row.ids[row.answers[0][0] :] for row in rows(output, files) if row.temperature]
    assert len({tuple(answer) for answer in answers}) > len(answers) / 2  # the parts have noise of their own


def test_a_worker_with_another_target_is_refused(tmp_path: Path, files: ModelFiles) -> None:
    other = tiny_files(tmp_path / "other", tmp_path / "cache", seed=2)
    with raises(
        MismatchError,
        snapshot(
            "TMP/other is another target on this worker (DIGEST, the work was planned for DIGEST). Give every node the same files, or name the target by its hub id."
        ),
    ):
        SameTarget(str(other.folder), files.fingerprint).find(SilentProgress())


def test_a_limit_holds_over_all_pieces(tmp_path: Path, files: ModelFiles) -> None:
    source, output = write_conversations(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl.zst"
    for limit in (7, 7, 11):
        options = RewriteOptions(prompt_tokens=30, answer_tokens=4, slots=4, limit=limit, dtype=torch.float32)
        counts = rewrite(files, [source], output, options, SilentProgress())
        assert counts.good == len(rows(output, files)) == limit


def test_a_shard_of_another_tokenizer_is_refused(tmp_path: Path, files: ModelFiles) -> None:
    words = ["<unk>", "user", "assistant", "system", "<end>", *(f"x{index}" for index in range(91))]
    other = tiny_files(tmp_path / "other", tmp_path / "cache", words=words)
    source, output = write_conversations(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl.zst"
    rewrite(files, [source], output, OPTIONS, SilentProgress())
    with raises(
        MismatchError,
        snapshot(
            "The shard TMP/out.jsonl.zst was made with another tokenizer (DIGEST, the target's is DIGEST). Prepare the text again with this target."
        ),
    ):
        rewrite(other, [source], output, OPTIONS, SilentProgress())


def test_a_full_disk_is_said(tmp_path: Path, files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: ShardWriter) -> None:
        raise DiskFullError("The shard cannot be written.")

    monkeypatch.setattr(ShardWriter, "flush", full)
    source = write_conversations(tmp_path / "in.jsonl", 3)
    with pytest.raises(DiskFullError):
        rewrite(files, [source], tmp_path / "out.jsonl.zst", OPTIONS, SilentProgress())
