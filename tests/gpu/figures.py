"""Measures the target on a CUDA device: `python -m tests.gpu.figures` prints one JSON object.

The model has the sizes of Llama-3-8B and random weights; `--layers` makes it smaller, `--attention` chooses one library.
Nothing is downloaded.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from moa_server.verifier import Request
from moa_server.verifier.attention import Attention, FlashInferAttention, SessionAttention
from moa_server.verifier.torch_target import TorchTarget, cuda_graphs
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 1000
REPEATS = 10
TREE = [-1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 6, 7, 7, 8, 9, 10]
SHAPES = [(1, 1), (1, 4), (1, 16), (1, 64), (4, 1), (16, 1), (16, 4), (16, 16), (64, 1), (64, 2), (64, 4), (64, 16)]
SIZES: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}


def make_model(layers: int) -> LlamaForCausalLM:
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**SIZES, num_hidden_layers=layers, dtype="bfloat16"))
    return model.to(torch.bfloat16).eval()


def milliseconds(run: Callable[[], object]) -> float:
    """Median of some runs; what a forward gives is on the host, so nothing is left to wait for."""
    run()  # compiles and records
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(1e3 * (time.perf_counter() - began))
    return round(statistics.median(times), 3)


def measure(target: TorchTarget, prompt: list[int]) -> dict[str, Any]:
    """Times of steps, trees, prompts and batches, and whether a row has the same bits in company."""
    caches = [target.new_cache() for _ in range(64)]
    figures: dict[str, Any] = {}
    began = time.perf_counter()
    for cache in caches:
        target.prefill(cache, prompt)
    figures["prompt_tokens_per_s"] = round(len(caches) * CONTEXT / (time.perf_counter() - began))

    def step(count: int, parents: list[int] | None = None, rows: int = 1) -> list[np.ndarray]:
        tokens = list(range(7, 7 + (rows if parents is None else len(parents))))
        requests = [Request(cache, tokens, parents, range(len(tokens))) for cache in caches[:count]]
        logits = [output.logits for output in target.forward_all(requests)]
        for cache in caches[:count]:
            cache.keep([])
        return logits

    figures["forward_ms"] = {  # of so many conversations, each with so many rows
        f"{count} x {rows}": milliseconds(lambda count=count, rows=rows: step(count, None, rows))  # type: ignore[misc]
        for count, rows in SHAPES
    }
    figures["tree_ms_16_nodes"] = milliseconds(lambda: step(1, TREE))
    alone, three, four = step(1)[0], step(3)[0], step(4)[0]
    tree = step(1, TREE)[0][:1]
    figures["same_bits_in_one_bucket"] = bool(np.array_equal(three, four))
    figures["same_bits_alone_and_with_others"] = bool(np.array_equal(alone, four))
    figures["same_bits_alone_and_in_a_tree"] = bool(np.array_equal(alone, tree))
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--attention", choices=["torch", "flashinfer"])
    arguments = parser.parse_args()
    layers = arguments.layers
    attentions: dict[str, type[Attention]] = {"torch": SessionAttention}
    if find_spec("flashinfer") is not None:
        attentions["flashinfer"] = FlashInferAttention
    if arguments.attention:
        attentions = {arguments.attention: attentions[arguments.attention]}
    prompt = np.random.default_rng(0).integers(0, SIZES["vocab_size"], CONTEXT).tolist()
    results: dict[str, Any] = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "layers": layers}
    for attention in attentions.values():
        for graphs in (True, False) if attention.has_graphs else (False,):
            target = TorchTarget(
                make_model(layers), attends=attention, fills=True, record=cuda_graphs() if graphs else None
            )
            results[f"{attention.name}, {'graphs' if graphs else 'no graphs'}"] = measure(target, prompt)
            del target
            torch.cuda.empty_cache()
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
