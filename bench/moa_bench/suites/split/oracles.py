"""The ways to answer with oracles in the drafter's place, for targets that no drafter was trained for.

State: what the device holds, and the text of each prompt, which the target writes once, before it is first drafted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import replace
from functools import partial

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.answers import AnswerClient, PlainClient
from moa_bench.harness.links import RunningLink
from moa_bench.harness.oracle import Script
from moa_bench.harness.oracle_device import with_oracle
from moa_bench.harness.split_client import SplitClient
from moa_bench.suites.split.methods import Method
from moa_bench.suites.split.names import AHEAD, PLAIN, STREAMED, SYNCHRONOUS
from moa_bench.suites.split.round_ahead import RoundAhead

DRAFT_MS = 5.0  # of a draft step: of a device somewhat slower than one core here, as in `moa-bench network`


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


class OracleDevices:
    """Clients of one prompt after the other.

    Args:
        address: of the server, without a link.
        device: of a client whose drafter reads memory; the oracle takes its place, and its memory comes as it would.
        tokens: of an answer.
        chain: as of `oracle_methods`.
    """

    def __init__(self, runner: asyncio.Runner, address: str, device: Device, tokens: int, chain: int) -> None:
        self._runner = runner
        self._address = address
        self._device = device
        self._settings = AnswerSettings(max_tokens=tokens, ignore_end_of_text=True)
        self._chain = chain
        self._texts: dict[tuple[int, ...], tuple[int, ...]] = {}

    @contextmanager
    def client(
        self, method: Method, prompt: Sequence[int], reach: Callable[[str], AbstractContextManager[RunningLink]]
    ) -> Iterator[AnswerClient]:
        """A new client of this way to answer that prompt.

        Args:
            reach: the way to a drafter's server.

        Raises:
            MoaError: it cannot connect.
        """
        script = None if method.acceptance is None else self._script(tuple(prompt), method.acceptance)
        with reach(method.drafter) as link, closing(self._connected(method, link.address, script)) as client:
            yield client

    def _connected(self, method: Method, address: str, script: Script | None) -> AnswerClient:
        if method.mode is None or script is None:
            return PlainClient(address)
        playing = with_oracle(self._device, script, DRAFT_MS, self._chain)
        return SplitClient(self._runner, address, playing, mode=method.mode)

    def _script(self, prompt: tuple[int, ...], acceptance: float) -> Script:
        if prompt not in self._texts:
            with closing(PlainClient(self._address)) as client:
                self._texts[prompt] = tuple(client.ask(prompt, self._settings).tokens)
        vocab_size = int(self._device.files.config["vocab_size"])
        return Script((*prompt, *self._texts[prompt]), acceptance, 0, vocab_size)
