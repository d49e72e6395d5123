"""Clients that ask one question at a time: plain streaming, the baseline, and the client program's own conversation.

The latter share an event loop (gRPC's asyncio side wants one a process); drafters run on the client's inference thread.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import grpc
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_client.conversation.events import Committed, Corrected, Ended, Event, Provisional
from moa_client.conversation.figures import Figures
from moa_client.device.loading import Device, load_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.engine.engine import ClientEngine
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_client.settings import ClientSettings
from moa_shared.errors import DataError
from moa_shared.programs.progress import Progress
from moa_shared.protocol.handshake_checks import error_from_rpc
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.protocol.protobuf_messages import settings_to_proto

ANSWER_TIMEOUT_S = 300.0  # of a whole answer: the longest measured ones take half a minute
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    tokens: tuple[int, ...]
    arrivals_s: tuple[float, ...]  # of each token, seconds from the question; tokens of one verdict arrive together

    @property
    def first_ms(self) -> float:
        return self.arrivals_s[0] * 1e3


def common_tokens(tokens: Sequence[int], reference: Sequence[int]) -> int:
    pairs = zip(tokens, reference, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


class PlainClient:
    """Calls `Generate` at "host:port": what a user without any drafter would see."""

    def __init__(self, address: str) -> None:
        self.up_bytes = self.down_bytes = 0  # of the newest answer's messages
        self._channel = grpc.insecure_channel(address, OWN_CONNECTION)
        self._stub = moa_pb2_grpc.MoaStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def ask(self, prompt: Sequence[int], settings: AnswerSettings, *, server_drafts: bool = False) -> TimedAnswer:
        sampling = settings_to_proto(settings)
        request = pb.GenerateRequest(tokens=prompt, sampling=sampling, server_drafts=server_drafts)
        self.up_bytes, self.down_bytes = request.ByteSize(), 0
        tokens: list[int] = []
        arrivals: list[float] = []
        began = time.perf_counter()
        try:
            for response in self._stub.Generate(request, timeout=ANSWER_TIMEOUT_S):
                self.down_bytes += response.ByteSize()
                tokens.extend(response.tokens)
                arrivals.extend([time.perf_counter() - began] * len(response.tokens))
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error
        return _timed(tokens, arrivals)


def _timed(tokens: Sequence[int], arrivals: Sequence[float]) -> TimedAnswer:
    if not tokens:
        raise DataError("The server gave an empty answer.", hint="Ask another question.")
    return TimedAnswer(tuple(tokens), tuple(arrivals))


@dataclass(frozen=True, slots=True)
class Moment:
    at_s: float  # since the question
    length: int  # tokens on the screen then
    committed: int  # of them, how many the target has decided
    is_new: bool  # whether there is more text than before


class AnswerScreen:
    """The text of one answer as its reader sees it, rebuilt from events: was text lost or doubled, and when shown?

    An event that does not fit what is on the screen is remembered as a contradiction.
    """

    def __init__(self) -> None:
        self.committed: list[int] = []
        self.provisional: list[int] = []
        self.moments: list[Moment] = []
        self.contradictions = 0
        self.ended_alone = False

    def on_event(self, event: Event, at_s: float) -> None:
        before = len(self.committed) + len(self.provisional)
        if isinstance(event, Committed):
            confirmed = event.tokens[: event.confirmed]
            self.contradictions += self.provisional[: event.confirmed] != list(confirmed)
            del self.provisional[: event.confirmed]
            self.contradictions += len(event.tokens) > event.confirmed and bool(self.provisional)
            self.committed += event.tokens
        elif isinstance(event, Provisional):
            self.provisional += event.tokens
        elif isinstance(event, Corrected):
            self.contradictions += event.dropped != len(self.provisional)
            self.provisional.clear()
        else:
            if isinstance(event, Ended):
                self.ended_alone = event.provisional
            return
        length = len(self.committed) + len(self.provisional)
        self.moments.append(Moment(at_s, length, len(self.committed), length > before))

    @property
    def decided_s(self) -> list[float]:
        """When the target had decided more of the text: the times of verdicts."""
        before = [0, *(moment.committed for moment in self.moments)]
        return [each.at_s for count, each in zip(before, self.moments, strict=False) if each.committed > count]

    def fits(self, answer: Sequence[int]) -> bool:
        """Whether the screen shows this final answer: all of it, or its committed part if that is where it ended."""
        if self.contradictions:
            return False
        if self.ended_alone:
            return list(answer[: len(self.committed)]) == self.committed
        return list(answer) == self.committed and not self.provisional


class SplitClient:
    """Asks questions through split inference, each in a conversation of its own.

    Args:
        device: what this end holds; its drafter is used by one client at a time.
        mode: how to draft, and what becomes of standalone text.
        silence_s: how long the client waits for a server that it cannot do without; None: as the program does.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        address: str,
        device: Device,
        *,
        mode: DraftingSettings | None = None,
        silence_s: float | None = None,
    ) -> None:
        self._runner = runner
        self._device = device
        self._mode = mode or DraftingSettings()
        self.figures = Figures()
        self.screen = AnswerScreen()  # of the newest answer
        self.began_s = 0.0  # when its question was asked
        self._fleet, _ = runner.run(_connect(address, silence_s))

    def close(self) -> None:
        self._runner.run(self._fleet.close())

    def ask(self, prompt: Sequence[int], settings: AnswerSettings) -> TimedAnswer:
        return self._runner.run(self._ask(prompt, settings))

    async def _ask(self, prompt: Sequence[int], settings: AnswerSettings) -> TimedAnswer:
        vocab_size = int(self._device.target.files.config["vocab_size"])
        engine = ClientEngine(self._fleet, self._device, vocab_size, Codec.INT4, self._mode)
        screen = self.screen = AnswerScreen()
        arrivals: list[float] = []
        began = self.began_s = time.perf_counter()
        try:
            async for event in engine.ask(prompt, settings):
                now = time.perf_counter() - began
                screen.on_event(event, now)
                if isinstance(event, Committed):
                    arrivals += [now] * len(event.tokens)
            async for _ in engine.attend(lambda: not engine.answers.unsettled):  # it may have ended without the server
                pass
            tokens = tuple(engine.conversation.answer)
        finally:
            await engine.close()
        self.figures = engine.figures
        settled = time.perf_counter() - began
        if len(tokens) > len(arrivals):
            arrivals += [settled] * (len(tokens) - len(arrivals))
            screen.moments.append(Moment(settled, len(tokens), len(tokens), is_new=True))
        return _timed(tokens, arrivals)


async def _connect(address: str, silence_s: float | None = None) -> tuple[Fleet, pb.DescribeResponse]:
    settings = ClientSettings()
    fleet = Fleet([Server(address, settings.connect_seconds, silence_s or settings.silence_seconds)])
    return fleet, await fleet.describe()


def load_split_device(runner: asyncio.Runner, settings: ClientSettings) -> Device:
    """What the client program would load with these settings; its server is asked what it serves."""
    return load_device(settings, runner.run(describe(settings.server)), Progress())


async def describe(address: str) -> pb.DescribeResponse:
    fleet, described = await _connect(address)
    await fleet.close()
    return described
