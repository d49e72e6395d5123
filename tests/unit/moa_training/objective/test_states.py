"""EAGLE-3 and DFlash in their training form: what their rows see, what counts, and that processes may share the rows."""

import dataclasses
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.models import ModelFiles
from moa_training.data.batches import WHOLE, PackedBatch, RowShare, pack
from moa_training.data.shards import TokenRow
from moa_training.fit.setup import OBJECTIVES, drafter_config
from moa_training.objective.objective import Lesson, Losses, Update
from moa_training.objective.states import TrainingEagle3, draw_anchors, eagle3_rows, place_blocks, step_weights
from moa_training.settings import BlockSettings
from moa_training.teacher.teacher import Teacher, load_teacher

from tests.support.tiny_training import tiny_settings

FIRST, SECOND = TokenRow(list(range(5, 16)), [(4, 11)]), TokenRow(list(range(20, 28)), [(3, 8)])
ROWS = [[TokenRow([5 + (7 * row + place) % 80 for place in range(9 + 5 * row)], [(3, 9)])] for row in range(4)]


def setup(files: ModelFiles, **options: Any) -> Lesson:
    settings = tiny_settings(**options)
    config = drafter_config(settings, files)
    teacher = load_teacher(files, 0, torch.float32, torch.device("cpu"), config.state_entries)
    return Lesson(settings, config, teacher)


def eagle3(files: ModelFiles) -> tuple[TrainingEagle3, Teacher]:
    lesson = setup(files, drafter={"kind": "eagle3", "eagle31": True, "draft_vocab": 40, "state_entries": [1, 2, 4]})
    torch.manual_seed(3)
    return TrainingEagle3(lesson.config), lesson.teacher


def test_no_conversation_of_a_row_sees_another(files: ModelFiles) -> None:
    drafter, teacher = eagle3(files)
    with torch.no_grad():
        both, alone = (
            list(drafter.steps(eagle3_rows(teacher.run_packed(batch), batch), 3))
            for batch in (pack([[FIRST, SECOND]], 24), pack([[SECOND]], 8))
        )
    for step, (packed, own) in enumerate(zip(both, alone, strict=True)):
        rows = slice(1, 8 - step)  # its first token has no row, and its last ones nothing to read in later steps
        assert torch.allclose(packed[:, 11:19][:, rows], own[:, rows], atol=1e-5)


def test_a_later_step_reads_the_rows_own_state_and_no_later_text_but_its_token(files: ModelFiles) -> None:
    drafter, teacher = eagle3(files)
    batch = pack([[FIRST]], 11)
    rows = eagle3_rows(teacher.run_packed(batch), batch)
    changed = torch.zeros(11)
    changed[7] = 1.0  # what is known of the seventh token, and what it is
    states, embeddings = rows.states + changed[None, :, None, None], rows.embeddings + changed[None, :, None]
    other = dataclasses.replace(rows, states=states, embeddings=embeddings)
    with torch.no_grad():
        for step, (one, two) in enumerate(zip(drafter.steps(rows, 3), drafter.steps(other, 3), strict=True)):
            same = (one - two).abs().amax(-1)[0] < 1e-6
            assert same.tolist()[1 : 11 - step] == [place < 7 - step for place in range(1, 11 - step)]


def test_a_row_counts_where_its_conversation_goes_on_and_the_targets_choice_can_be_proposed() -> None:
    batch = pack([[FIRST, SECOND]], 24)
    proposable = torch.ones(1, 24, dtype=torch.bool)
    proposable[0, 6] = False
    weight, rows = step_weights(batch, proposable, BlockSettings(prompts=False), 2, 0.5)
    answers = {*range(4, 11), *range(14, 19)} - {6}
    assert {place for place, one in enumerate(weight[0, 0].tolist()) if one} == answers
    assert {place for place, one in enumerate(weight[1, 0].tolist()) if one} == {
        place for place in range(1, 19) if place + 1 in answers and place not in (10, 11)
    }
    assert (set(weight[1].unique().tolist()), int(rows)) == ({0.0, 0.5}, 19)


def four_rows() -> PackedBatch:
    return pack([[TokenRow(list(range(1, 20)), [(6, 19)]), TokenRow(list(range(1, 10)), [(3, 9)])]] * 4, 32)


@given(st.integers(0, 500), st.booleans())
def test_blocks_begin_in_what_is_taught_and_see_their_own_conversation_before(seed: int, prompts: bool) -> None:
    packed, settings = four_rows(), BlockSettings(prompts=prompts, anchors=12)
    anchors, counts = draw_anchors(packed, settings, torch.Generator().manual_seed(seed))
    blocks = place_blocks(packed, anchors, counts, 4, 2.0)
    for row in range(4):
        for number, anchor in enumerate(anchors[row].tolist()):
            if not counts[row, number]:
                assert not blocks.weight[row, number].any()
                continue
            begin, end = (0, 19) if anchor < 19 else (19, 28)
            first = begin + (1 if prompts else 5 if begin == 0 else 2)  # the token before the first taught one
            assert first <= anchor < end - 1
            assert blocks.visible[row, number].nonzero()[:, 0].tolist() == list(range(begin, anchor))
            pairs = zip(blocks.guessed[row, number].tolist(), blocks.weight[row, number].tolist(), strict=True)
            assert [at for at, weight in pairs if weight] == list(range(anchor, min(anchor + 3, end - 1)))
    assert torch.allclose(blocks.weight.amax((0, 1)), torch.exp(-torch.arange(3) / 2.0))


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_the_mean_of_two_processes_is_what_one_has(files: ModelFiles, kind: str) -> None:
    drafter = {"kind": kind, "draft_vocab": 40, "state_entries": [1, 3], "block_size": 4}
    lesson = setup(files, drafter=drafter, blocks={"anchors": 6}, losses={"steps": 3})
    lesson = dataclasses.replace(lesson, draft_ids=torch.arange(3, 83, 2))
    torch.manual_seed(1)
    network = OBJECTIVES[lesson.config.traits.objective](lesson).network()
    told: list[torch.Tensor] = []

    def losses_of(batch: PackedBatch, share: RowShare, mean: torch.Tensor | None = None) -> Losses:
        def of_all(own: torch.Tensor) -> torch.Tensor:
            told.append(own)
            return own if mean is None else mean

        objective = OBJECTIVES[lesson.config.traits.objective](dataclasses.replace(lesson, share=share, mean=of_all))
        generator = torch.Generator().manual_seed(2)
        return objective.losses(network, Update(batch, lesson.teacher.run_packed(batch), 0.0, generator))

    whole = losses_of(pack(ROWS, 32), WHOLE)
    halves, shares = [pack(ROWS[:2], 32), pack(ROWS[2:], 32)], [RowShare(each, 2) for each in range(2)]
    for half, share in zip(halves, shares, strict=True):
        losses_of(half, share)
    mean = (told[1] + told[2]) / 2
    parts = [losses_of(half, share, mean) for half, share in zip(halves, shares, strict=True)]
    for name in ("total", "cross_entropy", "agreement"):
        both = (getattr(parts[0], name) + getattr(parts[1], name)) / 2
        torch.testing.assert_close(both, getattr(whole, name))
    assert 0 <= float(whole.agreement) <= 1
