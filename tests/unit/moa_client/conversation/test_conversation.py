"""The client's state machine, by verdicts and drafts; and the text of an answer, whatever was provisional in between."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import AnswerDecoder, AnswerText, TextStream
from moa_client.conversation.conversation import Conversation, Phase
from moa_client.conversation.events import (
    AnswerOutcome,
    Committed,
    Corrected,
    Earlier,
    Ended,
    Provenance,
    Provisional,
    Settled,
)
from moa_client.conversation.options import AnswerOptions
from moa_client.drafting.online import DraftExtended, OnlineDrafting
from moa_client.drafting.settings import DraftingSettings
from moa_client.memory import MemoryPlan
from moa_client.surface.messages import fields_of, update_of
from moa_server.session.verification import PendingDraft
from moa_shared.drafting.growing import Growth
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.protocol.memory_codec import Codec
from moa_shared.protocol.messages import AnswerSettings, Finish, FinishRule, Verdict
from moa_shared.protocol.prefix_hash import PrefixHashes
from moa_shared.sampling.settings import Sampling, TokenChances
from moa_shared.tree import DraftTree

from tests.support.answer_events import Told, decode_bytes, events_of, letters

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
    conversation.in_flight.extend_draft([5, 6], [0, 2])
    tokens = [4, 5, 6, 7, 8]
    step = Verdict(conversation.ask_id, 3, hash_at(PROMPT, 3), tokens, ON, accepted=4, server_accepted=2)
    draft, server, target = Provenance.DRAFT, Provenance.SERVER, Provenance.TARGET
    # 6 came too late to be verified as the device's: the server drafted it, too.
    assert conversation.commit_verdict(step).writers == (draft, draft, server, server, target)
    text = [*PROMPT, *tokens]
    conversation.in_flight.extend_draft([9])
    late = Verdict(conversation.ask_id, 7, hash_at(text, 7), [8, 9, 10, 11], ON, accepted=3, server_accepted=1)
    assert conversation.commit_verdict(late).writers == (draft, server, target)  # 8 was known
    assert "".join(each.letter for each in conversation.provenance[3:]) == "DDSSTDST"


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
    assert (progress.tokens, progress.finish, conversation.tokens) == ((7, 8), Finish.MAX_TOKENS, [*PROMPT, 7, 8])
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
            growth = Growth(((position + len(step.draft)) % VOCAB,), (len(step.draft) - 1,))
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
    assert (pending.take_stale(), conversation.in_flight.epoch) == (0, 0)


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


def cut(text: str, stop: Sequence[str]) -> str:
    places = [at for string in stop if (at := text.find(string)) >= 0]
    return text[: min(places)] if places else text


@given(
    st.text(alphabet="abé€😀", max_size=30),
    st.lists(st.sampled_from(["ab", "ba€", "😀", "aab"]), max_size=3),
    st.data(),
)
def test_pieces_make_the_text_cut_at_the_first_stop_string(text: str, stop: list[str], data: st.DataObject) -> None:
    tokens = list(text.encode())
    stream = TextStream(decode_bytes, stop)
    given_out = ""
    while tokens:
        size = data.draw(st.integers(1, len(tokens)))
        given_out += stream.push(tokens[:size])
        tokens = tokens[size:]
        assert cut(text, stop).startswith(given_out)
        assert "\ufffd" not in given_out
    assert given_out + stream.finish() == cut(text, stop)


@given(st.text(alphabet="abé€😀", min_size=1, max_size=30), st.data())
def test_a_stream_that_had_ended_goes_on_where_it_was(text: str, data: st.DataObject) -> None:
    tokens, stop = list(text.encode()), ["ab€", "😀é"]
    at = data.draw(st.integers(0, len(tokens)))
    ended = TextStream(decode_bytes, stop)
    given_out = ended.push(tokens[:at]) + ended.finish(is_cut=True)
    stream = TextStream(decode_bytes, stop)
    stream.restore(tokens[:at], given_out)
    whole = given_out + stream.push(tokens[at:]) + stream.finish()
    if len(given_out) <= len(cut(text, stop)):
        assert whole == cut(text, stop)
    else:  # the beginning of a stop string, which might have become something else, was given out already
        assert whole == given_out


def test_nothing_is_held_back_without_need() -> None:
    stream = TextStream(decode_bytes, ["END"])
    assert (stream.push(b"hello E"), stream.push(b"x"), stream.push(b"EN")) == ("hello ", "Ex", "")
    assert (stream.push(b"D more"), stream.finish()) == ("", "")


def test_a_stop_string_is_looked_for_in_the_text_that_is_shown(tokenizer: Tokenizer) -> None:
    """A special token between its halves is on nobody's screen, so the answer ends there."""
    special = tokenizer.encode("<|im_start|>")
    assert len(special) == 1
    tokens = [*tokenizer.encode("one STO"), *special, *tokenizer.encode("P two")]
    how = AnswerSettings(stop=("STOP",), ignore_end_of_text=True)
    rule = FinishRule(how, 1, 1000, frozenset(special), tokenizer.shown)
    taken, finish = rule.cut([], tokens)
    stream = TextStream(tokenizer.shown, how.stop)
    assert finish is Finish.STOP
    assert stream.push(taken) + stream.finish() == "one "
    spelled = AnswerSettings(stop=("<|im_start|>",), ignore_end_of_text=True)
    assert FinishRule(spelled, 1, 1000, frozenset(), tokenizer.shown).cut([], tokens)[1] is Finish.UNFINISHED


