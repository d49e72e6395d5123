"""Downloads share their places fairly."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from inline_snapshot import snapshot
from moa_server.service.fetch import MOST_PLACES, STILL_SECONDS, FetchPlaces
from moa_shared.errors import OverloadedError

from tests.support.counted import Clock


class Download:
    """A download that takes until it is told to move on or to end."""

    def __init__(self, places: FetchPlaces, owner: str) -> None:
        self.ended = asyncio.Event()
        self.moved: Callable[[], None] | None = None
        self.task = asyncio.create_task(self._run(places, owner))

    async def _run(self, places: FetchPlaces, owner: str) -> str:
        try:
            async with places.take(owner) as self.moved:
                await self.ended.wait()
        except OverloadedError as error:
            return str(error)
        return "done"


async def settle() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def downloads(places: FetchPlaces, *owners: str) -> AsyncIterator[list[Download]]:
    begun = [Download(places, owner) for owner in owners]
    async with AsyncExitStack() as stack:
        for each in begun:
            stack.callback(each.ended.set)
        await settle()
        yield begun
    await asyncio.gather(*(each.task for each in begun))


@pytest.fixture
def clock() -> Clock:
    return Clock(100.0)


async def test_an_owner_of_many_gives_way_to_another(clock: Clock) -> None:
    places = FetchPlaces(clock)
    greedy_ones, others = ["greedy"] * MOST_PLACES, ["other"] * (MOST_PLACES // 2)
    async with downloads(places, *greedy_ones) as greedy, downloads(places, *others):
        lost = [each for each in greedy if each.task.done()]
        assert len(lost) == MOST_PLACES // 2
        assert await lost[0].task == snapshot(
            "Another download needs the place of this one, which stood still or is one of many. Call again to resume."
        )
        async with downloads(places, "greedy") as (more,):
            assert await more.task == snapshot(
                "16 devices are fetching the drafter already. Try again in a few seconds."
            )
    assert sum([await each.task == "done" for each in greedy]) == MOST_PLACES // 2


async def test_the_download_that_stood_still_longest_gives_way(clock: Clock) -> None:
    places = FetchPlaces(clock)
    async with downloads(places, *["one"] * MOST_PLACES) as begun:
        clock.now += STILL_SECONDS
        for each in begun[1:]:
            assert each.moved is not None
            each.moved()
        async with downloads(places, "one") as (newcomer,):
            assert begun[0].task.done()
            assert not newcomer.task.done()
            async with downloads(places, "one") as (late,):
                assert late.task.done()  # all others move
        assert await newcomer.task == "done"


async def test_a_cancelled_download_frees_its_place(clock: Clock) -> None:
    places = FetchPlaces(clock)
    async with downloads(places, *["one"] * (MOST_PLACES - 1)):
        single = Download(places, "one")
        await settle()
        single.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await single.task
        async with downloads(places, "one") as (next_one,):
            assert not next_one.task.done()
