"""The ways to use oracles, and what each of them knows."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa_bench.harness.links import RunningLink
from moa_bench.harness.oracle import OracleDrafter
from moa_bench.suites.split import SplitEffort, methods
from moa_bench.suites.split.figures import PLAIN
from moa_bench.suites.split.methods import Devices, oracle_methods
from moa_shared.protocol.finish_rule import AnswerSettings


def test_oracles_stream_at_each_acceptance_and_the_best_one_drafts_in_all_ways() -> None:
    made = oracle_methods("any", (0.5, 0.9))
    assert [(method.name, method.acceptance) for method in made] == [
        (PLAIN, None),
        ("oracle, 0.5: streamed", 0.5),
        ("oracle, 0.9: streamed", 0.9),
        ("oracle, 0.9: synchronous rounds", 0.9),
        ("oracle, 0.9, trees: synchronous rounds", 0.9),
        ("oracle, 0.9, trees: streamed", 0.9),
    ]


class Written:
    """Plain streaming that writes 7, 8, 9, and counts how often it was asked."""

    asked = 0

    def __init__(self, address: str) -> None:
        pass

    def ask(self, prompt: Any, settings: Any) -> SimpleNamespace:
        type(self).asked += 1
        return SimpleNamespace(tokens=(7, 8, 9))

    def close(self) -> None:
        pass


class Playing:
    """A client that only shows what its device would draft."""

    def __init__(self, runner: Any, address: str, device: Any, *, mode: Any) -> None:
        self.drafter = cast("OracleDrafter", device.drafter.new_state())

    def close(self) -> None:
        pass


def test_the_text_of_a_prompt_is_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    device: Any = SimpleNamespace(files=SimpleNamespace(config={"vocab_size": 100}))
    monkeypatch.setattr(methods, "PlainClient", Written)
    monkeypatch.setattr(methods, "SplitClient", Playing)
    monkeypatch.setattr(methods, "load_split_device", lambda runner, program: device)
    monkeypatch.setattr(
        methods,
        "with_oracle",
        lambda device, script, draft_ms, chain, tree: SimpleNamespace(
            drafter=SimpleNamespace(new_state=lambda: OracleDrafter(script, draft_ms))
        ),
    )

    def reach(name: str) -> AbstractContextManager[RunningLink]:
        return nullcontext(cast("RunningLink", SimpleNamespace(address=name)))

    plain, *others = oracle_methods("any", (1.0,))
    servers: Any = {"any": SimpleNamespace(address="127.0.0.1:1")}
    with asyncio.Runner() as runner:
        devices = Devices(
            runner,
            "default",
            [plain, *others],
            {"any": "default"},
            servers,
            SplitEffort(),
            AnswerSettings(max_tokens=64),
        )
        with devices.client(plain, (1, 2), reach) as client:
            assert isinstance(client, Written)
        for method in others:
            with devices.client(method, (1, 2), reach) as client:
                assert cast("Playing", client).drafter.script.tokens == (1, 2, 7, 8, 9)
    assert Written.asked == 1
