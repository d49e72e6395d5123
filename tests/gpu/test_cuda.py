"""The target on a CUDA device against the same target on the CPU: `pytest tests/gpu`. Skips where there is none.

What it cannot say, `python -m tests.gpu.figures` measures.
"""

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch
from moa_server.verifier import KVCache, Request, Target, TargetOutput
from moa_server.verifier.attention import FlashInferAttention, SessionAttention
from moa_server.verifier.pool import over_arrays
from moa_server.verifier.torch_target import TorchTarget, cuda_graphs
from moa_shared.drafter.checkpoint import Checkpoint, fresh_tensors

from tests.support.decoders import EVEN, normal
from tests.support.tiny_models import FAMILIES
from tests.support.torch_models import torch_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

TREE = [-1, 0, 0, 1, 1, 2, 3, 5, 5, 0]
TREE_TOKENS = [11, 12, 13, 14, 15, 16, 17, 18, 19, 12]
SIZES: dict[str, Any] = {"head_dim": 64, "max_position_embeddings": 1024}
KV_BYTES = 1 << 26
# Of the norm of what float32 gives on the CPU; bfloat16 on the CPU is 0.03 to 0.08 away from it.
FAR: dict[torch.dtype, float] = {torch.float32: 1e-3, torch.bfloat16: 0.12}


def cuda_target(family: str, name: str, dtype: torch.dtype, *, graphs: bool = True) -> TorchTarget:
    return TorchTarget(
        torch_model(family, dtype, **SIZES).to("cuda"),
        kv_bytes=KV_BYTES,
        attends=FlashInferAttention if name == "flashinfer" else SessionAttention,
        fills=True,
        record=cuda_graphs() if graphs and name == "flashinfer" else None,
    )


def play(target: Target) -> list[TargetOutput]:
    """Long and short conversations: chunks, single steps, trees that are cut, together and alone."""
    caches: list[KVCache] = [target.new_cache() for _ in range(4)]
    outputs = []
    for cache, length in zip(caches, (1, 63, 300, 700), strict=True):
        tokens = [token % 97 for token in range(length)]
        outputs.append(target.forward(cache, tokens, logits_for=[length - 1], want_state_layer=1))
    for _ in range(3):
        requests = [Request(caches[0], TREE_TOKENS, TREE, range(len(TREE)), state_layers=(2,))]
        requests += [Request(cache, [token], None, [0]) for token, cache in enumerate(caches[1:])]
        outputs += target.forward_all(requests)
        caches[0].keep([0, 2, 5, 8])
    caches[2].release()
    outputs.append(target.forward(caches[2], [token % 97 for token in range(130)]))
    return outputs


@pytest.mark.parametrize("graphs", [True, False], ids=["graphs", "no graphs"])
@pytest.mark.parametrize(
    ("name", "dtype"), [("torch", torch.float32), ("torch", torch.bfloat16), ("flashinfer", torch.bfloat16)]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_gpu_gives_what_the_cpu_gives(family: str, name: str, dtype: torch.dtype, graphs: bool) -> None:
    if name == "flashinfer" and find_spec(name) is None:
        pytest.skip("flashinfer is not installed")
    expected = play(TorchTarget(torch_model(family, **SIZES), kv_bytes=KV_BYTES))
    for ours, theirs in zip(play(cuda_target(family, name, dtype, graphs=graphs)), expected, strict=True):
        assert distance(ours.logits, theirs.logits) < FAR[dtype]
        assert distance(ours.hidden, theirs.hidden) < FAR[dtype]
        for layer, state in theirs.states.items():
            assert distance(ours.states[layer], state) < FAR[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_memory_rows_of_the_gpu_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    device = torch.device("cuda")
    drafter, kv = Checkpoint(EVEN, fresh_tensors(EVEN, seed=0), ""), normal(5, 4, EVEN.kv_width, seed=2)
    rows = over_arrays(drafter.torch_rows(dtype, device), dtype, device)(kv)
    assert distance(rows, drafter.rows("float32")(kv)) < FAR[dtype]


def distance(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs))
