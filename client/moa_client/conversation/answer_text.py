"""What surfaces (chat, page, endpoint) show of an answer, and how tokens become that text. Pure.

Invariants: what was given out of committed text never changes. Committed and provisional text together are those of all
tokens, each decoded after the one before it, however events divide them; a token is decoded when it is shown and again
when it is confirmed, never more often.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import accumulate
from typing import TYPE_CHECKING

from moa_shared.errors import ConflictError
from moa_shared.protocol.messages import Finish

from moa_client.conversation import events
from moa_client.conversation.events import TextRun, fitted, joined, runs_of
from moa_client.conversation.options import OPEN, AnswerOptions

if TYPE_CHECKING:
    from moa_client.conversation.figures import Figures, LinkStatus

INCOMPLETE = "�"  # how a tokenizer shows the first bytes of a character


class TextStream:
    """Turns tokens into pieces of text. `decode`: text of some tokens. `stop`: strings before which the text ends."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        self._prefix = 0  # tokens before it are given out; decoded again from there for the sake of joins
        self._read = 0  # tokens before it are in `_held` or given out
        self._held = ""
        self._ended = False
        self._early = 0  # characters that were given out before it was their time

    def restore(self, tokens: Sequence[int], given: str) -> None:
        """Continues a stream that was given these tokens, in pieces of any size, and has given out this text.

        That may be more than is certain after these tokens: the stream had ended with them.
        """
        text = "".join([self.push([token]) for token in tokens])
        self._early = max(0, len(given) - len(text))
        due = text[len(given) :]
        self._held = due + self._held
        self._ended &= not due  # a stop string ends it again, when what comes before it is given out

    def push(self, tokens: Sequence[int]) -> str:
        """Adds tokens; returns the text that is now certain."""
        self._tokens.extend(tokens)
        before = self._decode(self._tokens[self._prefix : self._read])
        now = self._decode(self._tokens[self._prefix :])
        if len(now) > len(before) and not now.endswith(INCOMPLETE):
            self._held += now[len(before) :]
            self._prefix, self._read = self._read, len(self._tokens)
        return self._release(final=False)

    def finish(self, *, is_cut: bool = False) -> str:
        """Ends the stream; returns the rest of the text, if it is cut without a character that has only begun."""
        before = self._decode(self._tokens[self._prefix : self._read])
        rest = self._decode(self._tokens[self._prefix :])[len(before) :]
        self._held += rest.rstrip(INCOMPLETE) if is_cut else rest
        self._read = self._prefix = len(self._tokens)
        return self._release(final=True)

    def fork(self) -> TextStream:
        """An independent copy, as if it had been given the same tokens."""
        other = copy(self)
        other._tokens = list(self._tokens)
        return other

    def _release(self, *, final: bool) -> str:
        if self._ended:
            return ""
        cuts = [at for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if cuts:
            self._ended = True
            sure = min(cuts)
        else:
            sure = len(self._held) - (0 if final else self._possible_stop())
        text, self._held = self._held[:sure], self._held[sure:]
        new = text[self._early :]
        self._early -= len(text) - len(new)
        return new

    def _possible_stop(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        longest = max((len(stop) for stop in self._stop), default=1) - 1
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stop):
                return length
        return 0


@dataclass(frozen=True, slots=True)
class Update:
    """One event of a conversation, and what is known after it.

    `answer`: the number of the one that it is about, from 1; 0: none. `figures`: of an answer that has ended.
    """

    event: events.SurfaceEvent
    answer: int = 0
    status: LinkStatus | None = None
    figures: Figures | None = None


WIDE = "\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe6f\uff00-\uff60\uffe0-\uffe6"  # each is a word
_WORDS, _LAST_WORD = re.compile(rf"\s*[{WIDE}]|\s*[^\s{WIDE}]+|\s+"), re.compile(rf"[^\s{WIDE}]*\Z")
AGREED = 12  # characters in a row that two texts have in common where they go on alike: about two words
MOST_APART = 400  # characters within which that is looked for
WORTH_KEEPING = 12  # tokens of this device's, a second of reading: nobody wants the three words of a drafter back


def nothing_withdrawn() -> ConflictError:
    said = "The server has replaced no text of this device in the newest answer."
    return ConflictError(said, hint="/keep is for an answer that it has.")


@dataclass(eq=False, slots=True)
class AnswerText:
    """One answer.

    Args:
        number: in its conversation, from 1.
        likely: characters of the provisional text, from the first one on, that are likely to be the target's.
        withdrawn: provisional tokens that a correction has taken back, if they are worth having back.
        ended: all text when it ended without the server.
        tokens: committed ones; `decided`: those of them since it ended without the server.
        seen: characters of committed text that its reader had seen before it was continued.
        is_unsettled: it ended without the server, which has not decided it yet.
        versions: question and text of the answers in whose place it was asked for, oldest first.
    """

    question: str = ""
    number: int = 0
    options: AnswerOptions = OPEN
    finish: Finish = Finish.UNFINISHED
    committed: str = ""
    provisional: str = ""
    likely: int = 0
    withdrawn: int = 0
    ended: str = ""
    tokens: int = 0
    decided: int = 0
    waiting: tuple[int, ...] = ()
    seen: int = 0
    runs: tuple[TextRun, ...] = ()
    is_running: bool = True
    is_unsettled: bool = False
    versions: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if not self.runs:
            self.runs = joined([(len(self.committed), "")])

    @property
    def unseen(self) -> str:
        """The committed text, without what its reader had seen before it was continued."""
        return self.committed[self.seen :]

    @property
    def as_versions(self) -> tuple[tuple[str, str], ...]:
        """What remains of it, and of those before it, where another answer is asked for in its place."""
        text = self.committed + self.provisional
        return (*self.versions, (self.question, text)) if text else self.versions

    @property
    def may_continue(self) -> bool:
        """Whether its end was none of its own: a limit, the user, or an error."""
        own = (Finish.END_OF_TEXT, Finish.STOP, Finish.CONTEXT, Finish.LOOP)
        return bool(self.committed) and not (self.is_running or self.is_unsettled or self.finish in own)

    def apply(self, event: events.SurfaceEvent) -> None:
        match event:
            case events.Continued(options):
                self.options, self.finish, self.is_running = options, Finish.UNFINISHED, True
            case events.Committed(tokens, confirmed, text, runs=runs):
                self._commit(len(tokens), text, runs)
                self.waiting = self.waiting[confirmed:]
                self.provisional = self.provisional[len(text) :] if self.waiting else ""
                self.likely = max(0, self.likely - len(text)) if self.waiting else 0
            case events.Provisional(tokens, _, added, likely):
                self.waiting += tokens
                self._write(added, likely=likely)
            case events.Corrected(dropped):
                if dropped >= WORTH_KEEPING:
                    self.withdrawn = dropped
                self._withdraw()
            case events.Ended(finish, provisional=True, added=added):
                self._write(added, likely=True)
                self.ended, self.decided = self.committed + self.provisional, 0
                self.finish, self.is_running, self.is_unsettled = finish, False, True
            case events.Ended(finish, text=text):
                self._commit(0, text)
                self._end(finish)
            case events.Settled(tokens, finish=finish, text=text):
                self._commit(max(0, len(tokens) - self.decided), text)
                self._end(finish)
            case events.Failed(text=text):
                self._commit(0, text)
                self._withdraw()
                self.is_running = False
            case events.Refused():
                self.is_unsettled = False

    def _commit(self, tokens: int, text: str, runs: tuple[TextRun, ...] = ()) -> None:
        self.tokens += tokens
        self.decided += tokens
        committed, self.committed = self.committed, ""  # no other reference: Python appends without a copy
        committed += text
        self.committed = committed
        if not tokens:
            self.runs = fitted(self.runs, len(self.committed))
        else:
            self.runs = self.runs[:-1] + joined((*self.runs[-1:], *(runs or [(len(text), "")])))

    def _write(self, added: str, *, likely: bool) -> None:
        """Appends provisional text: what follows less likely text is no likelier."""
        if likely and self.likely == len(self.provisional):
            self.likely += len(added)
        self.provisional += added

    def _withdraw(self) -> None:
        self.waiting, self.provisional, self.likely = (), "", 0

    def _end(self, finish: Finish) -> None:
        self._withdraw()
        self.finish, self.is_running, self.is_unsettled = finish, False, False


def apply_update(answers: list[AnswerText], update: Update) -> AnswerText | None:
    """Applies an update to the answers of its conversation, oldest first; the answer that it is about."""
    event = update.event
    text = next((text for text in reversed(answers) if text.number == update.answer), None)
    if isinstance(event, events.Asked | events.Rewound):
        kept = update.answer - 1 if isinstance(event, events.Asked) else event.answers
        answers[:] = [each for each in answers if each.number <= kept]
    if isinstance(event, events.Asked):
        versions = text.as_versions if text is not None else ()
        text = AnswerText(event.question, update.answer, event.options, versions=versions)
        answers.append(text)
    elif text is not None:
        text.apply(event)
    return text


class Corrections:
    """Which stretches of committed text replace what was shown in their place, by the newest correction.

    Text that was never shown replaces nothing, nor does text that is as it was shown.
    """

    def __init__(self) -> None:
        self.stretches: tuple[tuple[int, int], ...] = ()  # from a word's begin to a word's end
        self.length = 0  # of the committed text
        self._word = self._ahead = ""  # at its end, and what was shown after it, even if it was withdrawn since
        self._begin = 0  # of the newest correction
        self._shown = self._text = ""  # there, and in its place; empty: the correction is over

    def update(self, piece: str, provisional: str) -> bool:
        """Takes in what is shown now; whether other stretches are corrected than before.

        `piece`: is appended to the committed text.
        """
        same = common(piece, self._ahead)
        if same < min(len(piece), len(self._ahead)):
            word = last_word(self._word + piece[:same])
            self._begin = self.length + same - len(word)
            self._shown, self._text = word + self._ahead[same:], word + piece[same:]
            self._ahead = ""
        else:
            self._text += piece if self._shown else ""
            self._ahead = self._ahead[same:]
        self.length += len(piece)
        self._word = last_word(self._word + piece)
        if not self._ahead.startswith(provisional):  # else some is withdrawn or held back: what comes may be the same
            self._ahead = provisional
        if not self._shown:
            return False
        before, start = self.stretches, self._begin
        self.stretches = tuple((start + begin, start + end) for begin, end in differing(self._shown, self._text))
        if len(self._text) > len(self._shown) + MOST_APART:
            self._shown = self._text = ""
        return self.stretches != before


def differing(shown: str, text: str) -> list[tuple[int, int]]:
    """The stretches of a text, in whole words, that replace others of a text that was shown in its place."""
    same = common(shown, text)
    if same in (len(shown), len(text)):
        return []
    start = same - len(last_word(text[:same]))
    before, after = _WORDS.findall(shown[start:]), _WORDS.findall(text[start:])  # each with the space before it
    places = list(accumulate(map(len, after), initial=start))
    stretches, at, first = list[tuple[int, int]](), 0, 0  # what neither text has in common begins there
    for block in SequenceMatcher(None, before, after).get_matching_blocks():
        if block.size and places[block.b + block.size] - places[block.b] < AGREED:
            continue
        last = block.b if block.size else min(block.b, first + block.a - at)  # no more than was shown
        replaced = "".join(after[first:last] if block.a > at else ())
        if replaced.strip():
            begin = places[first] + len(replaced) - len(replaced.lstrip())
            stretches.append((begin, begin + len(replaced.strip())))
        at, first = block.a + block.size, block.b + block.size
    return stretches


def common(first: str, second: str) -> int:
    """How many characters two texts have in common where they begin."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((index for index, (one, other) in pairs if one != other), min(len(first), len(second)))


def last_word(text: str) -> str:
    """The word that a text ends with; empty if it ends between two."""
    found = _LAST_WORD.search(text)
    return found[0] if found is not None else ""


ENDED_BY_TEXT = (Finish.END_OF_TEXT, Finish.STOP)  # in the others more would follow


class AnswerDecoder:
    """Decodes the events of one answer. `text`: the answer; what its options name ends its text."""

    def __init__(self, text: AnswerText, decode: Callable[[Sequence[int]], str]) -> None:
        self.text = text
        self._stream = TextStream(decode, text.options.stop)  # of the committed tokens
        self._ahead: TextStream | None = None  # of these and the provisional ones

    def restore(self, committed: Sequence[int], waiting: Sequence[int] = ()) -> None:
        """Continues an answer that had ended, with the committed text that it has.

        `waiting`: its provisional tokens, which a server is still to decide.
        """
        self._stream.restore(committed, self.text.committed)
        self.text.tokens = len(committed)
        self.text.waiting, self.text.provisional = tuple(waiting), ""
        if waiting:
            ahead = self._stream.fork()
            self.text.provisional = _push(ahead, waiting) + ahead.finish(is_cut=True)

    def take_event(self, event: events.AnswerEvent | events.Earlier) -> events.AnswerEvent:
        """Applies an event of this answer to its text; the event with what it adds to that."""
        taken = self._decoded(event.event if isinstance(event, events.Earlier) else event)
        self.text.apply(taken)
        return taken

    def break_off(self, event: events.Ended | events.Failed) -> events.Ended | events.Failed:
        """The answer ends with what is committed of it, and so does its text; the event with the rest of that."""
        broken = replace(event, text=self._stream.finish(is_cut=True))
        self.text.apply(broken)
        return broken

    def _decoded(self, event: events.AnswerEvent) -> events.AnswerEvent:
        match event:
            case events.Committed(tokens, confirmed):
                if confirmed < len(tokens):
                    self._ahead = None
                pieces = _pieces(self._stream, tokens)
                lengths = tuple(map(len, pieces))
                runs = runs_of(lengths, event.writers, event.chances)
                return replace(event, text="".join(pieces), lengths=lengths if event.chances else (), runs=runs)
            case events.Provisional(tokens):
                self._ahead = self._ahead or self._stream.fork()
                return replace(event, added=_push(self._ahead, tokens))
            case events.Corrected():
                self._ahead = None
            case events.Ended(finish, provisional=True):
                ahead, self._ahead = self._ahead or self._stream.fork(), None
                return replace(event, added=ahead.finish(is_cut=finish not in ENDED_BY_TEXT))
            case events.Ended(finish):
                return replace(event, text=self._stream.finish(is_cut=finish not in ENDED_BY_TEXT))
            case events.Settled(tokens, finish=finish):
                rest = _push(self._stream, tokens[self.text.decided :])
                return replace(event, text=rest + self._stream.finish(is_cut=finish not in ENDED_BY_TEXT))
        return event


def _push(stream: TextStream, tokens: Sequence[int]) -> str:
    return "".join(_pieces(stream, tokens))


def _pieces(stream: TextStream, tokens: Sequence[int]) -> list[str]:
    """Adds tokens one by one, so that the text does not depend on how they came; the text that comes with each."""
    return [stream.push((token,)) for token in tokens]
