"""transformers' own generate, on one thread in its own process: `moa_bench.suites.single.peers.transformers_worker`.

A line of JSON in, a line out: {"ask": prompt tokens, "count": new ones, "mode": "plain", "lookup" or "assistant"} to
{"tokens", "arrivals_ms"}. An end of text does not end an answer, so that all peers write equally many tokens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from moa_bench.report.memory import memory_mb

LOOKUP_TOKENS = 10  # that are copied at most: what transformers' documentation uses


class Arrivals:
    """A streamer of transformers that notes when tokens come; the first call brings the prompt."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self._has_prompt = False
        self._began = time.perf_counter()

    def put(self, tokens: Any) -> None:
        now = 1e3 * (time.perf_counter() - self._began)
        if self._has_prompt:
            self.ms += [now] * int(tokens.numel())
        self._has_prompt = True

    def end(self) -> None:
        """Does nothing: the last token has come."""


class Generator:
    """A model of transformers that answers on command.

    Args:
        assistant: a smaller model with the same tokens; None: there is none.
    """

    def __init__(self, model: Any, assistant: Any = None) -> None:
        self._model = model
        self._modes: dict[str, dict[str, Any]] = {
            "plain": {},
            "lookup": {"prompt_lookup_num_tokens": LOOKUP_TOKENS},
            "assistant": {"assistant_model": assistant},
        }
        for each in (model, assistant):
            if each is not None:
                each.generation_config.eos_token_id = None
                each.generation_config.pad_token_id = 0

    def ask(self, prompt: Sequence[int], count: int, mode: str) -> dict[str, Any]:
        """`count` greedy tokens after a prompt."""
        import torch

        tokens = torch.tensor([list(prompt)])
        arrivals = Arrivals()
        with torch.inference_mode():
            whole = self._model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=count,
                do_sample=False,
                streamer=arrivals,
                **self._modes[mode],
            )
        return {"tokens": whole[0, len(prompt) :].tolist(), "arrivals_ms": arrivals.ms[:count]}


@click.command()
@click.option("--model", required=True)
@click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), required=True)
@click.option("--assistant")
def main(model: str, dtype: str, assistant: str | None) -> None:
    """A peer of `moa-bench single`, not for use."""
    import torch
    from moa_shared.models import load_target_model, resolve

    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what transformers prints goes to standard error
    torch.set_num_threads(1)
    kind = getattr(torch, dtype)
    smaller = load_target_model(resolve(assistant), kind) if assistant else None
    generator = Generator(load_target_model(resolve(model), kind), smaller)
    print(json.dumps({"details": f"torch {torch.__version__}, {dtype}, 1 thread"}), file=answers)
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        said = generator.ask(command["ask"], command["count"], command["mode"])
        print(json.dumps({**said, "resident_mb": memory_mb(os.getpid())}), file=answers)


if __name__ == "__main__":
    main()
