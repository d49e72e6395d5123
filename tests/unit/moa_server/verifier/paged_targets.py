"""Targets in torch as a GPU has them, on the CPU: each attention, forwards filled up, graphs that are played again."""

import itertools
import sys
from collections.abc import Callable
from types import ModuleType
from unittest.mock import patch

import torch
from moa_server.verifier.attention import Attention, FlashInferAttention, Record, RunLayers, SessionAttention, States
from moa_server.verifier.torch_target import TorchTarget
from transformers import PreTrainedModel

POOL_BYTES = 1 << 20
ATTENTIONS: dict[str, type[Attention]] = {"torch": SessionAttention, "flashinfer": FlashInferAttention}


def paged_target(
    model: PreTrainedModel, attention: str, context_length: int | None = None, record: Record | None = None
) -> TorchTarget:
    """A target with that library's attention, as on a GPU; `torch`: as on a CPU. `record`: None: `played_again`."""
    if attention == "torch":
        return TorchTarget(model, context_length)
    with patch.dict(sys.modules, flashinfer=fake_flashinfer()):
        more = {"attends": ATTENTIONS[attention], "fills": True, "record": record or played_again()}
        return TorchTarget(model, context_length, kv_bytes=POOL_BYTES, **more)  # type: ignore[arg-type]


def played_again() -> Record:
    """Records nothing: it runs the same function over the same tensors, and writes where the first run did."""

    def record(run: RunLayers) -> tuple[Callable[[], None], States]:
        states = run()

        def play() -> None:
            again = run()
            states.last.copy_(again.last)
            for layer, state in again.entering.items():
                states.entering[layer].copy_(state)

        return play, states

    return record


def fake_flashinfer() -> ModuleType:
    """A module with the part of FlashInfer that is used."""
    module = ModuleType("flashinfer")
    module.BatchPrefillWithPagedKVCacheWrapper = FakeWrapper  # type: ignore[attr-defined]
    return module


class FakeWrapper:
    """FlashInfer 0.7's wrapper as its documentation describes it, in plain torch: it refuses what that forbids."""

    def __init__(
        self, workspace: torch.Tensor, kv_layout: str, *, use_cuda_graph: bool, backend: str, **buffers: torch.Tensor
    ) -> None:
        assert workspace.dtype == torch.uint8
        assert (kv_layout, backend) == ("NHD", "fa2")  # the other backends take no mask
        self.buffers, self.fixed_rows = buffers, 0
        if use_cuda_graph:
            each_a_conversation = ("qo_indptr_buf", "paged_kv_indptr_buf", "mask_indptr_buf")
            assert len({len(buffers[name]) for name in each_a_conversation}) == 1
            assert len(buffers["paged_kv_last_page_len_buf"]) == len(buffers["qo_indptr_buf"]) - 1
            assert buffers["custom_mask_buf"].dtype == torch.uint8

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        *shapes: int,
        custom_mask: torch.Tensor | None,
        causal: bool,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        disable_split_kv: bool,
    ) -> None:
        for tensor in (qo_indptr, paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len):
            assert (tensor.dtype, tensor.dim()) == (torch.int32, 1)
        assert disable_split_kv  # or its sums are in no fixed order
        offsets, pages, last = qo_indptr.tolist(), paged_kv_indptr.tolist(), paged_kv_last_page_len.tolist()
        heads, kv_heads, _, page_size = self.shapes = shapes
        assert offsets[0] == pages[0] == 0
        assert offsets == sorted(offsets)
        assert pages == sorted(set(pages))  # a page at least for each
        assert len(offsets) == len(pages) == len(last) + 1
        assert len(paged_kv_indices) == pages[-1]
        assert all(1 <= rows <= page_size for rows in last)
        assert heads % kv_heads == 0
        self.rows = [after - before for before, after in itertools.pairwise(offsets)]
        self.lengths = [
            (after - before - 1) * page_size + rows
            for (before, after), rows in zip(itertools.pairwise(pages), last, strict=True)
        ]
        sizes = [rows * length for rows, length in zip(self.rows, self.lengths, strict=True)]
        if self.buffers:
            self.fixed_rows = self.fixed_rows or offsets[-1]
            assert (len(offsets), offsets[-1]) == (len(self.buffers["qo_indptr_buf"]), self.fixed_rows)
            assert len(paged_kv_indices) <= len(self.buffers["paged_kv_indices_buf"])
            assert custom_mask is not None
            assert sum(-(-size // 8) for size in sizes) <= len(self.buffers["custom_mask_buf"])
        self.pages = [paged_kv_indices[a:b].tolist() for a, b in itertools.pairwise(pages)]
        self.dtypes = (q_data_type, kv_data_type)
        assert causal is (custom_mask is None)
        mask = torch.ones(sum(sizes), dtype=torch.bool) if custom_mask is None else custom_mask
        assert (mask.dtype, mask.shape) == (torch.bool, (sum(sizes),))
        views = [
            part.view(rows, length)
            for part, rows, length in zip(mask.split(sizes), self.rows, self.lengths, strict=True)
        ]
        self.masks = [view.tril(view.shape[1] - view.shape[0]) if causal else view for view in views]

    def run(self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        keys, values = paged_kv_cache
        heads, kv_heads, head_dim, page_rows = self.shapes
        assert q.shape == (sum(self.rows), heads, head_dim)
        assert keys.shape == values.shape == (len(keys), page_rows, kv_heads, head_dim)
        assert (q.dtype, keys.dtype) == self.dtypes
        assert q.is_contiguous()
        outputs = []
        for rows, length, pages, mask in zip(q.split(self.rows), self.lengths, self.pages, self.masks, strict=True):
            k, v = (
                each[pages].flatten(0, 1)[:length].repeat_interleave(heads // kv_heads, 1).float()
                for each in (keys, values)
            )
            scores = torch.einsum("rhd,khd->hrk", rows.float(), k) * head_dim**-0.5
            weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
            outputs.append(torch.einsum("hrk,khd->rhd", weights, v).to(q.dtype))
        return torch.cat(outputs)
