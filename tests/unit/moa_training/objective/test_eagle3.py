from __future__ import annotations

import dataclasses

import torch
from moa_shared.models import ModelFiles
from moa_training.data.packing import PackedBatch, pack
from moa_training.data.shards import TokenRow
from moa_training.fit.drafter_setup import drafter_config
from moa_training.objective.eagle3 import TrainingEagle3, eagle3_rows, step_weights, teach
from moa_training.settings import BlockSettings, FitSettings
from moa_training.teacher.teacher import Teacher

FIRST, SECOND = TokenRow(list(range(5, 16)), [(4, 11)]), TokenRow(list(range(20, 28)), [(3, 8)])


def network(files: ModelFiles) -> tuple[TrainingEagle3, Teacher]:
    drafter = {"kind": "eagle3", "eagle31": True, "draft_vocab": 40, "state_entries": [1, 2, 4]}
    settings = FitSettings.model_validate({"shards": ["a"], "output": "b", "budget": {"tokens": 1}, "drafter": drafter})
    config = drafter_config(settings, files)
    torch.manual_seed(3)
    return TrainingEagle3(config), Teacher.load(files, 0, torch.float32, torch.device("cpu"), config.state_entries)


def guesses(drafter: TrainingEagle3, teacher: Teacher, batch: PackedBatch) -> list[torch.Tensor]:
    with torch.no_grad():
        return list(drafter.steps(eagle3_rows(teacher.run_packed(batch), batch), 3))


def test_no_conversation_of_a_row_sees_another(files: ModelFiles) -> None:
    drafter, teacher = network(files)
    both, alone = guesses(drafter, teacher, pack([[FIRST, SECOND]], 24)), guesses(drafter, teacher, pack([[SECOND]], 8))
    for step, (packed, own) in enumerate(zip(both, alone, strict=True)):
        rows = slice(1, 8 - step)  # its first token has no row, and its last ones nothing to read in later steps
        assert torch.allclose(packed[:, 11:19][:, rows], own[:, rows], atol=1e-5)


def test_a_later_step_reads_the_rows_own_state_and_no_later_text_but_its_token(files: ModelFiles) -> None:
    drafter, teacher = network(files)
    batch = pack([[FIRST]], 11)
    rows = eagle3_rows(teacher.run_packed(batch), batch)
    changed = torch.zeros(11)
    changed[7] = 1.0  # what is known of the seventh token, and what it is
    other = dataclasses.replace(
        rows,
        states=rows.states + changed[None, :, None, None],
        embeddings=rows.embeddings + changed[None, :, None],
    )
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
    assert set(weight[1].unique().tolist()) == {0.0, 0.5}
    assert int(rows) == 19


def test_the_teacher_chooses_from_all_and_is_compared_over_the_draft_vocabulary() -> None:
    head = torch.eye(4)
    hidden = torch.tensor([[0.0, 3.0, 1.0, 0.0], [0.0, 1.0, 0.0, 3.0]])
    chances, proposable = teach(hidden, head, torch.tensor([0, 1]))
    assert proposable.tolist() == [True, False]
    assert torch.allclose(chances, hidden[:, :2].softmax(-1))
