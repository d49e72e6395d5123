"""When a forward hangs; whose forms are compiled when; downloads that share their places fairly."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from moa_server.engine.inference_thread import RunningJob
from moa_server.service.fetch import MOST_PLACES, FetchPlaces
from moa_server.service.host import Lifecycle
from moa_server.service.services import MOST_OF_ONE, Forms
from moa_shared.constraints.compiler import ConstraintCompiler
from moa_shared.errors import OverloadedError
from moa_shared.sampling.settings import Constraint, choice_of

from tests.support.counted import Clock

HANG_SECONDS = 30.0


@pytest.mark.parametrize(
    ("passed", "worked", "hangs"),
    [
        ([1.0] * 32, 0.0, True),  # waits for what never comes
        ([1.0] * 32, 1.0, True),  # goes round for ever
        ([1.0] * 41, 0.2, False),  # has a fifth of a processor: other programs have the rest
        ([1.0, 41.0, 1.0], 0.0, False),  # this process was stopped, or the machine slept
        ([1.0] * 29, 0.0, False),
    ],
)
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
