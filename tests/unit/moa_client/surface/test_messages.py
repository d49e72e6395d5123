"""What a surface may ask of an answer."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation import events
from moa_client.conversation.answer_figures import Figures, LinkStatus
from moa_client.conversation.answer_options import AnswerOptions
from moa_client.conversation.answer_text import Update
from moa_client.surface.messages import fields_of, made_of, object_of, options_of, update_of
from moa_client.tools.tool import AnsweredCall
from moa_shared.errors import CATALOGUE, ConfigError, InternalError, error_from_code
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances, WantedChances

from tests.support.tool_calls import NOW, WEATHER, call


def test_a_surface_may_ask_for_chances() -> None:
    assert options_of({"chances": {"likeliest": 3, "processed": True}}).chances == WantedChances(3, processed=True)
    assert options_of({"chances": {}}).chances == WantedChances()
    assert options_of({}).chances is None


@pytest.mark.parametrize(
    ("chances", "message"),
    [
        (3, "The option chances cannot be 3"),
        ({"likeliest": 21}, "21 likeliest tokens were asked for, expected 0 to 20"),
        ({"likeliest": True}, "expected likeliest"),
        ({"processed": 1}, "expected likeliest"),
        ({"top": 1}, "expected likeliest"),
    ],
)
def test_chances_that_cannot_be_told_are_refused(chances: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of({"chances": chances})


COUNT = st.integers(0, 2**40)
TEXT = st.text(max_size=8)
NAME = st.text(min_size=1, max_size=8)
TOKENS = st.lists(st.integers(0, 2**20), max_size=5).map(tuple)
FINISH = st.sampled_from(Finish)


def decimals(digits: int) -> st.SearchStrategy[float]:
    """Numbers with as many decimals as are sent."""
    return st.floats(0, 1e6).map(lambda number: round(number, digits))


ERRORS = st.builds(error_from_code, st.sampled_from(sorted(CATALOGUE)), TEXT, TEXT)
STATUSES = st.builds(
    LinkStatus,
    st.sampled_from(events.LinkState),
    st.none() | decimals(2),
    decimals(3),
    decimals(4),
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    st.booleans(),
    decimals(4),
    decimals(3),
)
FIGURES = st.builds(
    Figures,
    **dict.fromkeys(
        (
            "tokens",
            "verdicts",
            "accepted",
            "drafted",
            "server_drafted",
            "server_accepted",
            "provisional",
            "undecided",
            "kept",
            "up_bytes",
            "down_bytes",
            "memory_bytes",
        ),
        COUNT,
    ),
    **dict.fromkeys(("seconds", "first_token_seconds", "cpu_seconds"), decimals(4)),
)
NUMBER = st.integers(1, 9)
CHANCES = st.lists(st.floats(0, 1).map(lambda p: round(p, 3)), max_size=5).map(tuple)
LOGARITHM = st.floats(-100, 0).map(lambda each: round(each, 4))
LIKELIEST = st.dictionaries(st.integers(0, 2**20), LOGARITHM, max_size=3)
TOLD_CHANCES = st.builds(
    lambda chosen, likeliest: TokenChances(chosen, tuple(likeliest), tuple(likeliest.values())), LOGARITHM, LIKELIEST
)


@st.composite
def told_committed(draw: st.DrawFn) -> events.Committed:
    """Tokens with their chances."""
    chances = draw(st.lists(TOLD_CHANCES, min_size=1, max_size=4))
    pieces = [draw(TEXT) for _ in chances]
    lengths = tuple(map(len, pieces))
    return events.Committed(tuple(range(len(pieces))), draw(COUNT), "".join(pieces), tuple(chances), lengths)


WITH_TOOLS = AnswerOptions(tools=(WEATHER, NOW), results=(AnsweredCall(call("now"), "12:00", is_error=True),))
OF_AN_ANSWER = st.one_of(
    st.builds(
        Update,
        st.one_of(
            st.builds(events.Committed, TOKENS, COUNT, TEXT),
            told_committed(),
            st.builds(events.Provisional, TOKENS, CHANCES, TEXT),
            st.builds(events.Corrected, COUNT),
            st.builds(events.Settled, TOKENS, st.sampled_from(events.AnswerOutcome), FINISH, COUNT, COUNT, TEXT),
            st.builds(events.Failed, ERRORS, st.booleans(), TEXT),
            st.builds(events.HeldBack, st.booleans()),
            st.builds(events.Refused, ERRORS),
            st.builds(events.Asked, TEXT),
            st.builds(events.Asked, st.just(""), st.just(WITH_TOOLS)),
            st.builds(events.CallWanted, TEXT, TEXT, TEXT, TEXT, st.booleans()),
            st.builds(events.CallDecided, TEXT, st.sampled_from(events.Permission)),
            st.builds(events.CallAnswered, TEXT, TEXT, st.booleans()),
            st.builds(events.CallsLeft, TEXT),
            st.builds(events.Continued, st.just(AnswerOptions(temperature=0.5, stop=("a",), logit_bias=((3, -1.0),)))),
            st.builds(events.Continued, st.just(AnswerOptions(chances=WantedChances(3, processed=True)))),
        ),
        NUMBER,
    ),
    st.builds(
        lambda event, figures, answer: Update(event, answer, figures=replace(figures, finish=event.finish)),
        st.builds(events.Ended, FINISH, st.booleans(), TEXT, TEXT, st.integers(0, 3)),
        FIGURES,
        NUMBER,
    ),
)
OF_NONE = st.builds(
    Update,
    st.one_of(
        st.builds(
            events.LinkChanged, st.sampled_from(events.LinkState), TEXT, st.integers(0, 600).map(lambda each: each / 10)
        ),
        st.builds(events.ExecutionChanged, TEXT, st.booleans(), TEXT),
        st.builds(events.ServerChanged, st.sampled_from(("drafter", "model")), TEXT),
        st.builds(events.DrafterChanged, NAME, TEXT, NAME),
        st.builds(events.Failed, ERRORS, st.booleans()),
        st.builds(events.NotKept, ERRORS),
        st.builds(events.ToolsChanged, TEXT),
        st.builds(events.Rewound, COUNT),
        st.builds(events.Titled, TEXT),
    ),
)
UPDATES = st.builds(lambda update, status: replace(update, status=status), OF_AN_ANSWER | OF_NONE, st.none() | STATUSES)


NO_ERROR = InternalError("none")


def compared(update: Update) -> tuple[Update, object]:
    """An update and its error, which two processes cannot share, apart."""
    event: events.SurfaceEvent = update.event
    if not isinstance(event, events.Failed | events.NotKept | events.Refused):
        return update, None
    error = event.error
    return replace(update, event=replace(event, error=NO_ERROR)), (type(error), error.message, error.hint)


@given(UPDATES)
def test_an_update_comes_back_as_it_was(update: Update) -> None:
    fields = fields_of(update)
    assert compared(update_of(fields)) == compared(update)
    assert compared(update_of(json.loads(json.dumps(fields)))) == compared(update)


@given(STATUSES)
def test_a_status_comes_back_as_it_was(status: LinkStatus) -> None:
    assert made_of(LinkStatus, json.loads(json.dumps(object_of(status)))) == status


@given(UPDATES)
def test_what_is_no_update_of_a_known_kind_is_not_read_as_another(update: Update) -> None:
    fields = fields_of(update)
    with pytest.raises((KeyError, ValueError, TypeError)):
        update_of({**fields, "event": "unknown"})
    for name in fields:
        try:
            read = update_of({key: value for key, value in fields.items() if key != name})
        except (KeyError, ValueError, TypeError):
            continue
        assert type(read.event) is type(update.event)
