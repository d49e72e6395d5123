"""The ways to share the drafting that `moa-bench drafting` compares, and what each answer takes besides time.

State: the devices, which are loaded once, and a ledger of what answers took.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings

from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.network.emulated import Link
from moa_bench.network.network import Cell, Way
from moa_bench.network.oracle import Script
from moa_bench.report.answers import AnswerClient, PlainClient, TimedAnswer

SERVER, DEVICE, BOTH = "the server drafts", "the device drafts", "both, auto"
GENERATE = "Generate, the server drafts"


@dataclass(frozen=True, slots=True)
class Spent:
    """What an answer took.

    Args:
        verifications: forwards that chose tokens, the prompt's included.
        nodes: that they verified; None: the client does not learn it.
        server_guessed: tokens that only the server had guessed.
        cpu_seconds: of this process, which does nothing else meanwhile: the client's.
    """

    tokens: int
    verifications: int
    nodes: int | None
    server_guessed: int
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class Drafted:
    """How one way does over one link.

    Args:
        cell: speeds and ratios.
        tokens_a_verification, nodes_a_verification: after the first, which never has a draft.
        server_guessed: share of the tokens that only the server had guessed.
        cpu_ms_a_token: of the client.
    """

    cell: Cell
    tokens_a_verification: float | None
    nodes_a_verification: float | None
    server_guessed: float | None
    cpu_ms_a_token: float | None


Ledger = dict[tuple[str, str], list[Spent]]


class CountedClient:
    """A client that writes what its answers take into a ledger."""

    def __init__(self, client: SplitClient | PlainClient, note: Callable[[Spent], object]) -> None:
        self._client = client
        self._note = note

    def ask(
        self, prompt: Sequence[int], settings: AnswerSettings, watch: Callable[[int], object] = lambda count: None
    ) -> TimedAnswer:
        began = time.process_time()
        answer = self._client.ask(prompt, settings, watch)
        self._note(spent_on(self._client, answer, time.process_time() - began))
        return answer

    def close(self) -> None:
        self._client.close()


def spent_on(client: SplitClient | PlainClient, answer: TimedAnswer, cpu_seconds: float) -> Spent:
    """What the newest answer of this client took; without a device, every right guess was the server's."""
    if isinstance(client, SplitClient):
        figures = client.figures
        return Spent(figures.tokens, figures.verdicts, figures.drafted, figures.server_accepted, cpu_seconds)
    responses = len(set(answer.arrivals_s))
    return Spent(len(answer.tokens), responses, None, len(answer.tokens) - responses, cpu_seconds)


class DraftingWays:
    """The ways of one client.

    Args:
        server: to ask what is served; `model`: what that is.
        drafter: of the client: a checkpoint's path.
    """

    def __init__(self, runner: asyncio.Runner, server: str, model: str, drafter: str) -> None:
        self.ledger: Ledger = {}
        self._runner = runner
        settings = client_settings(server=server, model=model, drafter=drafter, mode="tree")
        self._device = load_split_device(runner, settings)

    def all(self) -> list[Way]:
        """Who drafts: the server, the device, both; and the server for a call without a device."""
        return [
            self._split(SERVER, DraftingSettings(drafting="server")),
            self._split(DEVICE, DraftingSettings(drafting="device", tree=True)),
            self._split(BOTH, DraftingSettings(tree=True)),
            self._counted(GENERATE, connect_plain),
        ]

    def of_server(self) -> list[Way]:
        """Those in which the server alone drafts."""
        return [way for way in self.all() if way.name in (SERVER, GENERATE)]

    def rows(self, cells: Sequence[Cell]) -> list[Drafted]:
        """What was measured of each way over each link since the last call."""
        ledger, self.ledger = self.ledger, {}
        return [drafted_row(cell, ledger.get((cell.link, cell.way), [])) for cell in cells]

    def _split(self, name: str, mode: DraftingSettings) -> Way:
        return self._counted(name, lambda address: SplitClient(self._runner, address, self._device, mode=mode))

    def _counted(self, name: str, make: Callable[[str], SplitClient | PlainClient]) -> Way:
        def connect(link: Link, address: str, script: Script | None) -> AnswerClient:
            return CountedClient(make(address), self.ledger.setdefault((link.name, name), []).append)

        return Way(name, connect)


def connect_plain(address: str) -> PlainClient:
    """A connection that is open, for calls of `Generate` for which the server may draft."""
    client = PlainClient(address, server_drafts=True)
    try:
        client.open()
    except BaseException:
        client.close()
        raise
    return client


def drafted_row(cell: Cell, spent: Sequence[Spent]) -> Drafted:
    """A cell with what its answers took; None where none arrived."""
    if not spent:
        return Drafted(cell, None, None, None, None)
    tokens = sum(each.tokens for each in spent)
    further = sum(each.verifications - 1 for each in spent)
    nodes = [each.nodes for each in spent if each.nodes is not None]
    return Drafted(
        cell,
        round((tokens - len(spent)) / further, 3) if further else None,
        round(sum(nodes) / further, 2) if further and nodes else None,
        round(sum(each.server_guessed for each in spent) / tokens, 4),
        round(1e3 * sum(each.cpu_seconds for each in spent) / tokens, 2),
    )
