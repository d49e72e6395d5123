from __future__ import annotations

import json
from pathlib import Path

from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.prepare import prepare
from moa_training.data.shards import read_shard

from tests.support.tiny_training import WORDS


def test_answers_are_found_in_the_template_and_bad_rows_counted(tmp_path: Path, files: ModelFiles) -> None:
    turns = [("user", "w1 w2"), ("assistant", "w3"), ("user", "w4"), ("assistant", "w5 w6")]
    rows = [
        json.dumps({"messages": [{"role": role, "content": text} for role, text in turns], "source": "toy"}),
        "not json",
        json.dumps({"messages": [{"role": "user", "content": "w1"}]}),
        json.dumps({"prompt_ids": [1, 2], "answer_ids": [3, 4], "temperature": 0.0}),
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(rows))
    counts = prepare(files, [source], tmp_path / "out.jsonl.zst", 64, SilentProgress())
    assert counts.good == 2
    assert dict(counts.bad) == {"not JSON": 1, "without an answer that fits": 1}
    first, second = read_shard(tmp_path / "out.jsonl.zst", files.tokenizer_hash, len(WORDS))
    words = [WORDS[token] for token in first.ids]
    assert [words[start:stop] for start, stop in first.answers] == [["w3", "<end>"], ["w5", "w6", "<end>"]]
    assert second.ids == [1, 2, 3, 4]
    assert second.answers == [(2, 4)]


def test_long_conversations_are_cut(tmp_path: Path, files: ModelFiles) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt_ids": [1] * 5, "answer_ids": [2] * 9}) + "\n")
    prepare(files, [source], tmp_path / "out.jsonl.zst", 8, SilentProgress())
    (row,) = read_shard(tmp_path / "out.jsonl.zst", files.tokenizer_hash, len(WORDS))
    assert (len(row.ids), row.answers) == (8, [(5, 8)])
