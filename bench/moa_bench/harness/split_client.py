"""The client program's own conversation as a measurement uses it: one question, one answer, each in a new conversation.

State: an event loop shared by all clients of a run (gRPC's asyncio side wants one a process), a link, and what the
device holds. The drafter runs on the client's inference thread, as in the program.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from moa.v1 import moa_pb2 as pb
from moa_client.conversation.answer_figures import Figures
from moa_client.conversation.events import Committed
from moa_client.device.loading import Device, load_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.errors import DataError
from moa_shared.programs.progress import SilentProgress
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec

from moa_bench.harness.answers import TimedAnswer
from moa_bench.harness.shown_text import AnswerScreen, Moment

SETTLE_EVERY_S = 0.05  # between looks at whether the server is there again


class SplitClient:
    """Asks questions through split inference.

    Args:
        runner: whose event loop is used.
        address: "host:port".
        device: what this end holds; its drafter is used by one client at a time.
        codec: of the memory.
        mode: how to draft, and what becomes of standalone text.
        silence_s: how long the client waits for a server that it cannot do without; None: as the program does.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        address: str,
        device: Device,
        codec: Codec = Codec.INT4,
        *,
        mode: DraftingSettings | None = None,
        silence_s: float | None = None,
    ) -> None:
        self._runner = runner
        self._device = device
        self._codec = codec
        self._mode = mode or DraftingSettings()
        self.figures = Figures()
        self.screen = AnswerScreen()  # of the newest answer
        self.began_s = 0.0  # when its question was asked
        self._fleet, described = runner.run(_connect(address, silence_s))
        self._vocab_size = int(device.files.config["vocab_size"])
        self._context = described.limits.context_tokens

    def close(self) -> None:
        self._runner.run(self._fleet.close())

    def ask(self, prompt: Sequence[int], settings: AnswerSettings) -> TimedAnswer:
        return self._runner.run(self._ask(prompt, settings))

    async def _ask(self, prompt: Sequence[int], settings: AnswerSettings) -> TimedAnswer:
        engine = ClientEngine(self._fleet, self._device, self._vocab_size, self._codec, self._mode)
        screen = self.screen = AnswerScreen()
        arrivals: list[float] = []
        began = self.began_s = time.perf_counter()
        try:
            async for event in engine.ask(prompt, settings):
                now = time.perf_counter() - began
                screen.on_event(event, now)
                if isinstance(event, Committed):
                    arrivals += [now] * len(event.tokens)
            while engine.unsettled:  # it ended without the server
                async for _ in engine.settle():
                    pass
                await asyncio.sleep(SETTLE_EVERY_S)
            tokens = tuple(engine.conversation.answer)
        finally:
            await engine.close()
        self.figures = engine.figures
        if not tokens:
            raise DataError("The server gave an empty answer.", hint="Ask another question.")
        settled = time.perf_counter() - began
        if len(tokens) > len(arrivals):
            arrivals += [settled] * (len(tokens) - len(arrivals))
            screen.moments.append(Moment(settled, len(tokens), len(tokens), is_new=True))
        return TimedAnswer(tokens, tuple(arrivals))


def client_settings(**fields: Any) -> ClientSettings:
    """The client program's settings with these fields, whatever this machine's environment says."""
    return ClientSettings(**fields)


async def _connect(address: str, silence_s: float | None = None) -> tuple[Fleet, pb.DescribeResponse]:
    settings = client_settings()
    fleet = Fleet([Server(address, settings.connect_seconds, silence_s or settings.silence_seconds)])
    return fleet, await fleet.describe()


def load_split_device(runner: asyncio.Runner, settings: ClientSettings) -> Device:
    """What the client program would load with these settings; its server is asked what it serves."""

    return load_device(settings, runner.run(describe(settings.server)), SilentProgress())


async def describe(address: str) -> pb.DescribeResponse:
    """What the server at this "host:port" says of itself."""
    fleet, described = await _connect(address)
    await fleet.close()
    return described
