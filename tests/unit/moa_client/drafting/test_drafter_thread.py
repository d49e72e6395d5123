from __future__ import annotations

import asyncio
from unittest.mock import create_autospec

import pytest
from moa_client.drafting.drafter_thread import DrafterThread
from moa_client.drafting.drafters import LookupDrafter
from moa_client.engine.inbox import Inbox
from moa_shared.protocol.prefix_hash import PrefixHashes

from tests.support.counted import CountedList


@pytest.mark.parametrize("length", [100, 10_000])
async def test_what_was_told_is_not_read_again(length: int) -> None:
    drafter = create_autospec(LookupDrafter, instance=True)
    thread = DrafterThread(drafter, create_autospec(Inbox, instance=True))
    tokens = CountedList([1] * length)
    hashes = PrefixHashes(tokens)
    thread.tell(tokens, hashes)
    thread._told = told = CountedList(thread._told)
    tokens.read = told.read = 0
    for token in (2, 3):
        tokens.append(token)
        hashes.extend([token])
        assert thread.tell(tokens, hashes) >= length
    assert tokens.read + told.read <= 2
    await asyncio.to_thread(thread._executor.close)


async def test_text_that_has_changed_is_told_again() -> None:
    drafter = create_autospec(LookupDrafter, instance=True)
    thread = DrafterThread(drafter, create_autospec(Inbox, instance=True))
    for hashed in (True, False):
        for tokens, held in (([1, 2, 3], 0), ([1, 2, 3, 4], 3), ([1, 2, 5], 2), ([1, 2, 5], 3), ([1], 1), ([9], 0)):
            said = thread.tell(tokens, PrefixHashes(tokens) if hashed else None)
            assert min(said, len(thread._told)) >= held
            assert thread._told == tokens
    await asyncio.to_thread(thread._executor.close)
