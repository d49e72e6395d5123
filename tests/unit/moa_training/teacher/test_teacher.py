from __future__ import annotations

from typing import Any

import torch
from moa_shared.models import ModelFiles, load_target_model
from moa_training.data.batches import pack
from moa_training.data.shards import TokenRow
from moa_training.teacher.teacher import Teacher, load_teacher

ROWS = [TokenRow([5, 6, 7, 8, 9, 10], [(2, 6)]), TokenRow([11, 12, 13], [(1, 3)])]


def test_packed_conversations_do_not_see_each_other(files: ModelFiles) -> None:
    teacher = load_teacher(files, 1, torch.float32, torch.device("cpu"))
    packed = teacher.run_packed(pack([ROWS], 12))
    place = 0
    for row in ROWS:
        length = len(row.ids)
        alone = teacher.run(torch.tensor([row.ids]), torch.arange(length)[None], None)
        inside = slice(place, place + length)
        torch.testing.assert_close(packed.kv[:, inside], alone.kv)
        torch.testing.assert_close(packed.last_hidden[:, inside], alone.last_hidden)
        assert packed.state is not None
        assert alone.state is not None
        torch.testing.assert_close(packed.state[:, inside], alone.state)
        place += length
    assert torch.isfinite(packed.last_hidden).all()


def test_activations_are_the_models_own(files: ModelFiles) -> None:
    model: Any = load_target_model(files, torch.float32)
    out = model(torch.tensor([ROWS[0].ids]), output_hidden_states=True, use_cache=True)
    teacher = Teacher(model, 2)
    run = teacher.run(torch.tensor([ROWS[0].ids]), torch.arange(6)[None], None)
    assert run.state is not None
    torch.testing.assert_close(run.state, out.hidden_states[2])
    torch.testing.assert_close(run.last_hidden @ teacher.head.t(), out.logits)
    layer = out.past_key_values.layers[3]
    pairs = run.kv[0, :, 3].view(6, 2, 2, 8)  # tokens, kv heads, key and value, head_dim
    torch.testing.assert_close(pairs[:, :, 0], layer.keys[0].transpose(0, 1))
    torch.testing.assert_close(pairs[:, :, 1], layer.values[0].transpose(0, 1))
    assert len(teacher.reused) == 2
    assert run.entries is None


def test_hidden_states_are_recorded_in_the_order_asked_for(files: ModelFiles) -> None:
    model: Any = load_target_model(files, torch.float32)
    out = model(torch.tensor([ROWS[0].ids]), output_hidden_states=True)
    run = Teacher(model, 0, (3, 0, 4)).run(torch.tensor([ROWS[0].ids]), torch.arange(6)[None], None)
    third, embeddings, last = run.entry_states.unbind(2)
    torch.testing.assert_close(third, out.hidden_states[3])
    torch.testing.assert_close(embeddings, out.hidden_states[0])
    torch.testing.assert_close(model.model.norm(last), out.hidden_states[4])  # transformers' last one is normed
    assert run.kv.shape == (1, 6, 0, 32)
