"""The ways to answer over a link, each drafter with a server of its own that gives it memory.

State: what each device holds, loaded once. Plain streaming and the server's own drafts come from the first server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from moa_client.device.loading import Device
from moa_client.drafting.settings import DraftingSettings

from moa_bench.harness.answers import AnswerClient, PlainClient
from moa_bench.harness.child import Child
from moa_bench.harness.drafters import AUTO_DRAFTER
from moa_bench.harness.links import EmulatedLink, RunningLink, linked
from moa_bench.harness.recorded import recording_of, served_from
from moa_bench.harness.split_client import SplitClient, client_settings, load_split_device
from moa_bench.suites.split.names import AHEAD, ALL, CO_LOCATED, PLAIN, STREAMED, SYNCHRONOUS
from moa_bench.suites.split.round_ahead import RoundAhead


@dataclass(frozen=True, slots=True)
class Method:
    """A way to answer.

    Args:
        drafter: whose server is asked.
        mode: how to draft; None: plain streaming.
        device: what the client holds: "chain" or "tree" of that drafter, or "auto".
        acceptance: of an oracle in the drafter's place; None: there is none.
    """

    name: str
    drafter: str
    mode: DraftingSettings | None
    device: str = ""
    acceptance: float | None = None


def methods_of(drafters: Mapping[str, str], chain: int) -> list[Method]:
    """All methods, plain streaming first.

    Args:
        drafters: the `--drafter` of each name; the first one's server answers plainly, drafts itself, and serves
            what the program does by itself.
        chain: nodes of a chain that is sent whole.
    """
    first = next(iter(drafters))
    device = DraftingSettings(drafting="device")
    methods = [Method(PLAIN, first, None), Method(CO_LOCATED, first, DraftingSettings(drafting="server"), "tree")]
    for name in drafters:
        ahead = replace(device, run_ahead=False, new_rule=partial(RoundAhead, chain))
        methods += [
            Method(f"{name}: {SYNCHRONOUS}", name, replace(device, rounds=True, run_ahead=False, tree=True), "tree"),
            Method(f"{name}: {AHEAD}", name, ahead, "chain"),
            Method(f"{name}: {STREAMED}", name, replace(device, tree=True), "tree"),
        ]
    return [*methods, Method(ALL, first, DraftingSettings(tree=True), AUTO_DRAFTER)]


class Devices:
    """What clients hold, by drafter and shape.

    Args:
        model: the servers'.
        drafters: the client's `--drafter` of each name.
        servers: of each name.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        model: str,
        methods: list[Method],
        drafters: Mapping[str, str],
        servers: Mapping[str, Child],
    ) -> None:
        self._runner = runner
        self._held: dict[tuple[str, str], Device] = {}
        for method in methods:
            if method.mode is None or (method.drafter, method.device) in self._held:
                continue
            is_auto = method.device == AUTO_DRAFTER
            program = client_settings(
                server=servers[method.drafter].address,
                model=model,
                drafter=AUTO_DRAFTER if is_auto else drafters[method.drafter],
                mode="tree" if is_auto else method.device,
            )
            self._held[method.drafter, method.device] = load_split_device(runner, program)

    @contextmanager
    def client(
        self, method: Method, prompt: Sequence[int], reach: Callable[[str], AbstractContextManager[RunningLink]]
    ) -> Iterator[AnswerClient]:
        """A new client of this way to answer.

        Args:
            prompt: that it will be asked; only an oracle knows it beforehand.
            reach: the way to a drafter's server.

        Raises:
            MoaError: it cannot connect.
        """
        with reach(method.drafter) as link, closing(self._connected(method, link.address, prompt)) as client:
            yield client

    def _connected(self, method: Method, address: str, prompt: Sequence[int]) -> AnswerClient:
        if method.mode is None:
            return PlainClient(address)
        return SplitClient(self._runner, address, self._device(method, prompt), mode=method.mode)

    def _device(self, method: Method, prompt: Sequence[int]) -> Device:
        return self._held[method.drafter, method.device]


class Reach(Protocol):
    """The way over a link to a drafter's server; `share`: where a recorded link begins, as a share of its length."""

    def __call__(self, drafter: str, *, share: float) -> AbstractContextManager[RunningLink]: ...


@contextmanager
def reaching(link: EmulatedLink, servers: Mapping[str, Child], cores: set[int] | None) -> Iterator[Reach]:
    """The ways over a link.

    A link that stays the same is there for all clients; a recorded one is made for each, so that all meet the same
    stretch of it.
    """
    if link.recording is not None:
        recording = recording_of(link)

        def replayed(drafter: str, *, share: float) -> AbstractContextManager[RunningLink]:
            return linked(replace(link, start_s=served_from(recording, share)), servers[drafter].address, cores=cores)

        yield replayed
        return
    with ExitStack() as stack:
        links = {
            name: stack.enter_context(linked(link, server.address, cores=cores)) for name, server in servers.items()
        }
        yield lambda drafter, *, share: nullcontext(links[drafter])


@contextmanager
def serving_all(
    drafters: Mapping[str, str], serve: Callable[..., AbstractContextManager[Child]]
) -> Iterator[dict[str, Child]]:
    """A server for each drafter."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve(drafter=given)) for name, given in drafters.items()}
