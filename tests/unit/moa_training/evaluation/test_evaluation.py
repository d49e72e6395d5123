import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from moa_shared.drafter.checkpoint import save_checkpoint
from moa_shared.errors import DataError, MismatchError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import Progress
from moa_training.evaluation.evaluation import Measuring, evaluate
from moa_training.report import evaluation_text
from moa_training.settings import EvaluationOptions

from tests.support.tiny_training import tiny_files
from tests.unit.moa_training.evaluation.test_subjects import checkpoint


def options(files: ModelFiles, limit: int | None = None) -> EvaluationOptions:
    return EvaluationOptions(
        target=str(files.folder), limit=limit, answer_tokens=16, chain=4, depth=3, breadth=3, nodes=8, prompt_tokens=30,
        execution="float32", standalone=32,
    )  # fmt: skip


def save(files: ModelFiles, folder: Path, reused: int = 0) -> Path:
    """A drafter in its folder: what a user names."""
    made, _ = checkpoint(files, reused)
    save_checkpoint(folder / "drafter.safetensors", made.config, made.tensors)
    return folder / "drafter.safetensors"


def write_questions(folder: Path) -> Path:
    folder.mkdir()
    for category in ("one", "two"):
        rows = [{"category": "ignored", "turns": [f"w{index} w{index + 3}"]} for index in range(4)]
        (folder / f"{category}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "other.jsonl").write_text('{"question": "of another form"}\nnot json\n')
    return folder


def test_results_add_up(tmp_path: Path, files: ModelFiles) -> None:
    path = save(files, tmp_path, 1)
    questions = write_questions(tmp_path / "questions")
    content = evaluate(str(tmp_path), questions, options(files, limit=3), Progress())
    assert (content["questions"], list(content["shapes"])) == (6, ["chain of 4", "tree of 8"])
    tree = content["shapes"]["tree of 8"]
    assert content["acceptance_length"] == tree["acceptance_length"] >= 1
    assert set(tree["by_category"]) == {"one", "two"}
    accepted = sum(count * times for count, times in enumerate(tree["accepted"]))
    assert tree["acceptance_length"] == pytest.approx(accepted / tree["forwards"] + 1, abs=1e-4)
    assert content["standalone"]["64"] == {"questions": 0}  # no answer reaches so far
    assert content["cold"]["questions"] == 6
    served = [part["served"] for part in content["shares"].values()]
    assert (served[0], served) == (0, sorted(served))
    assert all(part["questions"] == 6 and part["in_hand"] >= part["served"] for part in content["shares"].values())
    assert content["all_shares"]["questions"] == 60
    table = evaluation_text(content)
    for cells in (f"{tmp_path} | 8 tokens", f"{tmp_path} | 0.9", f"{tmp_path} | no memory", "one"):
        assert f"| {cells} |" in table
    again = evaluate(str(path), questions, options(files, limit=3), Progress())
    assert again["shapes"]["tree of 8"]["by_category"] == tree["by_category"]


def test_results_are_checked_where_references_name_them(tmp_path: Path, files: ModelFiles) -> None:
    save(files, tmp_path)
    questions = write_questions(tmp_path / "questions")
    checking = replace(options(files, limit=2), task_tokens=12, standalone=0)
    with pytest.raises(DataError, match="No question has a result to check"):
        evaluate(str(tmp_path), questions, checking, Progress())
    rows = [{"turns": [text], "reference": [f"so\n#### {last}"]} for text, last in (("w0 w5", 57), ("w1 w5", 2))]
    (questions / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))  # answers end in w57 and w0
    (questions / "wrong.jsonl").write_text(json.dumps({"turns": ["w1 w20"], "final_answer": "6"}))
    result = evaluate(str(tmp_path), questions, checking, Progress())
    sums = result["task"]["0.7"]["sums"]
    assert (sums["questions"], sums["target_right"], sums["target_ended"]) == (2, 0.5, 0.0)
    assert f"| {tmp_path} | 0.7 | 0.00 |" in evaluation_text(result)


def without_times(content: dict[str, Any]) -> dict[str, Any]:
    for shape in content["shapes"].values():
        del shape["draft_ms"]
    return content


@pytest.mark.parametrize("execution", ["float32", "bf16"])
def test_what_stopped_an_evaluation_leaves_no_trace(
    tmp_path: Path, files: ModelFiles, execution: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(files, tmp_path)
    questions = tmp_path / "q.jsonl"
    rows = [
        {"category": f"c{n % 3}", "turns": [f"w{n} w{n + 3}"], **({"final_answer": str(n)} if n % 2 else {})}
        for n in range(18)
    ]
    questions.write_text("\n".join(json.dumps(row) for row in rows))
    chosen = replace(options(files), execution=execution, task_tokens=12, standalone=8)
    whole = without_times(evaluate(str(tmp_path), questions, chosen, Progress()))
    assert [list(shape["by_category"]) for shape in whole["shapes"].values()] == [["c0", "c1", "c2"]] * 2
    assert list(whole["task"]["0.0"]) == ["c1", "c0", "c2"]
    monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / "killed"))  # no answers from before
    measure, done = Measuring.measure, list[Any]()

    def killed(self: Measuring, part: Any) -> Any:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(part)
        return measure(self, part)

    monkeypatch.setattr(Measuring, "measure", killed)
    with pytest.raises(KeyboardInterrupt):
        evaluate(str(tmp_path), questions, chosen, Progress())
    assert len(list((tmp_path / "killed" / "evaluations").glob("*/*.json"))) == 2
    done.clear()
    assert without_times(evaluate(str(tmp_path), questions, chosen, Progress())) == whole
    assert len(done) == 1  # only what was missing
    assert list((tmp_path / "killed" / "evaluations").iterdir()) == []


def test_drafters_of_other_targets_and_missing_ones_are_refused(tmp_path: Path, files: ModelFiles) -> None:
    save(files, tmp_path)
    other = tiny_files(tmp_path / "other", tmp_path / "cache", seed=2)
    questions = write_questions(tmp_path / "questions")
    with pytest.raises(MismatchError, match="was made for another target"):
        evaluate(str(tmp_path), questions, options(other), Progress())
    for name in ("default", "deep", str(tmp_path / "none.safetensors")):
        with pytest.raises(NotFoundError):
            evaluate(name, questions, options(files), Progress())
