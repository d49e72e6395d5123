"""The client program's own conversation as a measurement uses it: one question, one answer, each in a new conversation.

State: an event loop shared by all clients of a run (gRPC's asyncio side wants one a process), a link, and what the
device holds. The drafter runs on the client's inference thread, as in the program.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moa_client.figures import Figures
from moa_client.link import Link
from moa_client.loading import Device, load_device
from moa_client.settings import SECTION, ClientSettings
from moa_client.talk import Talk
from moa_shared.answer import AnswerSettings
from moa_shared.codec import Codec
from moa_shared.config import load_settings
from moa_shared.errors import DataError, UnavailableError
from moa_shared.progress import SilentProgress

from moa_bench.answers import TimedAnswer

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb

RETRY_S = 0.05  # between attempts: the wait for the link itself is gRPC's


class SplitClient:
    """Asks through split inference.

    Args:
        runner: whose event loop is used.
        address: "host:port".
        device: what this end holds; its drafter is used by one client at a time.
        codec: of the memory.
        persist_s: how long an answer that broke off is asked for again; 0: not at all.
        silence_s: how long the client waits for a frame; None: as the program does.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        address: str,
        device: Device,
        codec: Codec = Codec.INT4,
        *,
        persist_s: float = 0.0,
        silence_s: float | None = None,
    ) -> None:
        self._runner = runner
        self._persist_s = persist_s
        self._device = device
        self._codec = codec
        self.figures = Figures()
        self.attempts = 0  # of the newest answer
        self._link, described = runner.run(_connect(address, silence_s))
        self._vocab_size = int(device.files.config["vocab_size"])
        self._context = described.limits.context_tokens

    def close(self) -> None:
        self._runner.run(self._link.close())

    def ask(
        self, prompt: Sequence[int], settings: AnswerSettings, watch: Callable[[int], object] = lambda count: None
    ) -> TimedAnswer:
        return self._runner.run(self._ask(prompt, settings, watch))

    async def _ask(
        self, prompt: Sequence[int], settings: AnswerSettings, watch: Callable[[int], object]
    ) -> TimedAnswer:
        talk = Talk(self._link, self._device, self._vocab_size, self._codec)
        tokens: list[int] = []
        arrivals: list[float] = []
        began = time.perf_counter()
        turn, most = prompt, settings.max_tokens
        self.attempts = 0
        try:
            while True:
                self.attempts += 1
                try:
                    async for new in talk.ask(turn, settings):
                        tokens += new
                        arrivals += [time.perf_counter() - began] * len(new)
                        watch(len(tokens))
                    break
                except UnavailableError:
                    if time.perf_counter() - began > self._persist_s:
                        raise
                if 0 < most <= len(tokens):
                    break  # what broke off was the end of a whole answer
                if talk.conversation.tokens:
                    turn = ()  # the conversation holds the question and what was committed
                settings = dataclasses.replace(settings, max_tokens=max(0, most - len(tokens)))
                await asyncio.sleep(RETRY_S)
        finally:
            await talk.close()
        self.figures = talk.figures
        if not tokens:
            raise DataError("The server gave an empty answer.", hint="Ask another question.")
        return TimedAnswer(tuple(tokens), tuple(arrivals))


def client_settings(**fields: Any) -> ClientSettings:
    """The client program's settings with these fields, whatever this machine's environment says."""
    return load_settings(ClientSettings, SECTION, fields, environment={})


async def _connect(address: str, silence_s: float | None = None) -> tuple[Link, pb.DescribeResponse]:
    settings = client_settings()
    link = Link(address, settings.connect_seconds, silence_s or settings.silence_seconds)
    return link, await link.describe()


def load_split_device(runner: asyncio.Runner, settings: ClientSettings) -> Device:
    """What the client program would load with these settings; its server is asked what it serves.

    Raises:
        MoaError: as the program would report it.
    """

    async def describe() -> pb.DescribeResponse:
        link, described = await _connect(settings.server)
        await link.close()
        return described

    return load_device(settings, runner.run(describe()), SilentProgress())
