from collections import Counter
from pathlib import Path

import pytest
import torch
from moa_shared.models import ModelFiles, load_target_model
from moa_shared.programs.progress import Progress
from moa_training.data.shards import ShardWriter, TokenRow, read_shard
from moa_training.settings import PrepareOptions
from moa_training.teacher.teacher import noise, rewrite, write_answers

from tests.support.tiny_training import write_conversations

OPTIONS = PrepareOptions(rewrite=True, prompt_tokens=14, answer_tokens=10, slots=7)


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
        rewrite(files, [source], output, OPTIONS, Progress())
    assert len(rows(output, files)) == 14
    monkeypatch.setattr(ShardWriter, "flush", real_flush)
    counts = rewrite(files, [source], output, OPTIONS, Progress())
    written = rows(output, files)
    assert len({row.key for row in written}) == len(written) == 40 - counts.bad["with too long a prompt"]
    assert all(len(row.ids) <= 24 for row in written)
    assert {row.temperature for row in written} == {0.0, 0.8}
    assert rewrite(files, [source], output, OPTIONS, Progress()).good == len(written)
    rewrite(files, [source], whole, OPTIONS, Progress())
    assert output.read_bytes() == whole.read_bytes()  # the kill left no trace


def test_greedy_answers_are_those_of_one_prompt_at_a_time_and_sampled_ones_have_noise(
    tmp_path: Path, files: ModelFiles
) -> None:
    source, output = write_conversations(tmp_path / "in.jsonl", 40), tmp_path / "out.jsonl.zst"
    rewrite(files, [source], output, OPTIONS, Progress(), torch.float32)
    plain, sampled = load_target_model(files, torch.float32), list[tuple[int, ...]]()
    for row in rows(output, files):
        ((start, stop),) = row.answers
        ids = list(row.ids[:start])
        with torch.inference_mode():
            while len(ids) < start + 10 and not (len(ids) > start and ids[-1] == 4):
                ids.append(int(plain(torch.tensor([ids])).logits[0, -1].argmax()))
        if row.temperature:
            sampled.append(tuple(row.ids[start:stop]))
        else:
            assert ids == row.ids
    assert len(set(sampled)) > len(sampled) / 2  # batches have noise of their own


def test_sampled_answers_follow_the_distribution(files: ModelFiles) -> None:
    model, prompt = load_target_model(files, torch.float32), [7, 8, 9]
    with torch.inference_mode():
        expected = (model(torch.tensor([prompt])).logits[0, -1] / 0.7).softmax(-1)
    choose = noise([TokenRow(prompt, (), temperature=0.7)] * 4000, 3, "cpu")
    drawn = Counter(answer[0] for answer in write_answers(model, [prompt] * 4000, 1, {4}, choose))
    total_variation = sum(abs(drawn[token] / 4000 - float(share)) for token, share in enumerate(expected)) / 2
    assert total_variation < 0.08


def test_a_limit_holds_over_all_pieces(tmp_path: Path, files: ModelFiles) -> None:
    source, output = write_conversations(tmp_path / "in.jsonl", 30), tmp_path / "out.jsonl.zst"
    for limit in (7, 7, 11):
        options = PrepareOptions(prompt_tokens=30, answer_tokens=4, slots=4, limit=limit)
        counts = rewrite(files, [source], output, options, Progress())
        assert counts.good == len(rows(output, files)) == limit
