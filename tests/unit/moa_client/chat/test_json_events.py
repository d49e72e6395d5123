"""The lines that docs/client.md describes: names and fields."""

from __future__ import annotations

import json
import re

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.chat.json_events import error_line, event_line, ready_line
from moa_client.conversation.answer_figures import Figures
from moa_client.conversation.events import (
    Committed,
    Corrected,
    DrafterChanged,
    Ended,
    Event,
    HeldBack,
    LinkChanged,
    LinkState,
    Outcome,
    Provisional,
    Refused,
    ServerChanged,
    Settled,
)
from moa_client.device.drafter_choice import Choice
from moa_shared.errors import ContextLengthError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

EVENTS: list[tuple[Event, dict[str, object]]] = [
    (
        Committed((1, 2), 1),
        {"event": "committed", "text": "é\n", "provisional": "p", "tokens": [1, 2], "confirmed": 1},
    ),
    (
        Provisional((3, 4), (0.5, 1 / 3)),
        {"event": "provisional", "provisional": "p", "tokens": [3, 4], "chances": [0.5, 0.333]},
    ),
    (HeldBack(unread=True), {"event": "held_back", "unread": True}),
    (Corrected(4), {"event": "corrected", "provisional": "p", "dropped": 4}),
    (LinkChanged(LinkState.OFFLINE, "why"), {"event": "link", "state": "offline", "reason": "why"}),
    (ServerChanged("model", "why"), {"event": "server", "what": "model", "message": "why"}),
    (DrafterChanged("deep", "why"), {"event": "drafter", "name": "deep", "reason": "why", "alone": "deep"}),
    (
        Settled((5,), Outcome.CORRECTED, Finish.STOP, 24, 15),
        {
            "event": "settled",
            "text": "é\n",
            "tokens": [5],
            "changed": True,
            "outcome": "corrected",
            "written_alone": 24,
            "kept": 15,
            "finish": "stop",
        },
    ),
    (
        Refused(ContextLengthError("Too long.", hint="Shorten it.")),
        {"event": "refused", "code": "context_length", "message": "Too long.", "hint": "Shorten it."},
    ),
]


@pytest.mark.parametrize(("event", "expected"), EVENTS)
def test_an_event_is_one_line(event: Event, expected: dict[str, object]) -> None:
    line = event_line(event, "é\n", "p", Figures())
    assert "\n" not in line
    assert json.loads(line) == expected


def test_the_end_tells_what_it_cost() -> None:
    figures = Figures(tokens=7, verdicts=3, accepted=4, drafted=9, provisional=2, seconds=1.5, up_bytes=10)
    ended = json.loads(event_line(Ended(Finish.MAX_TOKENS, provisional=True), "", "p", figures))
    costs = ended.pop("figures")
    assert ended == {"event": "ended", "text": "", "provisional": "p", "finish": "max_tokens", "verified": False}
    assert (costs["tokens"], costs["steps"], costs["accepted"], costs["drafted"]) == (7, 3, 4, 9)
    assert (costs["written_alone"], costs["seconds"], costs["up_bytes"], costs["down_bytes"]) == (2, 1.5, 10, 0)


def test_the_guide_names_every_line_and_field() -> None:
    from tests.conftest import CHECKOUT

    guide = (CHECKOUT / "docs" / "client.md").read_text("utf-8")
    lines = [event_line(event, "", "", Figures()) for event, _ in EVENTS]
    execution, choice = pb.Execution(level="int8", exact=True), Choice("deep", "why")
    lines += [event_line(Ended(Finish.CANCELLED), "", "", Figures())]
    lines += [ready_line("t", "s", online=True, execution=execution, choice=choice)]
    lines += [error_line(UnavailableError("why"))]
    told = [json.loads(line) for line in lines]
    names = {str(line["event"]) for line in told} | {name for line in told for name in line}
    names |= {name for line in told for name in (line.get("figures") or line.get("execution") or {})} | {
        finish.name.lower() for finish in Finish
    }
    names |= {state.value for state in LinkState} | {outcome.value for outcome in Outcome}
    missing = names - set(re.findall(r"`([a-z_]+)`", guide)) - {"unfinished", "draining"}
    assert not missing


def test_the_first_line_names_who_drafts_and_who_writes_alone() -> None:
    line = ready_line("tiny", "host:1", online=True, execution=None, choice=Choice("online", "why", alone="deep"))
    assert json.loads(line)["drafter"] == {"name": "online", "reason": "why", "alone": "deep"}
