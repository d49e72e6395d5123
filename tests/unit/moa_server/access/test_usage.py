"""What the log says that a session has used."""

from __future__ import annotations

from moa_server.access.caller import Caller
from moa_server.engine.live_session import Usage
from moa_shared.protocol.finish_rule import Finish

CALLER = Caller("key 0", "ipv4:10.0.0.1:5", "laptop", is_proven=True)


def test_each_token_is_counted_once() -> None:
    usage = Usage(began=100.0)
    usage.on_ask(1, 10)
    usage.on_written(4, Finish.UNFINISHED)
    usage.on_written(1, Finish.MAX_TOKENS)
    usage.on_ask(2, 10 + 5 + 7)  # the next question, behind the answer
    assert usage.facts(CALLER, 103.0) == {
        "key": "laptop",
        "peer": "ipv4:10.0.0.1:5",
        "questions": 2,
        "tokens_in": 17,
        "tokens_out": 5,
        "finish": "unfinished",
        "seconds": 3.0,
    }


def test_a_conversation_that_was_cut_back_counts_what_is_sent_again() -> None:
    usage = Usage(began=0.0)
    usage.on_ask(1, 10)
    usage.on_written(5, Finish.END_OF_TEXT)
    usage.on_ask(2, 12)  # three tokens of the answer were thrown away, and none is new
    usage.on_ask(3, 20)
    assert (usage.tokens_in, usage.tokens_out) == (18, 5)
