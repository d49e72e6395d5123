import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from moa_shared.models import ModelFiles, WeightReader, load_target_model, resolve
from moa_shared.models.network.network import Network
from moa_shared.programs.progress import Progress
from moa_shared.sampling.coupling import select
from moa_shared.sampling.scores import TextBefore
from moa_shared.sampling.settings import Sampling
from moa_training.data.batches import pack
from moa_training.data.shards import TokenRow
from moa_training.teacher.target_reader import KernelReader, TargetReader, TorchReader, load_reader, sampling_for
from moa_training.teacher.teacher import load_teacher

from tests.support.tiny_training import WORDS, save_tiny_target
from tests.support.torch_models import torch_model

ROWS = [TokenRow([5, 6, 7, 8, 9, 10], [(2, 6)]), TokenRow([11, 12, 13], [(1, 3)])]
PROMPTS = [random.Random(size).choices(range(5, 90), k=size) for size in (3, 300, 11)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """A tiny target of sizes that the kernels take."""
    folder: Path = tmp_path_factory.mktemp("reader")
    save_tiny_target(folder / "target")
    model = torch_model(seed=2, num_hidden_layers=4, max_position_embeddings=512, eos_token_id=4, vocab_size=len(WORDS))
    model.save_pretrained(folder / "target")
    return resolve(str(folder / "target"), folder / "cache")


def reader_of(level: str, files: ModelFiles, reused: int = 2, entries: tuple[int, ...] = ()) -> TargetReader:
    """Both ways to compute in float32."""
    if level == "torch":
        return load_reader(files, reused, "float32", Progress(), entries)
    return KernelReader(Network(WeightReader(files), files.config, plain=True), reused, entries)


@pytest.fixture(params=["torch", "kernels"])
def reader(request: pytest.FixtureRequest, files: ModelFiles) -> TargetReader:
    return reader_of(request.param, files)


def test_a_text_is_read_as_transformers_reads_it(reader: TargetReader, files: ModelFiles) -> None:
    ids = PROMPTS[1]
    with torch.inference_mode():
        model = load_target_model(files, torch.float32)
        expected = model(torch.tensor([ids]), output_hidden_states=True, use_cache=True)
    read = reader.read(ids)
    # The kernels keep keys and values in float16.
    close: dict[str, Any] = {"atol": 1e-4 if isinstance(reader, TorchReader) else 0.02, "rtol": 0.02}
    np.testing.assert_allclose(read.last_hidden, expected.hidden_states[-1][0], **close)
    assert read.state is not None
    np.testing.assert_allclose(read.state, expected.hidden_states[2][0], **close)
    keys = expected.past_key_values.layers[1].keys[0].transpose(0, 1)  # [tokens, kv heads, head_dim]
    values = expected.past_key_values.layers[1].values[0].transpose(0, 1)
    np.testing.assert_allclose(read.kv[:, 1].reshape(len(ids), 2, 2, 32), np.stack((keys, values), 2), **close)
    np.testing.assert_allclose(reader.logits(read.last_hidden), expected.logits[0], **close)


@pytest.mark.parametrize("level", ["torch", "kernels"])
def test_the_states_that_a_drafter_names_stand_side_by_side(level: str, files: ModelFiles) -> None:
    ids, entries = PROMPTS[1], (3, 0, 1)
    with torch.inference_mode():
        states = load_target_model(files, torch.float32)(torch.tensor([ids]), output_hidden_states=True).hidden_states
    read = reader_of(level, files, 0, entries).read(ids)
    assert read.entries is not None
    expected = np.concatenate([states[entry][0] for entry in entries], axis=-1)
    np.testing.assert_allclose(read.entries, expected, atol=0.02, rtol=0.02)
    assert read.kv.size == 0


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=20, repeat_penalty=1.2)])
def test_answers_are_chosen_as_a_server_chooses_and_end_where_they_end(
    reader: TargetReader, sampling: Sampling
) -> None:
    answers = reader.write(PROMPTS, 12, {7}, sampling)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        assert len(answer) == 12 or answer[-1] == 7
        assert 7 not in answer[:-1]
        logits = reader.logits(reader.read([*prompt, *answer]).last_hidden)
        positions = range(len(prompt), len(prompt) + len(answer))
        before = TextBefore(prompt, [answer[:at] for at in range(len(answer))])
        assert select(logits[len(prompt) - 1 : -1], positions, sampling_for(sampling, prompt), before) == answer


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


def test_the_kernels_teach_nearly_what_torch_does(files: ModelFiles) -> None:
    batch, cpu = pack([ROWS, ROWS[:1]], 12), torch.device("cpu")
    expected = load_teacher(files, 1, torch.float32, cpu).run_packed(batch)
    got = load_teacher(files, 1, torch.float32, cpu, kernels=Progress()).run_packed(batch)
    inside = batch.segment >= 0
    assert got.state is not None
    assert expected.state is not None
    pairs = ((got.kv, expected.kv), (got.last_hidden, expected.last_hidden), (got.state, expected.state))
    for ours, theirs in pairs:
        assert ours.shape == theirs.shape
        assert (ours[inside] - theirs[inside]).norm() < 0.15 * theirs[inside].norm()
        assert not ours[~inside].any()
    torch.testing.assert_close(got.embeddings, expected.embeddings)
