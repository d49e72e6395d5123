"""A session without a link: what of a server's frames, its drafter's faults and its forms it takes in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.conversation.conversation import Conversation
from moa_client.conversation.open_answers import AnswerQueue
from moa_client.device.loading import Device, Drafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.drafting.streamed import DrafterFailed
from moa_client.engine.inbox import Inbox
from moa_client.engine.session_exchange import SessionExchange
from moa_client.link.availability import Availability
from moa_client.link.connection import StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.monitor import LinkLosses
from moa_shared.errors import ConfigError, InternalError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling, choice_of

LINK = cast(Fleet, SimpleNamespace(silence_seconds=60.0, losses=LinkLosses(), home=None, shown=None))


@pytest.fixture
def exchange() -> Iterator[SessionExchange]:
    tokenizer = cast(Any, SimpleNamespace(shown=str))
    device = Device(cast(Any, None), tokenizer, pb.Identity(), Drafting(), frozenset({49}), 1000)
    answers = AnswerQueue(Conversation(50), device.end_rule)
    made = SessionExchange(LINK, answers, Availability(60_000.0), device, DraftingSettings(), Codec.INT4, Inbox())
    yield made
    made.drafting.close()


def ask(exchange: SessionExchange, sampling: Sampling, *, holds_forms: bool) -> None:
    exchange.ask(exchange.answers.begin(lambda _: [1, 2, 3], AnswerSettings(sampling, max_tokens=20)))
    opened = pb.Opened(limits=pb.Limits(constraints=holds_forms))
    exchange.on_opened(StreamOpened(1, opened, 10.0, "host:1", "home"))


@pytest.mark.parametrize("why", ["", "rewound", "offline"])
def test_frames_of_a_conversation_that_was_rewound_or_wants_no_server_are_ignored(
    exchange: SessionExchange, why: str
) -> None:
    ask(exchange, Sampling(), holds_forms=False)
    exchange.is_outdated = why == "rewound"
    if why == "offline":
        exchange.availability.go_offline()
    exchange.answers.events.clear()
    exchange.on_server_frame(pb.ServerFrame(verdict=pb.Verdict(ask=1, base=3, tokens=[4])))
    assert bool(exchange.answers.events) is not bool(why)


def test_a_drafter_that_fails_ends_the_answer(exchange: SessionExchange) -> None:
    error = InternalError("The drafter has failed.")
    exchange.on_drafter_failed(DrafterFailed(error))
    assert exchange.failure is error


@pytest.mark.parametrize("is_older", [False, True])
def test_a_server_that_would_ignore_the_form_of_an_answer_is_not_asked(
    exchange: SessionExchange, is_older: bool
) -> None:
    sampling = Sampling(constraint=choice_of(["yes", "no"]))
    if is_older:
        with pytest.raises(ConfigError, match="home cannot hold answers to a form"):
            ask(exchange, sampling, holds_forms=False)
    else:
        ask(exchange, sampling, holds_forms=True)
        assert exchange.failure is None
