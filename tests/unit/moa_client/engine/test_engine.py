"""A session without a link: what of a server's frames, its drafter's faults and its forms it takes in."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from moa.v1 import moa_pb2 as pb
from moa_client.device.loading import Device, Target
from moa_client.engine.engine import ClientEngine
from moa_client.link.connection import StreamOpened
from moa_client.link.fleet import Fleet
from moa_client.link.monitor import LinkLosses
from moa_shared.errors import ConfigError, InternalError
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.protocol.memory_codec import Codec
from moa_shared.sampling.settings import Sampling, choice_of

LINK = cast(Fleet, SimpleNamespace(silence_seconds=60.0, losses=LinkLosses(), home=None, shown=None))


@pytest.fixture
def engine() -> Iterator[ClientEngine]:
    tokenizer = cast(Any, SimpleNamespace(shown=str))
    device = Device(Target(cast(Any, None), tokenizer, pb.Identity(), frozenset({49}), 1000))
    made = ClientEngine(LINK, device, 50, Codec.INT4)
    yield made
    made.own.drafting.close()


def ask(engine: ClientEngine, sampling: Sampling, *, holds_forms: bool) -> None:
    session = engine._session
    session.ask(engine.answers.begin(lambda _: [1, 2, 3], AnswerSettings(sampling, max_tokens=20)))
    opened = pb.Opened(limits=pb.Limits(constraints=holds_forms))
    session.on_opened(StreamOpened(1, opened, 10.0, "host:1", "home"))


@pytest.mark.parametrize("why", ["", "rewound", "offline"])
def test_frames_of_a_conversation_that_was_rewound_or_wants_no_server_are_ignored(
    engine: ClientEngine, why: str
) -> None:
    ask(engine, Sampling(), holds_forms=False)
    engine._session.is_outdated = why == "rewound"
    if why == "offline":
        engine.go_offline()
    engine.answers.events.clear()
    engine._session.on_server_frame(pb.ServerFrame(verdict=pb.Verdict(ask=1, base=3, tokens=[4])))
    assert bool(engine.answers.events) is not bool(why)


async def test_a_drafter_that_fails_ends_the_answer(engine: ClientEngine) -> None:
    engine._inbox.put_nowait(InternalError("The drafter has failed."))
    with pytest.raises(InternalError, match="The drafter has failed"):
        await anext(engine.attend())


@pytest.mark.parametrize("holds_forms", [False, True])
def test_a_server_that_would_ignore_the_form_of_an_answer_is_not_asked(engine: ClientEngine, holds_forms: bool) -> None:
    sampling = Sampling(constraint=choice_of(["yes", "no"]))
    if holds_forms:
        ask(engine, sampling, holds_forms=True)
    else:
        with pytest.raises(ConfigError, match="home cannot hold answers to a form"):
            ask(engine, sampling, holds_forms=False)