TOKEN = st.integers(0, 25)


def begun(decode: Callable[[Sequence[int]], str], stop: tuple[str, ...] = ()) -> AnswerDecoder:
    return AnswerDecoder(AnswerText(options=AnswerOptions(stop=stop)), decode)


def test_chances_come_with_the_characters_of_each_token() -> None:
    decoder = begun(letters, stop=("cde",))
    told = [TokenChances(-1.0), TokenChances(-2.0), TokenChances(-3.0)]

    def lengths(*tokens: int) -> tuple[int, ...]:
        taken = decoder.take_event(Committed(tokens, chances=tuple(told[: len(tokens)])))
        assert isinstance(taken, Committed)
        return taken.lengths

    assert (lengths(0, 1, 2), decoder.text.committed) == ((1, 1, 0), "ab")
    assert (lengths(5), decoder.text.committed) == ((2,), "abcf")
    assert decoder.text.runs == ((1, "", 0.3679), (1, "", 0.1353), (2, "", 0.3679))
    assert decoder.take_event(Committed((0,))) == Committed((0,), text="a")


@given(st.lists(st.lists(st.sampled_from(list("aéz€".encode())), min_size=1)), st.lists(TOKEN), st.data())
def test_a_kept_answer_continues_wherever_its_program_ended(
    verdicts: list[list[int]], written: list[int], data: st.DataObject
) -> None:
    events = [Committed(tuple(tokens)) for tokens in verdicts]
    at = data.draw(st.integers(0, len(events)))
    decided_from = data.draw(st.integers(0, at))
    whole, before, after = (begun(decode_bytes, ("zza",)) for _ in range(3))
    for place, event in enumerate(events):
        if place == decided_from:
            whole.take_event(Provisional((0x61,)))
            whole.take_event(Ended(Finish.UNFINISHED, provisional=True))
            whole.take_event(Earlier(Corrected(1)))
        whole.take_event(Earlier(event) if place >= decided_from else event)
        if place < at:
            before.take_event(event)
    if decided_from == len(events):
        whole.take_event(Ended(Finish.UNFINISHED, provisional=True))
    committed = [token for tokens in verdicts[:at] for token in tokens]
    count = sum(len(tokens) for tokens in verdicts[:decided_from])
    after.text.committed, after.text.decided = before.text.committed, len(committed) - count
    after.restore(committed, written)
    assert (after.text.committed, after.text.waiting) == (before.text.committed, tuple(written))
    after.take_event(Earlier(Corrected(len(written))))
    for event in events[at:]:
        after.take_event(Earlier(event))
    rest = tuple(token for tokens in verdicts[decided_from:] for token in tokens)
    for decoder in (whole, after):
        decoder.take_event(Settled((*rest, 0x61), AnswerOutcome.CORRECTED, Finish.MAX_TOKENS))
    assert after.text.committed == whole.text.committed


