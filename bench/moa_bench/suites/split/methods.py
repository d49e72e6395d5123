"""The ways to answer over a link, each drafter with a server of its own that gives it memory.

For targets that no drafter was trained for, oracles take the drafter's place: the target writes each text beforehand.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Literal

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.child import Child
from moa_bench.harness.oracle import DRAFT_MS, ROUNDS, SECOND_GUESS, Script, with_oracle
from moa_bench.harness.split_client import PlainClient, SplitClient, client_settings, load_split_device
from moa_bench.registry import SplitEffort
from moa_bench.suites.split.tables import ALL, CO_LOCATED, PLAIN, STREAMED, SYNCHRONOUS


@dataclass(frozen=True, slots=True)
class Method:
    name: str
    drafter: str  # whose server is asked
    mode: DraftingSettings | None  # how to draft; None: plain streaming
    device: Literal["", "chain", "tree", "auto"] = ""  # what the client holds of that drafter, or its own choice
    acceptance: float | None = None  # of an oracle in the drafter's place
    guesses: Literal["chain", "tree"] = "chain"  # of the oracle


def methods_of(drafters: Sequence[str]) -> list[Method]:
    """All methods, plain streaming first; what needs no drafter is asked of the first one's server."""
    first, streamed = drafters[0], DraftingSettings(drafting="device", tree=True)
    both = {SYNCHRONOUS: replace(ROUNDS, tree=True), STREAMED: streamed}
    return [
        Method(PLAIN, first, None),
        Method(CO_LOCATED, first, DraftingSettings(drafting="server"), "tree"),
        *(Method(f"{name}: {way}", name, mode, "tree") for name in drafters for way, mode in both.items()),
        Method(ALL, first, DraftingSettings(tree=True), "auto"),
    ]


def oracle_methods(server: str, acceptances: Sequence[float]) -> list[Method]:
    """Plain streaming, streamed chains of an oracle of each acceptance, and of the best one rounds, and trees."""
    streamed = DraftingSettings(drafting="device")
    chains = [Method(f"oracle, {each:g}: {STREAMED}", server, streamed, "chain", each) for each in acceptances]
    best = max(acceptances)
    others = [Method(f"oracle, {best:g}: {SYNCHRONOUS}", server, ROUNDS, "chain", best)]
    if 0 < best < 1:
        name, growing = f"oracle, {best:g}, trees", replace(streamed, tree=True)
        others += [
            Method(f"{name}: {SYNCHRONOUS}", server, ROUNDS, "chain", best, "tree"),
            Method(f"{name}: {STREAMED}", server, growing, "chain", best, "tree"),
        ]
    return [Method(PLAIN, server, None), *chains, *others]


class Devices:
    """What clients hold, by drafter and shape; of oracles, the texts."""

    def __init__(
        self,
        runner: asyncio.Runner,
        model: str,
        methods: Sequence[Method],
        drafters: Mapping[str, str],
        servers: Mapping[str, Child],
        effort: SplitEffort,
        settings: AnswerSettings,
    ) -> None:
        self._settings = settings
        self._runner = runner
        self._servers = servers
        self._effort = effort
        self._held: dict[tuple[str, str], Device] = {}
        self._texts: dict[tuple[int, ...], tuple[int, ...]] = {}
        for method in methods:
            if method.mode is None or (method.drafter, method.device) in self._held:
                continue
            is_auto = method.device == "auto"  # the client's own choice among those that the server gives
            program = client_settings(
                server=servers[method.drafter].address,
                model=model,
                drafter="auto" if is_auto else drafters[method.drafter],
                mode="tree" if is_auto else method.device,
            )
            self._held[method.drafter, method.device] = load_split_device(runner, program)

    def client(self, method: Method, prompt: Sequence[int], address: str) -> SplitClient | PlainClient:
        """A new client of this way to answer over an address; only an oracle knows beforehand what it will be asked."""
        if method.mode is None:
            return PlainClient(address)
        device = self._held[method.drafter, method.device]
        if method.acceptance is not None:
            vocab_size = int(device.target.files.config["vocab_size"])
            text = (*prompt, *self._text(method, tuple(prompt)))
            twice = method.guesses == "tree"
            script = Script(text, method.acceptance, 0, vocab_size, SECOND_GUESS if twice else 0.0)
            device = with_oracle(device, script, DRAFT_MS, twice=twice)
        mode = replace(method.mode, rounds=self._effort.chain) if method.mode.rounds else method.mode
        return SplitClient(self._runner, address, device, mode=mode)

    def _text(self, method: Method, prompt: tuple[int, ...]) -> tuple[int, ...]:
        """What the target writes, by plain streaming without a link."""
        if prompt not in self._texts:
            with closing(PlainClient(self._servers[method.drafter].address)) as client:
                self._texts[prompt] = client.ask(prompt, self._settings).tokens
        return self._texts[prompt]
