"""A device, its session on a simulated server, and the link between them."""

from dataclasses import dataclass, field
from functools import partial

from moa.v1 import moa_pb2 as pb
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.continued_frames import DraftWriter, VerdictWriter
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ack, Draft, Verdict
from netsim.core.conditions import Conditions, DelaySpec
from netsim.core.link import Direction

from moa_bench.simulation.device import ScriptedDevice, ScriptedDrafter
from moa_bench.simulation.events import EventLoop, OneWay
from moa_bench.simulation.server import SimulatedServer, SimulatedSession
from moa_bench.simulation.text import PROMPT, VOCAB_SIZE, ScriptedText

FRAME_OVERHEAD_BYTES = 14  # headers of an HTTP/2 frame (9) and of gRPC (5)


@dataclass(frozen=True, slots=True)
class SimulatedLink:
    """A link, both directions alike."""

    conditions: Conditions = field(default_factory=Conditions)  # of each direction, as netsim has them
    memory_bytes: int = 0  # that follow each token down

    @classmethod
    def of_delay(cls, mean_ms: float, deviation_ms: float = 0.0) -> "SimulatedLink":
        """A link with only this one-way delay, drawn again for each frame."""
        return cls(Conditions(delay=DelaySpec(mean_ms, deviation_ms)))

    @property
    def rtt_ms(self) -> float:
        """Mean round trip, without the time that bytes take."""
        return 2 * self.conditions.delay.effective().mean_ms


class SimulatedUser:
    """Asks one question, of a text that the target is known to write.

    Args:
        drafting: how the device drafts, each step in `draft_ms`; None: not at all.
        own_acceptance: of the drafter that the server runs for it while that pays; None: it runs none.
        round_length: of synchronous rounds.
    """

    def __init__(
        self,
        loop: EventLoop,
        server: SimulatedServer,
        text: ScriptedText,
        link: SimulatedLink,
        drafting: DraftingSettings | None,
        draft_ms: float,
        *,
        seed: int = 0,
        round_length: int = 1,
        run_ahead: bool = True,
        own_acceptance: float | None = None,
    ) -> None:
        self.arrivals_ms: list[float] = []  # of each token
        self.up = OneWay(loop, link.conditions, seed, Direction.UP)
        self.down = OneWay(loop, link.conditions, seed, Direction.DOWN)
        self._loop = loop
        self._memory_bytes = link.memory_bytes
        self._drafts, self._verdicts = DraftWriter(), VerdictWriter()
        self._live = SimulatedSession(server, text, self._send_down, run_ahead=run_ahead, own_acceptance=own_acceptance)
        drafter = partial(ScriptedDrafter, text.draft_on, draft_ms, loop.after, round_length) if drafting else None
        drafting = drafting or DraftingSettings("off")
        self.device = ScriptedDevice(VOCAB_SIZE, self._send_up, lambda: loop.now_ms, drafter, drafting, link.rtt_ms)

    def ask(self, tokens: int) -> None:
        """For so many tokens."""
        self._live.on_ask(self.device.ask(PROMPT, AnswerSettings(max_tokens=tokens)))

    def _send_up(self, message: Draft | Ack) -> None:
        if isinstance(message, Draft):
            frame = pb.ClientFrame(draft=self._drafts.write(message))
            self.up.send(frame.ByteSize() + FRAME_OVERHEAD_BYTES, lambda: self._live.on_draft(message))
        else:
            frame = pb.ClientFrame(ack=pb.Ack(committed=message.committed))
            self.up.send(frame.ByteSize() + FRAME_OVERHEAD_BYTES, lambda: self._live.on_ack(message.committed))

    def _send_down(self, verdict: Verdict) -> None:
        size = pb.ServerFrame(verdict=self._verdicts.write(verdict)).ByteSize() + FRAME_OVERHEAD_BYTES
        self.down.send(size, lambda: self._take_in(verdict))
        if self._memory_bytes:
            self.down.send(self._memory_bytes * len(verdict.tokens), lambda: None)

    def _take_in(self, verdict: Verdict) -> None:
        self.arrivals_ms += [self._loop.now_ms] * len(self.device.on_verdict(verdict))
