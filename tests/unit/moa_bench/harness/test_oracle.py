"""What is asked, of which model, and how an answer is read: questions, random models, oracles, and what a screen shows."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_bench.harness.oracle import OracleDrafter, Script
from moa_bench.harness.questions import BenchQuestion, read_all
from moa_bench.harness.random_model import _tensors, random_model
from moa_bench.harness.shapes import SHAPES, ModelShape
from moa_bench.harness.split_client import AnswerScreen
from moa_client.conversation.events import Committed, Corrected, Ended, LinkChanged, LinkState, Provisional
from moa_shared.errors import DataError, NotFoundError
from moa_shared.models import WeightReader, resolve
from moa_shared.models.gguf_entry import file_type
from moa_shared.models.storage.gguf_header import read_header
from moa_shared.programs.progress import Progress
from moa_shared.protocol.messages import Finish

from tests.support.messages import raises

VOCAB = 50
TEXT = tuple((7 * place) % VOCAB for place in range(400))


def oracle(acceptance: float, seed: int = 0) -> OracleDrafter:
    return OracleDrafter(Script(TEXT, acceptance, seed, VOCAB))


def test_nothing_right_grows_on_a_wrong_branch() -> None:
    drafter = oracle(1.0)
    drafter.extend(TEXT[:10])
    drafter.begin()
    logits = drafter.expand([TEXT[10], (TEXT[10] + 1) % VOCAB], [-1, -1])
    assert logits.argmax(-1).tolist() == [TEXT[11], (TEXT[11] + 1) % VOCAB]
    assert drafter.expand([TEXT[11], TEXT[11]], [0, 1]).argmax(-1).tolist() == [TEXT[12], (TEXT[12] + 1) % VOCAB]


def test_it_notices_when_the_target_leaves_the_script_and_comes_back_after_a_crop() -> None:
    drafter = oracle(1.0)
    drafter.extend([*TEXT[:10], (TEXT[10] + 3) % VOCAB, TEXT[11]])
    assert drafter.has_left_the_script
    assert int(drafter.begin().argmax()) != TEXT[12]
    drafter.crop(10)
    drafter.extend(TEXT[10:12])
    assert not drafter.has_left_the_script
    assert int(drafter.begin().argmax()) == TEXT[12]


def shown(*events: object) -> AnswerScreen:
    screen = AnswerScreen()
    for number, event in enumerate(events):
        screen.on_event(event, float(number))  # type: ignore[arg-type]
    return screen


def test_provisional_text_that_is_confirmed_is_not_new() -> None:
    screen = shown(
        Committed((1, 2)),
        LinkChanged(LinkState.OFFLINE),
        Provisional((3, 4, 5)),
        Committed((3, 4), confirmed=2),
        Corrected(1),
        Committed((6,)),
        Ended(Finish.END_OF_TEXT),
    )
    assert screen.fits((1, 2, 3, 4, 6))
    assert [(moment.at_s, moment.length, moment.committed, moment.is_new) for moment in screen.moments] == [
        (0.0, 2, 2, True), (2.0, 5, 2, True), (3.0, 5, 4, False), (4.0, 4, 4, False), (5.0, 5, 5, True),
    ]  # fmt: skip
    assert screen.decided_s == [0.0, 3.0, 5.0]


def test_lost_or_doubled_text_is_seen() -> None:
    assert not shown(Committed((1,)), Committed((1, 2)), Ended(Finish.END_OF_TEXT)).fits((1, 2))
    assert not shown(Committed((1,)), Committed((3,)), Ended(Finish.END_OF_TEXT)).fits((1, 2, 3))
    assert not shown(Committed((1,)), Provisional((2,)), Ended(Finish.END_OF_TEXT)).fits((1,))


def test_contradictions_are_seen() -> None:
    for events in (
        (Provisional((1, 2)), Committed((1, 3), confirmed=2), Corrected(0), Ended(Finish.END_OF_TEXT)),
        (Provisional((1, 2)), Committed((1, 3), confirmed=1), Corrected(1), Ended(Finish.END_OF_TEXT)),
        (Provisional((1, 2)), Corrected(1), Committed((1, 3)), Ended(Finish.END_OF_TEXT)),
    ):
        assert not shown(*events).fits((1, 3))


SILENT = Progress()
TINY = ModelShape(hidden=256, layers=8, inner=512, heads=4, kv_heads=2, vocab=49160, context=64)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SHAPES, "tiny", TINY)
    monkeypatch.setitem(SHAPES, "narrow", replace(TINY, hidden=96, tied=False))
    monkeypatch.setitem(SHAPES, "mixture", replace(TINY, tied=False, experts=8, used=2, wide_heads=128))
    monkeypatch.setitem(SHAPES, "hybrid", replace(TINY, tied=False, state_heads=4, state_key_heads=2, state_dim=64))


@pytest.mark.parametrize("shape", ["tiny", "hybrid"])
@pytest.mark.usefixtures("tiny")
def test_a_model_is_served_and_made_once(tmp_path: Path, shape: str) -> None:
    path = random_model(shape, SILENT, tmp_path)
    files = resolve(str(path), tmp_path)
    sizes = [files.config[name] for name in ("vocab_size", "num_hidden_layers", "tie_word_embeddings")]
    assert sizes == [49160, 8, shape == "tiny"]
    assert files.config["model_type"] == ("llama" if shape == "tiny" else "qwen3_5_text")
    reader = WeightReader(files)
    assert all(reader.array(name).size for name in reader.names())
    assert file_type(read_header(path)) == "Q4_K_M"
    made = path.stat().st_mtime_ns
    assert random_model(shape, SILENT, tmp_path).stat().st_mtime_ns == made


def test_sizes_are_those_of_published_files() -> None:
    for shape, published_mb in (("1b", 807.7), ("3b", 2019.4), ("8b", 4920.7), ("30b-a3b", 18556.7)):
        size = sum(tensor.nbytes for tensor in _tensors(SHAPES[shape])) / 1e6
        assert size == pytest.approx(published_mb, rel=0.015)  # they hold a vocabulary too


@pytest.mark.usefixtures("tiny")
def test_a_mixture_of_experts(tmp_path: Path) -> None:
    header = read_header(random_model("mixture", SILENT, tmp_path))
    assert header.architecture == "qwen3moe"
    assert [header.integer(f"qwen3moe.{key}") for key in (
        "expert_count", "expert_used_count", "expert_feed_forward_length", "attention.key_length",
    )] == [8, 2, 512, 128]  # fmt: skip
    shapes = {name.removeprefix("blk.0."): tensor.shape for name, tensor in header.tensors.items()}
    assert (shapes["attn_q.weight"], shapes["ffn_gate_inp.weight"]) == ((512, 256), (8, 256))
    assert (shapes["ffn_up_exps.weight"], shapes["ffn_down_exps.weight"]) == ((8, 512, 256), (8, 256, 512))


def write(path: Path, *categories: str) -> Path:
    lines = [
        {"question_id": number, "category": category, "turns": [f"{path.stem} {number}", "more"]}
        for number, category in enumerate(categories)
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    return path


@pytest.mark.parametrize(("name", "named", "categories"), [
    ("mt_bench", ["writing", "math", ""], ["writing", "math", "mt_bench"]),
    ("question", ["writing", "math", "rag", "math_reasoning"], ["mt_bench", "mt_bench", "rag", "math_reasoning"]),
])  # fmt: skip
def test_a_line_names_its_category_and_spec_bench_has_its_own_tasks(
    tmp_path: Path, name: str, named: list[str], categories: list[str]
) -> None:
    read = read_all(write(tmp_path / f"{name}.jsonl", *named))
    assert read == [BenchQuestion(each, f"{name} {number}") for number, each in enumerate(categories)]


def test_files_of_a_folder_are_categories_and_take_turns(tmp_path: Path) -> None:
    write(tmp_path / "gsm8k.jsonl", "math", "math")
    write(tmp_path / "qa.jsonl", "qa")
    assert [(each.category, each.text) for each in read_all(tmp_path)] == [
        ("gsm8k", "gsm8k 0"), ("qa", "qa 0"), ("gsm8k", "gsm8k 1"),
    ]  # fmt: skip


def test_what_is_not_there_or_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="There are no questions at"):
        read_all(tmp_path / "nowhere")
    with raises(DataError, snapshot('TMP holds no questions. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)
    (tmp_path / "a.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="cannot be read as text"):
        read_all(tmp_path)


@pytest.mark.parametrize("line", ["why?", "[]", "3", '{"question": "why?"}', '{"turns": []}', '{"turns": [1]}'])
def test_a_line_that_is_not_a_question_is_named(tmp_path: Path, line: str) -> None:
    path = write(tmp_path / "a.jsonl", "x", "x")
    with path.open("a") as file:
        file.write(line + "\n")
    with raises(DataError, snapshot('Line 4 of TMP/a.jsonl is not a question. A line is {"turns": ["text"]}.')):
        read_all(tmp_path)
