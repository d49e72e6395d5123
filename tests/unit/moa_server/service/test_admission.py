"""What calls cost and which are let in; when a forward hangs; forms and downloads that share their places fairly."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from moa_server.access.keys import Gate, KeyBook, KeyEntry, hash_of
from moa_server.access.limits import MINUTE, Bucket, Right
from moa_server.engine.inference_thread import RunningJob
from moa_server.service import admission
from moa_server.service.admission import (
    BURST_US,
    CALL_US,
    FRAME_US,
    MOST_LINES,
    SHARE_US,
    TOGETHER_US,
    Admission,
    RefusalLog,
    address_times,
    frame_cost,
    pause_seconds,
)
from moa_server.service.fetch import MOST_PLACES, FetchPlaces
from moa_server.service.host import Lifecycle
from moa_server.service.service import certificate_name
from moa_server.service.services import MOST_OF_ONE, Forms
from moa_server.settings import ServerSettings
from moa_shared.constraints.compiler import ConstraintCompiler
from moa_shared.errors import ForbiddenError, OverloadedError
from moa_shared.sampling.settings import Constraint, choice_of

from tests.support.counted import Clock

KEY = "moa_" + "k" * 40
PEER = "ipv4:10.0.0.1:4000"


def allowance(clock: Clock, times: float = 1.0) -> Bucket:
    return Bucket(clock, times * SHARE_US, times * BURST_US)


def test_an_address_begins_twice_as_many_calls_as_it_may_make() -> None:
    clock = Clock()
    calls, begun = allowance(clock, address_times(30_000)), 0
    while clock.now < 100.0:
        calls.take(CALL_US)
        begun += 1
        clock.now += pause_seconds(calls)
    assert begun == pytest.approx(2 * 500 * (100 + MINUTE * BURST_US / SHARE_US), rel=0.01)
    assert address_times(1) == admission.ADDRESS_TIMES
    any_number = allowance(clock, address_times(0))
    any_number.take(1e12)
    assert pause_seconds(any_number) == 0.0


def test_after_a_pause_several_frames_are_handled_together_and_rest_is_not_saved_up() -> None:
    clock = Clock(1e6)
    frames = allowance(clock)
    frames.take(frame_cost(0, int(2 * BURST_US)))
    assert pause_seconds(frames) == pytest.approx(MINUTE * (BURST_US + FRAME_US + TOGETHER_US) / SHARE_US)
    clock.now += pause_seconds(frames)
    for _ in range(int(TOGETHER_US / FRAME_US)):
        assert pause_seconds(frames) == pytest.approx(0.0)
        frames.take(frame_cost(0, 0))


def test_an_honest_client_is_never_held_back() -> None:
    """Two hundred drafts of eight nodes, fifty credits and twenty beats a second, after an Open of 131,072 tokens."""
    clock = Clock()
    frames = allowance(clock)
    frames.take(CALL_US + frame_cost(3 * 131_072, 0))
    for draft in range(10_000):
        frames.take(frame_cost(80, 8))
        if draft % 4 == 0:
            frames.take(frame_cost(10, 0))
        if draft % 10 == 0:
            frames.take(frame_cost(10, 0, replies=True))
        clock.now += 0.005
        assert pause_seconds(frames) == 0.0


async def test_a_key_is_let_in_by_its_rights() -> None:
    book = KeyBook.of([KeyEntry("laptop", hash_of(KEY), frozenset({Right.GENERATE}))])
    entrance = Admission(ServerSettings(), Gate(fixed=book), Clock())
    sent = [("authorization", f"Bearer {KEY}")]
    assert (await entrance.admit(sent, PEER, "", Right.GENERATE)).key == "laptop"
    assert (await entrance.admit(sent, PEER, "", None)).key == "laptop"
    with pytest.raises(ForbiddenError, match="The key laptop has no right to converse"):
        await entrance.admit(sent, PEER, "", Right.CONVERSE)


def test_a_few_of_a_kind_are_logged_and_the_rest_counted() -> None:
    refusals = RefusalLog()
    assert sum(refusals.is_worth_a_line("rate_limit", "key alice", 0.0) for _ in range(2000)) == MOST_LINES
    assert refusals.is_worth_a_line("rate_limit", "key bob", 20.0)
    assert refusals.is_worth_a_line("mismatch", "key alice", 20.0)
    assert refusals.take_left_out(MINUTE - 1.0) == []
    assert refusals.take_left_out(MINUTE) == [{"code": "rate_limit", "owner": "key alice", "count": 2000 - MOST_LINES}]
    assert refusals.take_left_out(2 * MINUTE) == []
    assert refusals.is_worth_a_line("rate_limit", "key alice", 0.0)


def test_a_flood_from_many_addresses_is_bounded_too() -> None:
    refusals = RefusalLog()
    logged = sum(refusals.is_worth_a_line("authentication", f"ipv4:{each}", 0.0) for each in range(10_000))
    assert logged == admission.MOST_KINDS + MOST_LINES
    assert refusals.take_left_out(MINUTE) == [
        {"code": "authentication", "owner": admission.OTHERS, "count": 10_000 - logged}
    ]


def test_the_name_in_a_certificate() -> None:
    common, other = "x509_common_name", "x509_subject_alternative_name"
    assert certificate_name({}) == certificate_name({"transport_security_type": [b"ssl"]}) == ""
    assert certificate_name({common: [b"alice"], other: [b"a.example"]}) == "alice"
    assert certificate_name({common: [b""], other: [b"a.example", b"b.example"]}) == "a.example"
    assert certificate_name({common: ["Zoë\n".encode()]}) == "Zoë"


HANG_SECONDS = 30.0


@pytest.mark.parametrize(("passed", "worked", "hangs"), [
    ([1.0] * 32, 0.0, True),  # waits for what never comes
    ([1.0] * 32, 1.0, True),  # goes round for ever
    ([1.0] * 41, 0.2, False),  # has a fifth of a processor: other programs have the rest
    ([1.0, 41.0, 1.0], 0.0, False),  # this process was stopped, or the machine slept
    ([1.0] * 29, 0.0, False),
])  # fmt: skip
def test_a_forward_hangs_that_works_never_or_for_ever(passed: Sequence[float], worked: float, hangs: bool) -> None:
    now, spent = 100.0, 7.0
    lifecycle = Lifecycle(HANG_SECONDS, 0.0, lambda: now)
    for seconds in passed:
        now, spent = now + seconds, spent + worked
        lifecycle.watch(RunningJob(100.5, spent))
    assert lifecycle.hangs == hangs
    assert lifecycle.watch(RunningJob(now, spent)) == hangs  # the next one
    assert not lifecycle.hangs
    assert not lifecycle.watch(None)


class Compiler(ConstraintCompiler):
    """Writes down what it compiles, while the test lets it; forms are their own names."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.gate = threading.Event()

    def known(self, constraint: Constraint) -> Any:
        return constraint.choices[0] if constraint.choices[0].startswith("known") else None

    def begin(self, constraint: Constraint) -> Any:
        assert self.gate.wait(60)
        self.order.append(constraint.choices[0])
        return constraint.choices[0]


