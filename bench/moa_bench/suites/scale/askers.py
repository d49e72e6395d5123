"""Users who ask one question after the other, as the capacity suite's do, in virtual time; prompts are read.

Each question is a session of its own, so that server and device learn again how good its drafts are.
"""

from __future__ import annotations

from collections.abc import Sequence

from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ack, Draft, Verdict

from moa_bench.simulation.device import ScriptedDevice
from moa_bench.simulation.events import EventLoop
from moa_bench.simulation.server import Costs, SimulatedServer
from moa_bench.simulation.text import VOCAB_SIZE, ScriptedText, by_chance
from moa_bench.users.figures import UserAnswer, UserStats


class _Asker:
    """One user: its questions in turn, without a link."""

    def __init__(
        self,
        loop: EventLoop,
        server: SimulatedServer,
        number: int,
        lengths: Sequence[int],
        acceptance: float | None,
        draft_ms: float,
        plain_ms: float,
        tokens: int,
    ) -> None:
        self.answers: list[UserAnswer] = []
        self._loop, self._server, self._number, self._lengths = loop, server, number, lengths
        self._acceptance, self._draft_ms, self._tokens = acceptance, draft_ms, tokens
        self._plain_ms = plain_ms
        self._ask()

    def _ask(self) -> None:
        question = len(self.answers)
        prompt = [1 + place % 900 for place in range(self._lengths[question % len(self._lengths)])]
        text = ScriptedText(self._tokens, by_chance(self._acceptance or 0.0, 1000 * self._number + question), prompt)
        answer = UserAnswer(self._number, question, self._loop.now_ms / 1e3)
        self.answers.append(answer)

        def send_up(message: Draft | Ack) -> None:
            if isinstance(message, Draft):
                self._loop.after(0.0, lambda: live.on_draft(message))
            else:
                self._loop.after(0.0, lambda: live.on_ack(message.committed))

        def take_in(verdict: Verdict) -> None:
            answer.on_tokens(self._loop.now_ms / 1e3, device.on_verdict(verdict))
            if not device.is_answering:
                self._ask()

        live = self._server.open(text, lambda verdict: self._loop.after(0.0, lambda: take_in(verdict)))
        device = ScriptedDevice(
            VOCAB_SIZE,
            send_up,
            lambda: self._loop.now_ms,
            text.draft_on if self._acceptance is not None else None,
            self._draft_ms,
            self._loop.after,
            DraftingSettings("device"),
            plain_ms=self._plain_ms,
        )
        live.on_ask(device.ask(prompt, AnswerSettings(max_tokens=self._tokens)), read=False)


def ask_for(
    seconds: float,
    lengths: Sequence[Sequence[int]],
    costs: Costs,
    *,
    tokens: int,
    acceptance: float | None = None,
    draft_ms: float = 5.0,
) -> UserStats:
    """What users met who asked for so long.

    Args:
        lengths: [users][questions] of prompts.
        tokens: of an answer.
        acceptance: of the devices' drafts; None: plain serving.

    Raises:
        DataError: no user has a rate.
    """
    loop = EventLoop()
    server = SimulatedServer(loop, costs, measured=True)
    askers = [
        _Asker(loop, server, number, own, acceptance, draft_ms, costs.plain_ms, tokens)
        for number, own in enumerate(lengths)
    ]
    loop.run(lambda: loop.now_ms >= 1e3 * seconds)
    return UserStats.of([answer for asker in askers for answer in asker.answers], len(lengths), seconds)
