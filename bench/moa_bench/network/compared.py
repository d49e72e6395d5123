"""The ways to answer that `moa-bench network` compares, and the bytes that each of them costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.byte_counter import counting
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.micro.serving import Traffic, measure_traffic
from moa_bench.network.emulated import Link
from moa_bench.network.network import Way
from moa_bench.network.oracle import Script
from moa_bench.network.step_cost import ask_step_cost
from moa_bench.network.ways import MODES, oracle_way, real_way
from moa_bench.report.answers import PlainClient

COMPARED = (0.8,)  # the acceptance at which the base lines of streamed drafts are measured too: that of the aim
COUNTED = (0.35, 0.65, 0.8, 0.9)  # at which the oracle's bytes are counted
LOOPBACK = Link("RTT 0")
PLAIN = Way("plain streaming", lambda link, address, script: PlainClient(address))


class ComparedWays:
    """The clients that are compared; devices are loaded once.

    Args:
        server: to ask what is served; `model`: what that is.
        drafter: of the client: a checkpoint's path, or "auto".
    """

    def __init__(self, runner: asyncio.Runner, server: str, model: str, drafter: str, draft_ms: float) -> None:
        def load(**fields: Any) -> Device:
            settings = client_settings(server=server, model=model, **({"drafter": drafter} | fields))
            return load_split_device(runner, settings)

        self.runner, self.server = runner, server
        self.chain, self.tree, self.lookup = load(mode="chain"), load(mode="tree"), load(drafter="lookup")
        self.draft_ms = draft_ms
        self.cost = ask_step_cost(runner, server)

    def oracle(self) -> list[Way]:
        make = partial(oracle_way, runner=self.runner, device=self.chain, draft_ms=self.draft_ms, cost=self.cost)
        return [
            make("streamed", "streamed"),
            make("streamed, server waits", "waiting", acceptances=COMPARED),
            make("rounds", "rounds", acceptances=COMPARED),
        ]

    def real(self) -> list[Way]:
        streamed, rounds = MODES["streamed"], MODES["rounds"]
        return [
            real_way("streamed, tree", replace(streamed, tree=True), self.runner, self.tree),
            real_way("streamed, chain", streamed, self.runner, self.chain),
            real_way("streamed, look-up", streamed, self.runner, self.lookup),
            real_way("rounds, tree", replace(rounds, tree=True), self.runner, self.tree),
            real_way("the server's drafts", DraftingSettings(drafting="server"), self.runner, self.tree),
            real_way("auto, tree", DraftingSettings(tree=True), self.runner, self.tree),
        ]

    def connect_tree(self, address: str) -> SplitClient:
        return SplitClient(self.runner, address, self.tree, mode=replace(MODES["streamed"], tree=True))


def count_bytes(
    ways: ComparedWays, sure: Sequence[int], prompt: Sequence[int], tokens: int, vocab_size: int
) -> list[Traffic]:
    """Bytes at the socket, without an emulated link: plain streaming, an oracle's chains, a drafter's chains and trees.

    Args:
        sure: a prompt whose text the oracle can replay; `prompt`: one for the drafter.
        tokens: of each answer.
    """
    plain = PlainClient(ways.server)
    try:
        text = plain.ask(sure, AnswerSettings(max_tokens=tokens, ignore_end_of_text=True)).tokens
    finally:
        plain.close()
    found = [count_way(ways.server, PLAIN, prompt, tokens)]
    for acceptance in COUNTED:
        way = replace(ways.oracle()[0], name=f"oracle {acceptance:g}, chain")
        script = Script((*sure, *text), acceptance, 0, vocab_size)
        found.append(count_way(ways.server, way, sure, tokens, script))
    return found + [count_way(ways.server, way, prompt, tokens) for way in ways.real()]


def count_way(server: str, way: Way, prompt: Sequence[int], tokens: int, script: Script | None = None) -> Traffic:
    """Bytes of one answer at the socket, without an emulated link.

    Args:
        server: "host:port".
        script: for an oracle.
    """
    with counting(server) as counter:
        client = way.connect(LOOPBACK, counter.address, script)
        try:
            return measure_traffic(way.name, client, counter, prompt, tokens)
        finally:
            client.close()
