from __future__ import annotations

import torch
from moa_training.data.shards import TokenRow
from moa_training.data.vocabulary import choose_draft_ids


def test_answers_come_first_then_prompts_then_low_ids() -> None:
    rows = [TokenRow([9, 9, 9, 5, 5, 6], [(3, 6)])]
    assert choose_draft_ids(rows, 2, 12)[0].tolist() == [5, 6]
    ids, covered = choose_draft_ids(rows, 4, 12)
    assert ids.tolist() == [0, 5, 6, 9]
    assert ids.dtype == torch.int32
    assert covered == 1.0
    assert abs(choose_draft_ids(rows, 1, 12)[1] - 2 / 3) < 1e-9
