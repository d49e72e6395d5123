from __future__ import annotations

import random
from functools import partial
from itertools import pairwise

import pytest
import torch
from moa_shared.drafting import barred_after
from moa_shared.models import ModelFiles, load_target_model
from moa_training.evaluation.acceptance import DrafterSubject
from moa_training.evaluation.standalone import StandaloneQuality, repeated_share, standalone_quality

from tests.unit.moa_training.evaluation.test_acceptance import subject_of

PROMPT = random.Random(1).choices(range(5, 90), k=9)
ANSWER = random.Random(3).choices(range(5, 90), k=40)


def test_repetition_is_the_share_of_grams_seen_before() -> None:
    assert repeated_share(range(20)) == 0.0
    assert repeated_share([1, 2] * 10) == pytest.approx(1 - 2 / 17)
    assert repeated_share([1, 2, 3, 4]) is None


def test_who_writes_the_targets_own_words_agrees(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(files, 1)
    monkeypatch.setattr(DrafterSubject, "write", lambda *_, **__: ANSWER[8:24])
    means = standalone_quality(subject, PROMPT, ANSWER, 8, 16).means
    assert means["agreement_8"] == means["agreement_16"] == 1.0
    assert means["repeated"] == means["target_repeated"] == 0.0
    monkeypatch.setattr(DrafterSubject, "write", lambda *_, **__: [3] * 16)
    means = standalone_quality(subject, PROMPT, ANSWER, 8, 16).means
    assert means["agreement_8"] == 0.0
    assert means["repeated"] == pytest.approx(12 / 13)


def test_likelihood_is_the_targets(files: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = subject_of(files, 0)
    written = ANSWER[8:18]
    monkeypatch.setattr(DrafterSubject, "write", lambda *_, **__: written)
    means = standalone_quality(subject, PROMPT, ANSWER, 8, 10).means
    ids = [*PROMPT, *ANSWER[:18]]
    with torch.inference_mode():
        logits = (
            load_target_model(files, torch.float32)(torch.tensor([ids])).logits[0, len(ids) - 11 : -1].log_softmax(-1)
        )
    expected = logits.gather(1, torch.tensor(written)[:, None]).mean()
    assert means["log_likelihood"] == pytest.approx(float(expected), abs=1e-4)
    agree = (logits.argmax(-1) == torch.tensor(written)).float().mean()
    assert means["new_agreement"] == pytest.approx(float(agree), abs=1e-6)


@pytest.mark.parametrize("reused", [0, 2])
def test_a_drafter_repeats_no_run_unless_it_may(
    files: ModelFiles, reused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = 2  # what an untrained drafter repeats within 60 tokens
    monkeypatch.setattr("moa_training.evaluation.acceptance.barred_after", partial(barred_after, run=run))
    known = [*PROMPT, *ANSWER[:8]]
    free = subject_of(files, reused, guarded=False).write(known, 60)
    assert len(set(pairwise(free))) < 59
    written = subject_of(files, reused).write(known, 60)
    runs = list(pairwise(written))
    assert len(set(runs)) == len(runs)
    same = next(at for at in range(60) if written[at] != free[at])
    assert free[same] in barred_after(free[:same], run)  # nothing else parts the two


@pytest.mark.parametrize("reused", [0, 2])
def test_a_drafter_writes_as_long_as_it_is_asked_to(files: ModelFiles, reused: int) -> None:
    subject = subject_of(files, reused)
    quality = standalone_quality(subject, PROMPT, ANSWER, 8, 30)
    assert quality.questions == 1
    assert set(quality.means) >= {"agreement_8", "agreement_16", "repeated", "log_likelihood"}
    assert standalone_quality(subject, PROMPT, ANSWER, 35, 30).questions == 0


@pytest.mark.parametrize(("kind", "reused"), [("moa", 0), ("moa", 2), ("eagle2", 0), ("independent", 0)])
def test_what_is_written_without_memory_depends_on_the_tokens_alone(
    files: ModelFiles, kind: str, reused: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(files, reused, kind)
    cold, warm = subject.write(PROMPT, 20, memory=False), subject.write(PROMPT, 20)
    assert (cold == warm) == (kind == "independent")
    monkeypatch.setattr(subject, "_read", None)  # the target is not asked
    assert subject.write(PROMPT, 20, memory=False) == cold


def test_means_merge_by_weight() -> None:
    one, two = StandaloneQuality(1), StandaloneQuality(2)
    one.add("a", 1.0, 3)
    two.add("a", 0.0, 1)
    two.add("b", 5.0)
    one.merge(two)
    assert one.questions == 3
    assert one.means == {"a": 0.75, "b": 5.0}
