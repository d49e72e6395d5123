"""The ways to answer with oracles in the drafter's place, for targets that no drafter was trained for.

State: the text of each prompt, which the target writes once, before it is first drafted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import PlainClient
from moa_bench.harness.child import Child
from moa_bench.harness.oracle import Script
from moa_bench.harness.oracle_device import with_oracle
from moa_bench.suites.split.methods import Devices, Method
from moa_bench.suites.split.names import AHEAD, PLAIN, STREAMED, SYNCHRONOUS
from moa_bench.suites.split.round_ahead import RoundAhead

DRAFT_MS = 5.0  # of a draft step: of a device somewhat slower than one core here


def oracle_methods(server: str, acceptances: Sequence[float], chain: int) -> list[Method]:
    """Plain streaming, and all ways to use an oracle of each acceptance, which drafts chains.

    Args:
        server: the name of the one that is asked.
        chain: nodes of a chain that is sent whole.
    """
    device = DraftingSettings(drafting="device")
    methods = [Method(PLAIN, server, None)]
    for acceptance in acceptances:
        name = oracle_name(acceptance)
        ahead = replace(device, run_ahead=False, new_rule=partial(RoundAhead, chain))
        methods += [
            Method(
                f"{name}: {SYNCHRONOUS}", server, replace(device, rounds=True, run_ahead=False), "chain", acceptance
            ),
            Method(f"{name}: {AHEAD}", server, ahead, "chain", acceptance),
            Method(f"{name}: {STREAMED}", server, device, "chain", acceptance),
        ]
    return methods


def oracle_name(acceptance: float) -> str:
    """For tables."""
    return f"oracle, {acceptance:g}"


class OracleDevices(Devices):
    """Devices with an oracle in the drafter's place; its memory comes as it would.

    Args:
        tokens: of an answer.
        chain: as of `oracle_methods`.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        model: str,
        methods: list[Method],
        drafters: Mapping[str, str],
        servers: Mapping[str, Child],
        tokens: int,
        chain: int,
    ) -> None:
        super().__init__(runner, model, methods, drafters, servers)
        self._servers = servers
        self._settings = AnswerSettings(max_tokens=tokens, ignore_end_of_text=True)
        self._chain = chain
        self._texts: dict[tuple[int, ...], tuple[int, ...]] = {}

    def _device(self, method: Method, prompt: Sequence[int]) -> Device:
        held, asked = super()._device(method, prompt), tuple(prompt)
        if method.acceptance is None:
            return held
        if asked not in self._texts:
            with closing(PlainClient(self._servers[method.drafter].address)) as client:
                self._texts[asked] = tuple(client.ask(asked, self._settings).tokens)
        vocab_size = int(held.files.config["vocab_size"])
        script = Script((*asked, *self._texts[asked]), method.acceptance, 0, vocab_size)
        return with_oracle(held, script, DRAFT_MS, self._chain)
