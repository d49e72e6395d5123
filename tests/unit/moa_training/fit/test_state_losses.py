"""Two processes learn from their rows what one would from all."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from moa_shared.models import ModelFiles
from moa_training.data.packing import PackedBatch, pack
from moa_training.data.shards import TokenRow
from moa_training.fit.drafter_setup import drafter_config
from moa_training.fit.state_losses import StateLosses
from moa_training.objective.blocks_at_once import TrainingBlocks
from moa_training.objective.eagle3 import TrainingEagle3
from moa_training.objective.losses import Losses
from moa_training.objective.row_share import WHOLE, RowShare
from moa_training.settings import FitSettings
from moa_training.teacher.teacher import Teacher

ROWS = [[TokenRow([5 + (7 * row + place) % 80 for place in range(9 + 5 * row)], [(3, 9)])] for row in range(4)]


class Among:
    """One process of some, which knows the means of all."""

    def __init__(self, share: RowShare, mean: torch.Tensor | None = None) -> None:
        self.share, self._mean = share, mean
        self.own: torch.Tensor

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        self.own = values
        return values if self._mean is None else self._mean


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_the_mean_of_two_processes_is_what_one_has(files: ModelFiles, kind: str) -> None:
    drafter = {"kind": kind, "draft_vocab": 40, "state_entries": [1, 3], "block_size": 4}
    options: dict[str, Any] = {"drafter": drafter, "blocks": {"anchors": 6}, "losses": {"steps": 3}}
    settings = FitSettings.model_validate({"shards": ["a"], "output": "b", "budget": {"tokens": 1}, **options})
    config = drafter_config(settings, files)
    teacher = Teacher.load(files, 0, torch.float32, torch.device("cpu"), config.state_entries)
    torch.manual_seed(1)
    network = TrainingEagle3(config) if kind == "eagle3" else TrainingBlocks(config, teacher.embeddings[-1])
    ids = torch.arange(3, 83, 2)

    def losses_of(batch: PackedBatch, process: Among) -> Losses:
        of_states = StateLosses(settings, config, cast(Any, process), teacher.head, ids)
        return of_states(network, teacher.run_packed(batch), batch, torch.Generator().manual_seed(2))

    whole = losses_of(pack(ROWS, 32), Among(WHOLE))
    halves, shares = [pack(ROWS[:2], 32), pack(ROWS[2:], 32)], [RowShare(each, 2) for each in range(2)]
    alone = [Among(share) for share in shares]
    for half, process in zip(halves, alone, strict=True):
        losses_of(half, process)
    mean = (alone[0].own + alone[1].own) / 2
    parts = [losses_of(half, Among(share, mean)) for half, share in zip(halves, shares, strict=True)]
    for name in ("total", "cross_entropy", "agreement"):
        both = (getattr(parts[0], name) + getattr(parts[1], name)) / 2
        torch.testing.assert_close(both, getattr(whole, name))
    assert 0 <= float(whole.agreement) <= 1
