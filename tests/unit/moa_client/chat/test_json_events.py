"""The lines that docs/client.md describes: names and fields."""

from __future__ import annotations

import json
import re

import pytest
from moa_client.chat.json_events import error_line, event_line, ready_line
from moa_client.chat.terminal import Lines, key_bindings
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.surface.messages import ConversationFacts
from moa_shared.errors import ContextLengthError, UnavailableError
from moa_shared.protocol.finish_rule import Finish
from moa_shared.sampling.settings import TokenChances

EVENTS: list[events.SurfaceEvent] = [
    events.Committed((1,), 0, "é\n", (TokenChances(-0.25, (1, 7), (-0.25, -2.5)),), (2,)),
    events.Provisional((3, 4), (0.5, 1 / 3), "p"),
    events.HeldBack(unread=True),
    events.Corrected(4),
    events.LinkChanged(events.LinkState.WAITING, "why", 12.34),
    events.ServerChanged("model", "why"),
    events.DrafterChanged("deep", "why"),
    events.Settled((5,), events.AnswerOutcome.CORRECTED, Finish.STOP, 24, 15),
    events.Refused(ContextLengthError("Too long.", hint="Shorten it.")),
]


def told(event: events.SurfaceEvent, figures: Figures | None = None) -> Update:
    """With everything that a surface is told, of which a program needs a part."""
    status = LinkStatus(events.LinkState.GOOD, 1.0, 2.0, 0.5, 3, 4)
    return Update(event, 3, status, figures)


def line_of(event: events.SurfaceEvent, figures: Figures | None = None) -> str:
    """Of an answer that is shown as committed and provisional text."""
    return event_line(told(event, figures), AnswerText(committed="é\n", provisional="p", likely=1))


@pytest.mark.parametrize("event", [events.Failed(UnavailableError("why")), events.Rewound(1), events.Titled("t")])
def test_what_a_program_knows_or_learns_from_another_line_has_none(event: events.SurfaceEvent) -> None:
    assert line_of(event) == ""


def test_the_guide_names_every_line_and_field() -> None:
    from tests.conftest import CHECKOUT

    guide = (CHECKOUT / "docs" / "client.md").read_text("utf-8")
    lines = [line_of(event) for event in EVENTS]
    lines += [line_of(events.Ended(Finish.CANCELLED))]
    lines += [
        ready_line(ConversationFacts("", "", "t", "s", online=True, level="int8", drafter="deep", drafter_reason="why"))
    ]
    lines += [error_line(UnavailableError("why"))]
    objects = [json.loads(line) for line in lines]
    names = {str(line["event"]) for line in objects} | {name for line in objects for name in line}
    names |= {name for line in objects for name in (line.get("figures") or line.get("execution") or {})} | {
        finish.name.lower() for finish in Finish
    }
    names |= {state.value for state in events.LinkState} | {outcome.value for outcome in events.AnswerOutcome}
    missing = names - set(re.findall(r"`([a-z_]+)`", guide)) - {"unfinished", "draining"}
    assert not missing


def test_the_first_line_names_who_drafts_and_who_writes_alone() -> None:
    facts = ConversationFacts(
        "", "", "tiny", "host:1", online=True, drafter="online", drafter_reason="why", standalone="deep"
    )
    assert json.loads(ready_line(facts)) == {
        "event": "ready",
        "target": "tiny",
        "server": "host:1",
        "online": True,
        "execution": None,
        "drafter": {"name": "online", "reason": "why", "standalone": "deep"},
    }
    bare = json.loads(ready_line(ConversationFacts("", "", "tiny", "host:1", online=False, level="int8", exact=False)))
    assert (bare["drafter"], bare["execution"]) == (None, {"level": "int8", "exact": False})


def typed(*lines: str) -> list[str | None]:
    reader = Lines()
    return [reader.push(line) for line in lines]


def test_a_backslash_joins_lines() -> None:
    assert typed("one\\", "two\\", "three", "four") == [None, None, "one\ntwo\nthree", "four"]


def test_three_quotes_make_a_block() -> None:
    assert typed('"""', "a", "", "b", '"""', "c") == [None, None, None, None, "a\n\nb", "c"]
    assert typed('"""one line"""') == ["one line"]
    assert typed('"""first', 'last"""') == [None, "first\nlast"]


def test_clear_forgets_what_was_typed() -> None:
    reader = Lines()
    assert reader.push("one\\") is None
    assert reader.unfinished
    reader.clear()
    assert not reader.unfinished
    assert reader.push("two") == "two"


def test_alt_enter_is_bound() -> None:
    assert [[str(key) for key in binding.keys] for binding in key_bindings().bindings] == [
        ["Keys.Escape", "Keys.ControlM"]
    ]
