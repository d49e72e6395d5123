"""The short form of events."""

import pytest
from netsim.core.link import Direction
from netsim.errors import UsageError
from netsim.traces import Event, EventKind, parse_timed_event


@pytest.mark.parametrize(
    ("text", "event"),
    [
        ("12:blackhole:3", Event(12.0, EventKind.BLACKHOLE, 3.0)),
        ("1.5:hold:0.4:up", Event(1.5, EventKind.HOLD, 0.4, (Direction.UP,))),
        ("0:blackhole:1:both", Event(0.0, EventKind.BLACKHOLE, 1.0)),
        ("2:reset", Event(2.0, EventKind.RESET)),
        ("3:refuse:2", Event(3.0, EventKind.REFUSE, 2.0)),
        ("4:change:5g", Event(4.0, EventKind.CHANGE, profile="5g")),
        ("4:change:5g:2", Event(4.0, EventKind.CHANGE, 2.0, profile="5g")),
    ],
)
def test_forms(text: str, event: Event) -> None:
    assert parse_timed_event(text) == event


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12", "names no event"),
        ("x:reset", "'x' is not a number of seconds"),
        ("1:earthquake", "'earthquake' is not an event"),
        ("1:blackhole", "not of the form blackhole:SECONDS:DIRECTION"),
        ("1:blackhole:2:sideways", "'sideways' is not a direction"),
        ("1:reset:2", "not of the form reset"),
        ("1:change", "incomplete"),
    ],
)
def test_malformed_events_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_timed_event(text)
    assert message in caught.value.message
    assert caught.value.hint
