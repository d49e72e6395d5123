"""How alike two engines write, where the other is one whose answers are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import pytest
from moa_bench.harness.workers import WorkerProcess
from moa_bench.suites.engine.same_text.measure import TOKENS, SameText, _judge, compare, prompts
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.models.tokenizer.tokenizer import Tokenizer


class Other:
    """Writes what `target` writes, but for the first token of each answer; its text is half as likely."""

    def __init__(self, target: KernelTarget) -> None:
        self.target = target

    def ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        if "score" in command:
            chances, _ = _judge(self.target, command["score"], 0)
            return {"chances": list(np.exp(chances) / 2)}
        cache, tokens = self.target.new_cache(), list(command["write"])
        logits = self.target.forward(cache, tokens).logits[-1]
        written = [int(np.argsort(logits)[0])]  # the least likely
        while len(written) < command["count"]:
            written.append(int(self.target.forward(cache, written[-1:]).logits[-1].argmax()))
        return {"tokens": written}


class Numbers:
    """A tokenizer of texts of numbers."""

    def encode(self, text: str) -> list[int]:
        return [int(word) for word in text.split()]

    def with_bos(self, ids: list[int]) -> list[int]:
        return [1, *ids]


def test_tokens_and_perplexity_are_compared(make_target: Callable[[], KernelTarget]) -> None:
    target = make_target()
    text = " ".join(str(7 * place % 90) for place in range(90))  # longer than a block
    worker, tokenizer = cast(WorkerProcess, Other(target)), cast(Tokenizer, Numbers())
    found = compare(target, worker, tokenizer, ["5 6 7", "8"], text)
    assert (found.tokens, found.alike, found.near_ties, found.whole) == (2 * TOKENS, 2 * TOKENS - 2, 0, 0)
    assert found.theirs == pytest.approx(2 * found.perplexity)


def test_what_is_printed() -> None:
    assert str(SameText(1280, 1250, 20, 17, 8.0, 8.04)).splitlines() == [
        "1250 of 1280 tokens are alike (97.66%), 99.21% without 20 near ties; 17 prompts in every token",
        "perplexity 8.0000, llama.cpp's 8.0400 (-0.50%)",
    ]


def test_there_are_enough_prompts() -> None:
    assert len(set(prompts())) == 40
