from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from moa_server.engine.live_session import LiveSession
from moa_server.engine.stepper import SessionTensors
from moa_server.engine.turns import Turns
from moa_server.session.session import Session, SessionLimits
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.messages import Ask

NUMBERS = count()
LONG = 1000


def waiting(tokens: int) -> LiveSession:
    session = Session(SessionLimits(10_000, 50), end_of_text=frozenset(), decode=str, run_ahead=True)
    session.on_ask(Ask(1, 0, session.hashes.at(0), [1] * tokens, AnswerSettings(), 0))
    return LiveSession(next(NUMBERS).to_bytes(4, "big"), session, SessionTensors(None, {}))  # type: ignore[arg-type]


def play(turns: Turns, rounds: int) -> list[LiveSession]:
    """Whose turns came, where everybody waits again at once."""
    order = []
    for _ in range(rounds):
        live = turns.next()
        assert live is not None
        order.append(live)
        turns.add(live)
    return order


def make_turns(live_sessions: Sequence[LiveSession]) -> Turns:
    turns = Turns()
    for live in live_sessions:
        turns.add(live)
    return turns


def test_nobody_waits() -> None:
    turns = Turns()
    assert turns.next() is None
    turns.add(waiting(1))
    turns.clear()
    assert turns.next() is None


def test_answers_take_turns() -> None:
    live_sessions = [waiting(1) for _ in range(3)]
    assert play(make_turns(live_sessions), 6) == live_sessions * 2


def test_an_answer_waits_for_one_slice_however_many_prompts_there_are() -> None:
    prompts, answer = [waiting(LONG) for _ in range(15)], waiting(1)
    order = play(make_turns([*prompts, answer]), 60)
    assert order[::2] == [answer] * 30
    assert order[1::2] == prompts * 2


def test_a_prompt_gets_a_slice_between_rounds_of_answers() -> None:
    prompt, answers = waiting(LONG), [waiting(1) for _ in range(15)]
    order = play(make_turns([prompt, *answers]), 48)
    assert order == [*answers, prompt] * 3


def test_an_answer_that_begins_to_wait_during_a_slice_comes_before_the_next() -> None:
    turns = make_turns([waiting(LONG), waiting(LONG)])
    turns.next()
    answer = waiting(1)
    turns.add(answer)
    assert turns.next() is answer