def whole_text(tokens: Sequence[int], stop: Sequence[str]) -> str:
    """Of tokens that are decoded from the first one on."""
    stream = TextStream(decode_bytes, stop)
    return "".join([stream.push((token,)) for token in tokens])


@given(st.text("añ€😀z", max_size=12), st.sampled_from([(), ("zz",), ("a€", "zzz")]), st.data())
def test_text_is_at_any_time_that_of_all_tokens_however_events_divide_them(
    text: str, stop: tuple[str, ...], data: st.DataObject
) -> None:
    decoder = begun(decode_bytes, stop)
    committed: list[int] = []
    waiting: list[int] = []
    for event in data.draw(events_of(text)):
        decoder.take_event(event)
        match event.event if isinstance(event, Earlier) else event:
            case Committed(tokens, confirmed):
                committed += tokens
                del waiting[:confirmed]
            case Provisional(tokens):
                waiting += tokens
            case Corrected():
                waiting.clear()
            case Ended() | Settled():
                break  # after which the rest of the text is shown, finished or not
        assert decoder.text.committed == whole_text(committed, stop)
        assert "\ufffd" not in decoder.text.committed
        assert decoder.text.committed + decoder.text.provisional == whole_text([*committed, *waiting], stop)
        assert decoder.text.waiting == tuple(waiting)


def test_a_token_is_decoded_when_it_is_shown_and_when_it_is_confirmed_never_again() -> None:
    calls = 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal calls
        calls += len(tokens)
        return letters(tokens)

    def cost(count: int) -> int:
        nonlocal calls
        calls, decoder = 0, begun(counted)
        for _ in range(count):
            decoder.take_event(Provisional((1,)))
        for _ in range(count):
            decoder.take_event(Committed((1,), 1))
        assert decoder.text.committed == "b" * count
        return calls

    for count in (100, 400):
        assert cost(count) <= 6 * count  # each time also as the token before, and before the next one


@given(st.text("añ€😀", max_size=12), st.data())
def test_updates_add_up_to_the_text(text: str, data: st.DataObject) -> None:
    """In another process, to which they come as lines."""
    told, shown = Told(decode_bytes, "why?", 3), AnswerText("why?", 3)
    before = ""
    for event in data.draw(events_of(text)):
        update = told.tell(event)
        shown.apply(update_of(json.loads(json.dumps(fields_of(update)))).event)
        assert shown.committed == told.text.committed
        assert (shown.provisional, shown.waiting) == (told.text.provisional, told.text.waiting)
        assert shown.likely == told.text.likely <= len(shown.provisional)
        assert (sum(run[0] for run in shown.runs), shown.runs) == (len(shown.committed), told.text.runs)
        assert shown.committed.startswith(before)
        before = shown.committed
    assert (shown.committed, shown.ended, shown.finish) == (text, told.text.ended, told.text.finish)


@pytest.mark.parametrize("finish", [Finish.UNFINISHED, Finish.MAX_TOKENS, Finish.CANCELLED])
def test_of_a_character_in_which_an_answer_is_cut_nothing_is_shown(finish: Finish) -> None:
    def cut() -> AnswerDecoder:
        decoder = begun(decode_bytes)
        decoder.take_event(Committed(tuple("né€".encode()[:-1])))
        return decoder

    broken, left, ended = cut(), cut(), cut()
    broken.break_off(Ended(Finish.CANCELLED))
    left.take_event(Ended(finish, provisional=True))
    ended.take_event(Ended(finish))
    assert broken.text.committed == left.text.committed + left.text.provisional == ended.text.committed == "né"
    left.take_event(Settled(tuple("€".encode()[-1:]), AnswerOutcome.CORRECTED, Finish.END_OF_TEXT))
    assert left.text.committed == "né€"
