"""Downloads share their places fairly."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from moa_server.service.fetch import MOST_PLACES, FetchPlaces
from moa_shared.errors import OverloadedError

from tests.support.counted import Clock


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
