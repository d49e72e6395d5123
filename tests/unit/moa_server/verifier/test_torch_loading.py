"""Where a level is computed, and by which library; loading itself is in test_execution_level.py."""

import subprocess
import sys

import pytest
import torch
from moa_server.verifier import torch_loading
from moa_server.verifier.attention import PLAIN, AttentionShape, FlashInferAttention, SessionAttention
from moa_server.verifier.torch_loading import choose_attention, choose_device, warm_up
from structlog.testing import capture_logs

from tests.support.messages import steady
from tests.support.torch_models import torch_model
from tests.unit.moa_server.verifier.paged_targets import paged_target

pytestmark = pytest.mark.torch
BF16 = torch.bfloat16
WINDOWS = "FlashInfer computes neither sliding windows nor caps of scores here"


@pytest.mark.parametrize(
    ("named", "level", "sees", "device"),
    [
        ("auto", "bf16", True, "cuda"),
        ("auto", "bf16", False, "cpu"),
        ("auto", "float32", True, "cpu"),
        ("cuda", "float32", True, "cuda"),
        ("cpu", "bf16", True, "cpu"),
    ],
)
def test_the_device(monkeypatch: pytest.MonkeyPatch, named: str, level: str, sees: bool, device: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: sees)
    assert choose_device(named, level) == device


@pytest.mark.parametrize(
    ("installed", "dtype", "head_dim", "shape", "reason"),
    [
        (False, BF16, 64, PLAIN, "flashinfer is not installed: PYTHON -m pip install --editable 'CHECKOUT[cuda]'"),
        (True, torch.float32, 64, PLAIN, "FlashInfer does not compute in float32"),
        (True, BF16, 96, PLAIN, "FlashInfer has no kernels for heads of 96"),
        (True, BF16, 64, AttentionShape((0, 5)), WINDOWS),
        (True, BF16, 64, AttentionShape(cap=2.0), WINDOWS),
    ],
)
def test_torch_s_attention_is_taken_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch,
    installed: bool,
    dtype: torch.dtype,
    head_dim: int,
    shape: AttentionShape,
    reason: str,
) -> None:
    monkeypatch.setattr(torch_loading, "find_spec", lambda _: object() if installed else None)
    with capture_logs() as logs:
        assert choose_attention(dtype, head_dim, shape) is SessionAttention
    [entry] = logs
    assert steady(entry["reason"]) == reason


def test_flashinfer_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_loading, "find_spec", lambda _: object())
    assert choose_attention(BF16, 128, PLAIN) is FlashInferAttention


def test_the_shapes_of_the_first_forwards_are_recorded_and_leave_no_pages() -> None:
    target = paged_target(torch_model(max_position_embeddings=40), "flashinfer")
    warm_up(target)
    cache = target.new_cache()
    cache.reserve(target.kv_bytes() // cache.most_nbytes(1) * 64)  # all pages


def test_a_cpu_loads_no_other_library() -> None:
    script = "import sys, moa_server.verifier.torch_loading; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert "moa_server.verifier.torch_target" in loaded
    assert "flashinfer" not in loaded
