"""The device of one user: drafts what its script says, leaves it where the seed says, and speaks as the client does."""

from __future__ import annotations

from moa_bench.capacity.oracle_device import OracleDevice
from moa_bench.network.oracle import Script
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.messages import Ack, Draft, Verdict

PROMPT = (1, 2, 3)
TEXT = tuple(10 + place % 30 for place in range(60))


def asked(acceptance: float) -> OracleDevice:
    device = OracleDevice(Script((*PROMPT, *TEXT), acceptance, 0, 50), plain_ms=50.0)
    device.conversation.ask(PROMPT, AnswerSettings(max_tokens=len(TEXT)))
    return device


def verdict(device: OracleDevice, count: int, finish: Finish = Finish.UNFINISHED) -> Verdict:
    """The next tokens of the text."""
    conversation = device.conversation
    done = conversation.answer_length
    base = len(conversation.tokens)
    tokens = TEXT[done : done + count]
    return Verdict(1, base, conversation.hashes.short_at(base), tokens, finish, step_ms=50.0)


def test_it_drafts_from_the_first_token_on() -> None:
    device = asked(1.0)
    assert device.take_frame(0.0) is None
    assert not device.is_drafting
    assert device.on_verdict(1.0, verdict(device, 1)) == TEXT[:1]
    device.take_frame(1.0)
    assert device.is_drafting
    device.on_drafted(6.0, 5.0)
    frame = device.take_frame(6.0)
    assert isinstance(frame, Draft)
    assert (frame.base, tuple(frame.tokens)) == (4, TEXT[1:2])


def test_a_step_that_a_verdict_contradicts_changes_nothing() -> None:
    device = asked(0.0)
    device.on_verdict(1.0, verdict(device, 1))
    device.take_frame(1.0)
    device.on_drafted(6.0, 5.0)
    frame = device.take_frame(6.0)
    assert isinstance(frame, Draft)
    assert tuple(frame.tokens) != TEXT[1:2]
    assert device.is_drafting
    device.on_verdict(7.0, verdict(device, 1))
    device.on_drafted(11.0, 5.0)
    assert not device.conversation.draft


def test_it_acknowledges_what_it_holds_and_ends_with_the_answer() -> None:
    device = asked(0.0)
    device.on_verdict(1.0, verdict(device, 1))
    device.take_frame(1.0)
    frames = []
    for now in range(2, 40):
        device.on_verdict(float(now), verdict(device, 1))
        frames.append(device.take_frame(float(now)))
    assert any(isinstance(frame, Ack) and frame.committed >= 16 for frame in frames)
    device.on_verdict(60.0, verdict(device, 21, Finish.MAX_TOKENS))
    assert not device.is_answering
    assert device.take_frame(61.0) is None


def test_credit_is_given_as_the_client_program_gives_it() -> None:
    device = asked(1.0)
    assert [device.on_memory(1000) for _ in range(4)] == [0, 0, 3000, 0]
