"""transformers' own generate as a peer of `moa-bench single`, on one thread, as llama_cpp.mjs speaks.

A line of JSON in, a line out: {"ask": prompt tokens, "count": new ones, "mode": "plain", "lookup" or "draft"} to
{"tokens", "arrivals_ms"}. An end of text does not end an answer.
"""

import json
import os
import sys
import time
from typing import Any

import click
from moa_shared.programs.machine import ms_since

from moa_bench.machine import memory_mb

LOOKUP_TOKENS = 10  # that are copied at most: what transformers' documentation uses


class Arrivals:
    """A streamer of transformers that notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._has_prompt = False
        self._began = time.perf_counter()

    def put(self, tokens: Any) -> None:
        if self._has_prompt:
            self.ms += [ms_since(self._began)] * int(tokens.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Does nothing: the last token has come."""


def answer(model: Any, command: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """The greedy tokens that a command asks for, and when they came."""
    import torch

    prompt, count = command["ask"], command["count"]
    tokens, arrivals = torch.tensor([prompt]), Arrivals()
    more = {"attention_mask": torch.ones_like(tokens), "max_new_tokens": count, "do_sample": False} | options
    with torch.inference_mode():
        whole = model.generate(tokens, streamer=arrivals, **more)
    return {"tokens": whole[0, len(prompt) :].tolist(), "arrivals_ms": arrivals.ms[:count]}


@click.command()
@click.option("--model", required=True)
@click.option("--assistant")
def main(model: str, assistant: str | None) -> None:
    """A peer of `moa-bench single`, not for use."""
    import torch
    from moa_shared.models import load_target_model, resolve

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what transformers prints goes to standard error
    torch.set_num_threads(1)
    target, *smaller = [load_target_model(resolve(each), torch.bfloat16) for each in (model, assistant) if each]
    modes: dict[str, dict[str, Any]] = {"plain": {}, "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS}}
    for each in smaller:
        modes["draft"] = {"assistant_model": each}
    for each in (target, *smaller):
        each.generation_config.eos_token_id, each.generation_config.pad_token_id = None, 0
    details = f"torch {torch.__version__}, 1 thread"
    print(json.dumps({"details": details, "modes": list(modes)}), file=answers)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        said = answer(target, command, modes[command["mode"]])
        print(json.dumps(said | {"resident_mb": memory_mb(os.getpid())}), file=answers)


if __name__ == "__main__":
    main()
