from __future__ import annotations

from typing import cast

import pytest
from moa_client.link.fleet import Fleet
from moa_client.link.server import Server
from moa_shared.errors import UnavailableError


class Asked:
    """A server that answers or not; as much of `Server` as a fleet needs that is only checked."""

    silence_seconds = 1.0

    def __init__(self, address: str, *, is_there: bool) -> None:
        self.address = address
        self._is_there = is_there

    async def ask(self) -> None:
        if not self._is_there:
            raise UnavailableError(f"Nobody at {self.address}.")

    async def describe(self) -> None:
        await self.ask()


@pytest.mark.parametrize(("home", "newest"), [(True, True), (False, True), (True, False)])
async def test_a_fleet_is_there_while_one_that_conversations_can_use_answers(home: bool, newest: bool) -> None:
    users, next_one = Asked("home", is_there=home), Asked("next", is_there=newest)
    fleet = Fleet(cast("list[Server]", [users]))
    fleet.newest = cast("Server", next_one)
    await fleet.check()


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_fleet_without_a_server_that_answers_says_so(is_alone: bool) -> None:
    users = Asked("home", is_there=False)
    fleet = Fleet(cast("list[Server]", [users]))
    if not is_alone:
        fleet.newest = cast("Server", Asked("next", is_there=False))
    with pytest.raises(UnavailableError, match="home"):
        await fleet.check()