async def test_callers_take_turns_and_nobody_waits_for_a_form_that_is_kept() -> None:
    compiler = Compiler()
    forms = Forms(compiler)

    def ask(name: str, owner: str) -> asyncio.Task[str]:
        return asyncio.create_task(cast(Any, forms.begin(choice_of([name]), owner)))

    floods = [ask(f"flood {number}", "flood") for number in range(MOST_OF_ONE)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await ask("one too many", "flood")
    others = [ask(f"other {number}", "other") for number in range(2)]
    assert await ask("known", "flood") == "known"
    for each in floods[:2]:  # one's call ends while its form is compiled, and one's while it waits
        each.cancel()
    await asyncio.wait(floods[:2])
    compiler.gate.set()
    assert await asyncio.gather(*others, *floods[2:4]) == ["other 0", "other 1", "flood 2", "flood 3"]
    assert compiler.order[:5] == ["flood 0", "other 0", "flood 2", "other 1", "flood 3"]
    await asyncio.gather(*floods[4:])


class Downloads:
    """Downloads of several owners that take until the test ends, unless they lose their place."""

    def __init__(self) -> None:
        self.clock = Clock(100.0)
        self.moved: list[Callable[[], None]] = []
        self._places = FetchPlaces(self.clock)
        self._ended = asyncio.Event()

    @asynccontextmanager
    async def begun(self, *owners: str) -> AsyncIterator[list[asyncio.Task[str]]]:
        tasks = [asyncio.create_task(self._run(owner)) for owner in owners]
        for _ in range(10):
            await asyncio.sleep(0)
        yield tasks
        self._ended.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, owner: str) -> str:
        try:
            async with self._places.take(owner) as moved:
                self.moved.append(moved)
                await self._ended.wait()
        except OverloadedError as error:
            return error.message
        return "done"


async def test_an_owner_of_many_gives_way_to_another_and_then_to_itself() -> None:
    downloads = Downloads()
    async with downloads.begun(*["greedy"] * MOST_PLACES) as greedy, downloads.begun(*["other"] * (MOST_PLACES // 2)):
        lost = [each for each in greedy if each.done()]
        assert len(lost) == MOST_PLACES // 2
        assert "another one needed this place" in await lost[0]
        async with downloads.begun("greedy", "other") as more:
            assert not any(each.done() for each in more)
    assert [await each for each in greedy].count("done") == MOST_PLACES // 2 - 1


async def test_the_download_that_has_moved_longest_ago_gives_way() -> None:
    downloads = Downloads()
    async with downloads.begun(*(f"owner {number}" for number in range(MOST_PLACES))) as begun:
        downloads.clock.now += 1.0
        for moved in downloads.moved[1:]:
            moved()
        async with downloads.begun("another") as (newcomer,):
            assert [each.done() for each in (*begun[:2], newcomer)] == [True, False, False]


async def test_a_cancelled_download_frees_its_place() -> None:
    downloads = Downloads()
    async with downloads.begun(*["one"] * MOST_PLACES) as begun:
        begun[3].cancel()
        await asyncio.wait(begun[3:4])
        async with downloads.begun("another"):
            assert sum(each.done() for each in begun) == 1
