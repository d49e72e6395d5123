import math
import random
from collections.abc import Sequence
from decimal import Decimal

import pytest
import torch
from moa_shared.drafting.estimates import TokenOrigin, WrittenToken
from moa_shared.models import ModelFiles, load_target_model
from moa_training.evaluation.standalone import (
    AnswerAfterCut,
    StandaloneQuality,
    TaskAccuracy,
    repeated_share,
    standalone_quality,
    task_accuracy,
)
from moa_training.evaluation.subjects import DrafterSubject, StandaloneRun, WritingLimit

from tests.unit.moa_training.evaluation.test_subjects import subject_of

PROMPT = random.Random(1).choices(range(5, 90), k=9)
ANSWER = random.Random(3).choices(range(5, 90), k=40)


def quality(subject: DrafterSubject, tokens: Sequence[int], cut: int, length: int, right: int = 0) -> StandaloneQuality:
    written = tuple(WrittenToken(token, math.log(0.9), TokenOrigin.DRAFTER) for token in tokens)
    run = StandaloneRun(written, right, min(len(tokens), len(ANSWER) - cut))
    return standalone_quality(run, subject.reader, PROMPT, ANSWER, cut, length)


def test_who_writes_the_targets_own_words_agrees(files: ModelFiles) -> None:
    subject = subject_of(files, 1)
    means = quality(subject, ANSWER[8:40], 8, 32, right=32).means
    assert means["agreement_8"] == means["agreement_16"] == means["agreement_32"] == means["in_hand"] == 1.0
    assert means["repeated"] == means["target_repeated"] == 0.0
    means = quality(subject, [3] * 16, 8, 16).means
    assert means["agreement_8"] == 0.0
    assert "agreement_32" not in means  # nobody wrote so much
    assert means["repeated"] == pytest.approx(12 / 13)
    assert repeated_share([1, 2] * 10) == pytest.approx(1 - 2 / 17)
    assert repeated_share([1, 2, 3, 4]) is None


def test_likelihood_is_the_targets(files: ModelFiles) -> None:
    subject = subject_of(files, 0)
    written = ANSWER[8:18]
    means = quality(subject, written, 8, 10).means
    ids = [*PROMPT, *ANSWER[:18]]
    with torch.inference_mode():
        every = load_target_model(files, torch.float32)(torch.tensor([ids])).logits[0]
    logits = every[len(ids) - 11 : -1].log_softmax(-1)
    expected = logits.gather(1, torch.tensor(written)[:, None]).mean()
    assert means["log_likelihood"] == pytest.approx(float(expected), abs=1e-4)
    agree = (logits.argmax(-1) == torch.tensor(written)).float().mean()
    assert means["new_agreement"] == pytest.approx(float(agree), abs=1e-6)


def test_a_reader_has_what_is_right_and_sees_what_is_trusted(files: ModelFiles) -> None:
    subject = subject_of(files, 0)
    short = quality(subject, ANSWER[8:12], 8, 4, right=3)  # all four are trusted
    assert short.texts == [AnswerAfterCut(8, 40, 3, 4)]
    long = quality(subject, [3] * 20, 20, 20)  # 0.9 ** 9 is the last power above 0.35
    assert long.texts == [AnswerAfterCut(20, 40, 0, 9)]
    short.merge(long)
    assert short.means["precision"] == 3 / 13
    assert short.means["served"] == pytest.approx(0.35)
    assert short.means["in_hand"] == short.means["in_hand_gated"] == pytest.approx((11 / 40 + 20 / 40) / 2)
    assert (short.means["useful_run"], short.means["median_shown"]) == (1.5, 6.5)
    assert "precision" not in StandaloneQuality(1, texts=[AnswerAfterCut(1, 9, 0, 0)]).means


def test_parts_merge_by_weight() -> None:
    total, accuracy = StandaloneQuality(1, {"a": 3.0}, {"a": 3.0}), TaskAccuracy(1, right=1)
    accuracy.merge(TaskAccuracy(2, ended=1))
    total.merge(StandaloneQuality(2, {"a": 0.5, "b": 5.0}, {"a": 2.0, "b": 1.0}))
    assert (total.questions, total.means, accuracy) == (3, {"a": 0.7, "b": 5.0}, TaskAccuracy(3, right=1, ended=1))


@pytest.mark.parametrize(("kind", "reused"), [("moa", 0), ("moa", 2), ("eagle2", 0), ("independent", 0)])
def test_what_is_written_without_memory_depends_on_the_tokens_alone(
    files: ModelFiles, kind: str, reused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(files, reused, kind)
    (cold,), (warm,) = (subject.runs(PROMPT, ANSWER, [0], WritingLimit(20), memory=memory) for memory in (False, True))
    assert (cold.tokens == warm.tokens) == (kind == "independent")
    monkeypatch.setattr(subject, "_read", None)  # the target is not asked
    assert subject.runs(PROMPT, ANSWER, [0], WritingLimit(20), memory=False) == [cold]


STOP = 99
TASK = (*range(10, 20), 7, STOP)  # ten tokens, the result, the end


def decode(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids))


def measure(*written: int, result: int = 7, cut: int = 8, answer: Sequence[int] = TASK) -> TaskAccuracy:
    return task_accuracy(Decimal(result), answer, cut, written, decode, {STOP})


@pytest.mark.parametrize(("found", "expected"), [
    # the right result is right whatever follows the end
    (measure(3, 7, STOP, 4, 4), TaskAccuracy(1, right=1, target_right=1, same_result=1, ended=1, target_ended=1)),
    # a loop that never ends gives its last number
    (measure(*[5] * 40), TaskAccuracy(1, target_right=1, target_ended=1)),
    # the target's own mistakes are told from the drafter's
    (measure(7, STOP, result=8), TaskAccuracy(1, same_result=1, ended=1, target_ended=1)),
    (measure(8, result=8), TaskAccuracy(1, right=1, target_ended=1)),
    # who writes nothing is judged by what is there
    (measure(result=17), TaskAccuracy(1, right=1, served_right=1, target_ended=1)),
    # what was served is judged by itself: the result is there early
    (
        measure(8, cut=8, answer=(*range(10, 17), 7, 8, 7, STOP)),
        TaskAccuracy(1, target_right=1, served_right=1, served_same_result=1, target_ended=1),
    ),
    # answers that the cut leaves whole are not counted
    (measure(7, cut=11), TaskAccuracy()),
    (measure(7, cut=64), TaskAccuracy()),
    # an answer that was cut off has the result that it came to: the target got to 19, the drafter to 6
    (measure(6, 6, answer=TASK[:10]), TaskAccuracy(1)),
])  # fmt: skip
def test_task_accuracy(found: TaskAccuracy, expected: TaskAccuracy) -> None:
    assert found == expected
