from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from inline_snapshot import snapshot
from moa_shared.drafter import save_checkpoint
from moa_shared.drafting.dynamic_tree import TreeShape
from moa_shared.errors import DataError, MismatchError, NotFoundError
from moa_shared.models import ModelFiles
from moa_shared.programs.progress import SilentProgress
from moa_training.data.questions import read_questions
from moa_training.evaluation.checkpoints import find_checkpoint
from moa_training.evaluation.evaluation import evaluate
from moa_training.evaluation.measuring.job import EvaluationJob, EvaluationOptions
from moa_training.evaluation.results import Evaluation, format_table
from moa_training.teacher.same_target import SameTarget

from tests.support.messages import raises
from tests.support.part_runners import KilledAfter, LastFirst
from tests.support.tiny_training import tiny_files
from tests.unit.moa_training.evaluation.test_acceptance import checkpoint


def options(files: ModelFiles, limit: int | None = None) -> EvaluationOptions:
    tree = TreeShape(depth=3, breadth=3, nodes=8)
    return EvaluationOptions(str(files.folder), limit, 16, 4, tree, 30, "float32", standalone_tokens=32)


def write_questions(folder: Path) -> Path:
    folder.mkdir()
    for category in ("one", "two"):
        rows = [{"category": "ignored", "turns": [f"w{index} w{index + 3}"]} for index in range(4)]
        (folder / f"{category}.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "other.jsonl").write_text('{"question": "of another form"}\nnot json\n')
    return folder


def test_results_add_up(tmp_path: Path, files: ModelFiles) -> None:
    made, _ = checkpoint(files, 1)
    path = tmp_path / "drafter.safetensors"
    save_checkpoint(path, made.config, made.tensors)
    questions = write_questions(tmp_path / "questions")
    result = evaluate(str(tmp_path), questions, options(files, limit=3), SilentProgress())
    content = result.to_json()
    assert content["questions"] == 6
    assert list(content["shapes"]) == ["chain of 4", "tree of 8"]
    tree = content["shapes"]["tree of 8"]
    assert content["acceptance_length"] == tree["acceptance_length"] >= 1
    assert set(tree["by_category"]) == {"one", "two"}
    accepted = sum(count * times for count, times in enumerate(tree["accepted"]))
    assert tree["acceptance_length"] == pytest.approx(accepted / tree["forwards"] + 1, abs=1e-4)
    assert set(content["standalone"]) == {"8", "32", "64"}
    assert content["standalone"]["64"] == {"questions": 0}  # no answer reaches so far
    assert content["cold"]["questions"] == 6
    assert list(content["shares"]) == [f"0.{tenth}" for tenth in range(10)]
    served = [part["served"] for part in content["shares"].values()]
    assert served[0] == 0
    assert served == sorted(served)
    assert all(part["questions"] == 6 and part["in_hand"] >= part["served"] for part in content["shares"].values())
    assert content["all_shares"]["questions"] == 60
    table = format_table(result)
    for where in ("after 8 tokens (6)", "after 0% (6)", "after 90% (6)", "all shares (60)", "without memory (6)"):
        assert where in table
    assert "chain of 4" in table
    assert "6 questions" in table
    assert evaluate(str(path), questions, options(files, limit=3), SilentProgress()).by_category == result.by_category


def test_results_are_checked_where_references_name_them(tmp_path: Path, files: ModelFiles) -> None:
    made, _ = checkpoint(files, 0)
    save_checkpoint(tmp_path / "drafter.safetensors", made.config, made.tensors)
    questions = write_questions(tmp_path / "questions")
    checking = replace(options(files, limit=2), task_tokens=12, standalone_tokens=0)
    with raises(
        DataError,
        snapshot(
            'No question has a result to check. Leave task accuracy out, or ask questions with "final_answer" or a reference that ends in "#### 18".'
        ),
    ):
        evaluate(str(tmp_path), questions, checking, SilentProgress())
    rows = [{"turns": [text], "reference": [f"so\n#### {last}"]} for text, last in (("w0 w5", 57), ("w1 w5", 2))]
    (questions / "sums.jsonl").write_text("\n".join(json.dumps(row) for row in rows))  # answers end in w57 and w0
    (questions / "wrong.jsonl").write_text(json.dumps({"turns": ["w1 w20"], "final_answer": "6"}))
    result = evaluate(str(tmp_path), questions, checking, SilentProgress())
    content = result.to_json()["task"]
    assert list(content) == [f"0.{tenth}" for tenth in range(10)]
    sums = content["0.7"]["sums"]
    assert set(sums) >= {"questions", "right", "target_right", "same_result", "served_right", "served_same_result"}
    assert (sums["questions"], sums["target_right"], sums["target_ended"]) == (2, 0.5, 0.0)
    table = format_table(result)
    assert "results of sums after 70% (2): right 0.00, target right 0.50" in table
    assert "the target itself is right in none of wrong:" in table


def without_times(result: Evaluation) -> dict[str, Any]:
    content = result.to_json()
    for shape in content["shapes"].values():
        del shape["draft_ms"]
    return content


@pytest.mark.parametrize("execution", ["float32", "bf16"])
def test_whoever_measures_and_whatever_stops_them_leaves_no_trace(
    tmp_path: Path, files: ModelFiles, execution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = checkpoint(files, 0)
    save_checkpoint(tmp_path / "drafter.safetensors", made.config, made.tensors)
    questions = tmp_path / "q.jsonl"
    rows = [
        {"category": f"c{n % 3}", "turns": [f"w{n} w{n + 3}"], **({"final_answer": str(n)} if n % 2 else {})}
        for n in range(18)
    ]
    questions.write_text("\n".join(json.dumps(row) for row in rows))
    chosen = replace(options(files), execution=execution, task_tokens=12, standalone_tokens=8)
    whole = evaluate(str(tmp_path), questions, chosen, SilentProgress())
    assert [list(part) for part in whole.by_category.values()] == [["c0", "c1", "c2"]] * 2
    assert list(whole.task["0.0"]) == ["c1", "c0", "c2"]
    for name, runner in (("killed", KilledAfter(2)), ("other order", LastFirst())):
        monkeypatch.setenv("MOA_CACHE_DIR", str(tmp_path / name))  # no answers from before
        if isinstance(runner, KilledAfter):
            with pytest.raises(KeyboardInterrupt):
                evaluate(str(tmp_path), questions, chosen, SilentProgress(), runner)
            assert len(list((tmp_path / name / "evaluations").glob("*/*.json"))) == 2
            runner = LastFirst()
        assert without_times(evaluate(str(tmp_path), questions, chosen, SilentProgress(), runner)) == without_times(
            whole
        )
        assert list((tmp_path / name / "evaluations").iterdir()) == []


def test_a_worker_with_another_drafter_is_refused(tmp_path: Path, files: ModelFiles) -> None:
    made, _ = checkpoint(files, 0)
    save_checkpoint(tmp_path / "drafter.safetensors", made.config, made.tensors)
    target = SameTarget(str(files.folder), files.fingerprint)
    job = EvaluationJob(target, str(tmp_path), "0123456789ab", None, options(files))
    with raises(
        MismatchError,
        snapshot(
            "TMP is another drafter on this worker (DIGEST, the work was planned for DIGEST). Give every node the same file at the same path."
        ),
    ):
        job.start(SilentProgress())


def test_questions_that_cannot_be_asked_are_counted(tmp_path: Path, files: ModelFiles) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text(
        '{"category": "a", "turns": ["w1"]}\nnot json\n{"turns": []}\n'
        + json.dumps({"category": "a", "turns": ["w1 " * 60]})
    )
    questions, left_out = read_questions(path, files, None, 30)
    assert (len(questions), left_out) == (1, 3)
    path.write_text("{}\n")
    with pytest.raises(DataError):
        read_questions(path, files, None, 30)
    with pytest.raises(NotFoundError):
        read_questions(tmp_path / "none", files, None, 30)


def test_drafters_of_other_targets_and_missing_ones_are_refused(tmp_path: Path, files: ModelFiles) -> None:
    made, _ = checkpoint(files, 0)
    save_checkpoint(tmp_path / "drafter.safetensors", made.config, made.tensors)
    other = tiny_files(tmp_path / "other", tmp_path / "cache", seed=2)
    questions = write_questions(tmp_path / "questions")
    with raises(
        MismatchError,
        snapshot(
            "The drafter TMP/drafter.safetensors was made for another target (DIGEST, this one is DIGEST). Name its target with --target."
        ),
    ):
        evaluate(str(tmp_path), questions, options(other), SilentProgress())
    for name in ("default", "deep"):
        with pytest.raises(NotFoundError, match=f"No {name} drafter comes"):
            find_checkpoint(name, files)
    with pytest.raises(NotFoundError):
        evaluate(str(tmp_path / "none.safetensors"), questions, options(files), SilentProgress())
