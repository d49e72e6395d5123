"""The client's state machine: repeated, overlapping and wrong verdicts; what becomes of the draft in flight."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.events import Provenance
from moa_client.drafting.online import DraftExtended, OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.memory import MemoryPlan
from moa_server.session.verification import PendingDraft
from moa_shared.drafting.growing import Growth
from moa_shared.protocol.finish_rule import AnswerSettings, Finish
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling, TokenChances
from moa_shared.tree import DraftTree

VOCAB = 50
PROMPT = [1, 2, 3]
ON = Finish.UNFINISHED


def asked() -> Conversation:
    conversation = Conversation(VOCAB)
    conversation.ask(PROMPT, AnswerSettings())
    return conversation


def hash_at(tokens: list[int], base: int) -> int:
    return PrefixHashes(tokens).short_at(base)


@given(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=15), st.data())
def test_verdicts_may_repeat_and_overlap(answer: list[int], data: st.DataObject) -> None:
    """Whatever pieces arrive, as long as none leaves a gap, every token is committed once."""
    conversation = asked()
    whole = [*PROMPT, *answer]
    committed: list[int] = []
    chances = [TokenChances(-float(position)) for position in range(len(whole))]
    told: list[TokenChances] = []
    while len(conversation.tokens) < len(whole):
        base = len(conversation.tokens) - data.draw(st.integers(0, len(conversation.tokens) - len(PROMPT)))
        stop = len(whole) - data.draw(st.integers(0, len(whole) - len(conversation.tokens) - 1))
        progress = conversation.commit_verdict(
            Verdict(conversation.ask_id, base, hash_at(whole, base), whole[base:stop], ON, chances=chances[base:stop])
        )
        committed += progress.tokens
        told += progress.chances
        assert conversation.tokens == whole[: len(conversation.tokens)]
    assert committed == answer == list(conversation.answer)
    assert told == chances[len(PROMPT) :]


def test_verdicts_of_another_question_change_nothing() -> None:
    """The same question asked again, with another seed: what the first Ask still brings fits by base and hash."""
    conversation = Conversation(VOCAB)
    first = conversation.ask(PROMPT, AnswerSettings(Sampling(0.7, seed=1)))
    conversation.give_up()
    second = conversation.ask(PROMPT, AnswerSettings(Sampling(0.7, seed=2)))
    assert (first.id, second.id, conversation.ask_from().id) == (1, 2, 2)
    conversation.in_flight.propose(DraftTree.chain([4]))
    late = conversation.commit_verdict(Verdict(first.id, 3, hash_at(PROMPT, 3), [7], Finish.END_OF_TEXT))
    assert (late.tokens, late.kept_draft, late.finish) == ((), True, ON)
    assert conversation.phase is Phase.ANSWERING
    assert conversation.commit_verdict(Verdict(second.id, 3, hash_at(PROMPT, 3), [8], ON)).tokens == (8,)
    assert conversation.ask_from() == replace(second, tokens=(*PROMPT, 8))
    conversation.rewind(0)
    assert conversation.ask(PROMPT, AnswerSettings()).id == 3


def test_what_a_verdict_confirms_stays_and_what_it_contradicts_goes() -> None:
    conversation = asked()
    tree = DraftTree((4, 5, 6, 7), (-1, 0, 0, 2))
    message = conversation.in_flight.propose(tree)
    assert (message.base, message.first_node, message.parents) == (3, 0, (-1, 0, 0, 2))
    progress = conversation.commit_verdict(Verdict(conversation.ask_id, 3, hash_at(PROMPT, 3), [4, 6], ON, accepted=2))
    assert progress.kept_draft
    assert conversation.in_flight.tree == DraftTree((7,), (-1,))
    assert conversation.provenance[-2:] == [Provenance.DRAFT, Provenance.DRAFT]
    epoch = conversation.in_flight.epoch
    progress = conversation.commit_verdict(Verdict(conversation.ask_id, 5, hash_at([*PROMPT, 4, 6], 5), [9], ON))
    assert not progress.kept_draft
    assert conversation.in_flight.epoch == epoch + 1
    assert conversation.provenance[-1] is Provenance.TARGET
    assert not conversation.in_flight.tree


def test_each_token_has_its_writer() -> None:
    conversation = asked()
    conversation.in_flight.propose(DraftTree((4, 9), (-1, -1)))
    conversation.in_flight.extend_draft([5, 6], [0, 2], copied=[0, 1])
    tokens = [4, 5, 6, 7, 8]
    step = Verdict(conversation.ask_id, 3, hash_at(PROMPT, 3), tokens, ON, accepted=4, server_accepted=2)
    copy, server, target = Provenance.COPY, Provenance.SERVER, Provenance.TARGET
    # 6 came too late to be verified as the device's: the server drafted it, too.
    assert conversation.commit_verdict(step).writers == (Provenance.DRAFT, copy, server, server, target)
    text = [*PROMPT, *tokens]
    conversation.in_flight.extend_draft([9])
    late = Verdict(conversation.ask_id, 7, hash_at(text, 7), [8, 9, 10, 11], ON, accepted=3, server_accepted=1)
    assert conversation.commit_verdict(late).writers == (Provenance.DRAFT, server, target)  # 8 was known
    assert "".join(each.letter for each in conversation.provenance[3:]) == "DCSSTDST"


def test_replacing_a_draft_begins_an_epoch() -> None:
    conversation = asked()
    conversation.in_flight.propose(DraftTree.chain([4]))
    assert conversation.in_flight.propose(DraftTree.chain([5])).epoch == 1
    assert conversation.in_flight.propose(DraftTree((), ())).epoch == 2
    assert conversation.in_flight.propose(DraftTree.chain([5])).epoch == 2


@pytest.mark.parametrize("sent", [[7, 8], [7, 8, 9]])
@pytest.mark.parametrize("finish", [ON, Finish.MAX_TOKENS])
def test_an_answer_ends_at_its_own_limit_whatever_the_server_thinks(sent: list[int], finish: Finish) -> None:
    conversation = Conversation(VOCAB)
    conversation.ask(PROMPT, AnswerSettings(max_tokens=2))
    progress = conversation.commit_verdict(Verdict(conversation.ask_id, 3, hash_at(PROMPT, 3), sent, finish))
    assert (progress.tokens, progress.finish) == ((7, 8), Finish.MAX_TOKENS)
    assert conversation.tokens == [*PROMPT, 7, 8]
    assert conversation.phase is Phase.IDLE


def test_a_draft_that_is_confirmed_all_the_time_costs_what_is_in_flight() -> None:
    """70,000 tokens, each drafted, none contradicted: more than the 65,536 nodes that a server holds of one draft."""
    conversation = asked()
    memory = MemoryPlan(None, {}, Codec.INT4)
    eager: Any = SimpleNamespace(may_grow=lambda *_: True, may_send=lambda *_, **__: True)  # one node a frame
    drafting = OnlineDrafting(DraftingSettings(), conversation, None, memory, rule=eager)
    pending = PendingDraft()
    for position in range(3, 70_003):
        for _ in range(2 if position == 3 else 1):
            step = drafting.next_step(0.0)
            assert step is not None
            growth = Growth.chain(step.draft, [(position + len(step.draft)) % VOCAB])
            drafting.on_extended(0.0, DraftExtended(step, growth, None))
            frame = drafting.take_frame(flush=True)
            assert frame is not None
            assert pending.add_frame(conversation.tokens, conversation.hashes, frame)
        hashed = conversation.hashes.short_at(position)
        drafting.follow_verdict(0.0, Verdict(conversation.ask_id, position, hashed, [position % VOCAB], ON))
        pending.on_committed(conversation.tokens)
        assert len(pending.usable(conversation.tokens)) == 1
        assert len(conversation.in_flight._whole) <= 4
        assert len(pending._tree) <= 4
    assert pending.take_stale() == 0
    assert conversation.in_flight.epoch == 0


@given(st.data())
def test_verdicts_of_many_answers_may_be_replayed_in_any_order(data: st.DataObject) -> None:
    """Every verdict that was ever taken in may come again at any time; nothing changes, and no answer ends by it."""
    conversation = Conversation(VOCAB)
    taken_in: list[tuple[int, int, list[int], Finish]] = []
    expected: list[int] = []
    for _ in range(data.draw(st.integers(1, 3))):
        turn = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3))
        conversation.ask(turn, AnswerSettings())
        expected += turn
        pieces = data.draw(st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=3), max_size=4))
        for tokens, finish in [*((piece, ON) for piece in pieces), ([], Finish.CANCELLED)]:
            if data.draw(st.booleans()):
                conversation.in_flight.propose(DraftTree.chain(data.draw(st.lists(st.integers(0, 3), max_size=3))))
            fresh = (len(expected), hash_at(expected, len(expected)), list(tokens), finish)
            for base, prefix_hash, old, ended in data.draw(st.lists(st.sampled_from(taken_in or [fresh]), max_size=3)):
                if (base, prefix_hash, old, ended) != fresh:
                    again = Verdict(conversation.ask_id, base, prefix_hash, old, ended)
                    assert conversation.commit_verdict(again).tokens == ()
                    assert conversation.phase is Phase.ANSWERING
            assert conversation.commit_verdict(Verdict(conversation.ask_id, *fresh)).tokens == tuple(tokens)
            expected += tokens
            taken_in.append(fresh)
            assert conversation.tokens == expected
        assert conversation.phase is Phase.IDLE
    assert len(conversation.provenance) == len(expected) == len(conversation.hashes)
