from __future__ import annotations

from collections.abc import Sequence

from moa_client.endpoint.stop_search import StopSearch
from moa_shared.protocol.finish_rule import STOP_WINDOW_TOKENS


def spelled(tokens: Sequence[int]) -> str:
    return "".join(map(chr, tokens))


def test_the_first_stop_string_in_the_text_has_ended_it() -> None:
    search = StopSearch(("bc", "ab", "abc"), spelled)
    search.push(b"xxa")
    assert search.found() is None
    assert search.found(b"b") == "ab"  # of tokens that are not committed
    search.push(b"bc")
    assert search.found() == "ab"


def test_what_came_long_before_the_end_does_not_count() -> None:
    search = StopSearch(("ab", "cd"), spelled)
    search.push(b"ab" + b"x" * STOP_WINDOW_TOKENS + b"cd")
    assert search.found() == "cd"
