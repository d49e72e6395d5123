"""A scripted device: drafts what its script says, leaves it where that is wrong, and speaks as the client does."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from moa_bench.harness.oracle import Script
from moa_bench.simulation.device import ScriptedDevice, ScriptedDrafter
from moa_bench.simulation.events import EventLoop
from moa_client.drafting.settings import DraftingSettings
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ack, Draft, Verdict

PROMPT = (1, 2, 3)
TEXT = tuple(10 + place % 30 for place in range(60))
ROUNDS = DraftingSettings("device", rounds=True, run_ahead=False)


class Bench:
    """A device in virtual time whose server answers when the test says so; a draft step takes 5 ms."""

    def __init__(
        self,
        acceptance: float,
        settings: DraftingSettings | None = None,
        *,
        drafts: bool = True,
    ) -> None:
        self.loop = EventLoop()
        self.sent: list[Draft | Ack] = []
        script = Script((*PROMPT, *TEXT), acceptance, 0, 50)

        def guess(committed: int, drafted: Sequence[int]) -> int:
            position = committed + len(drafted)
            return script.proposal(position, on_text=script.tokens[committed:position] == tuple(drafted))

        self.device = ScriptedDevice(
            50,
            self.sent.append,
            lambda: self.loop.now_ms,
            partial(ScriptedDrafter, guess, 5.0, self.loop.after, 3) if drafts else None,
            settings or DraftingSettings("device"),
        )
        self.device.ask(PROMPT, AnswerSettings(max_tokens=len(TEXT)))

    def decide(self, count: int, finish: Finish = Finish.UNFINISHED) -> tuple[int, ...]:
        """The server commits the next tokens of the text."""
        conversation = self.device.conversation
        base, done = len(conversation.tokens), conversation.answer_length
        hashed = conversation.hashes.short_at(base)
        tokens = TEXT[done : done + count]
        return self.device.on_verdict(Verdict(1, base, hashed, tokens, finish, step_ms=50.0))

    def wait(self, ms: float) -> None:
        until = self.loop.now_ms + ms
        self.loop.at(until, lambda: None)
        self.loop.run(lambda: self.loop.now_ms >= until)


def test_it_drafts_from_the_first_token_on() -> None:
    bench = Bench(1.0)
    bench.wait(20.0)
    assert not bench.sent
    assert bench.decide(1) == TEXT[:1]
    bench.wait(60.0)
    frame = bench.sent[0]
    assert isinstance(frame, Draft)
    assert (frame.base, tuple(frame.tokens)) == (4, TEXT[1 : 1 + len(frame.tokens)])


def test_a_step_that_a_verdict_contradicts_changes_nothing() -> None:
    bench = Bench(0.0)
    bench.decide(1)
    bench.wait(6.0)
    assert tuple(bench.device.conversation.draft.tokens) != TEXT[1:2]
    bench.decide(1)
    assert not bench.device.conversation.draft
    bench.wait(3.0)  # the step that had begun ends
    assert not bench.device.conversation.draft


def test_it_acknowledges_what_it_holds_and_ends_with_the_answer() -> None:
    bench = Bench(0.0, drafts=False)
    for _ in range(40):
        bench.decide(1)
    assert bench.sent == [Ack(3 + 16), Ack(3 + 32)]
    bench.decide(20, Finish.MAX_TOKENS)
    assert not bench.device.is_answering


def test_a_round_is_a_whole_draft_after_each_verdict() -> None:
    bench = Bench(1.0, ROUNDS)
    bench.decide(1)
    bench.wait(14.0)
    assert not bench.sent
    bench.wait(2.0)
    assert [tuple(frame.tokens) for frame in bench.sent if isinstance(frame, Draft)] == [TEXT[1:4]]
