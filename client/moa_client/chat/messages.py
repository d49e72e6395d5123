"""What a chat says besides the answers: help, the status line, remarks on the link and on earlier answers. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from moa_shared.text.plain_text import plain_line, without_controls
from rich.filesize import decimal

from moa_client.conversation.answer_figures import alone_words
from moa_client.conversation.events import (
    DrafterChanged,
    Earlier,
    ExecutionChanged,
    LinkChanged,
    LinkState,
    Notice,
    Outcome,
    Refused,
    Settled,
)

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb

    from moa_client.conversation.answer_figures import LinkStatus
    from moa_client.conversation.transcript import Transcript
    from moa_client.device.drafter_choice import Choice

HELP = """\
/help               this list
/reset              start a new conversation
/set                show what can be set
/set NAME VALUE     set it for the next answers (temperature, top_k, top_p, seed, max_tokens, stop, system);
                    VALUE may be: default
/status             the state of the link
/offline, /online   continue without the server, and with it again
/alone              have the small model on this device write on while the server is lost, right or not
/stats              figures of the last answer
/bye                leave (also /quit, /exit, Ctrl-D)
//QUESTION          a question that begins with one /
Dim text was written by the small model on this device. The server checks it, and corrects it if it must, as soon as it
is available; what it has corrected is underlined for a moment.
Ctrl-C stops an answer; a second one does not wait for the server. Where an answer waits for the server, Ctrl-O has this
device write on, right or not. A line that ends with \\ continues in the next one; three double quotes begin and end a
block; Alt-Enter makes a new line."""
HELD_BACK_WORDS = (
    "(What this device would write next is unlikely to be right. It waits for the server; "
    "--alone always shows such text.)"
)
BACK_WORDS = "(the server is back)"
UNREAD_WORDS = "(No server has read this question: it is answered when one is back.)"
LEFT_WORDS = "(The answer goes on when the server is back. You can ask the next question meanwhile.)"
SENTENCE_END = re.compile(r"[.!?:](?:[\"')\]*]*)\s+|[\u3002\uff01\uff1f]|\n+")
SHOWN_CHARACTERS = 48  # of a question, enough to recognize it
MARKS = {LinkState.GOOD: "good", LinkState.SLOW: "slow", LinkState.OFFLINE: "OFFLINE", LinkState.BACK: "back"}


def execution_words(execution: pb.Execution) -> str:
    """How exact the server's text is, in words."""
    if execution.exact:
        return f"execution {execution.level}: the text does not depend on what is verified together"
    return f"execution {execution.level}: the text may depend on what is verified together"


def drafter_words(choice: Choice | None) -> str:
    """Which drafter drafts, and why."""
    if choice is None:
        return "no drafter that reads memory"
    alone = f"\n{choice.alone} writes while no server answers" if choice.alone else ""
    return f"drafter {choice.name}: {choice.reason}{alone}"


@dataclass(frozen=True, slots=True)
class Unchecked:
    """What no server has decided yet.

    Args:
        words: of text; `answers`: that ended without the server.
    """

    words: int = 0
    answers: int = 0


def unchecked(texts: Sequence[str], answers: int) -> Unchecked:
    """What no server has decided: provisional texts, and so many answers that ended without it."""
    return Unchecked(sum(len(text.split()) for text in texts), answers)


def status_line(
    status: LinkStatus,
    unchecked: Unchecked = Unchecked(),
    reason: str = "",
    typed_ahead: int = 0,
    *,
    holds_back: bool = False,
    has_keys: bool = True,
) -> str:
    """One line, without line breaks; what matters most is first.

    Args:
        reason: why the link is in this state.
        typed_ahead: characters waiting for the next prompt.
        holds_back: the device has more, which is too unlikely to be shown.
        has_keys: the user can type.
    """
    parts = []
    if holds_back:
        parts.append("waiting for the server" + (" (Ctrl-O: guess on)" if has_keys else ""))
    parts.append(f"link {MARKS[status.state]}" + (f" ({reason})" if reason else ""))
    if activity := _activity(unchecked, is_served=status.state is not LinkState.OFFLINE):
        parts.append(activity)
    if status.written_alone and not unchecked.words:
        parts.append(alone_words(status.written_alone, status.kept))
    if status.rtt_ms is not None:
        parts.append(f"RTT {status.rtt_ms:.0f} ms")
    if status.tokens_per_s:
        parts.append(f"{status.tokens_per_s:.1f} tokens/s")
        parts.append(f"{100 * status.acceptance:.0f} % drafted here")
    if status.up_bytes or status.down_bytes:
        parts.append(f"{decimal(status.up_bytes)} up, {decimal(status.down_bytes)} down")
    if typed_ahead:
        parts.append(f"{typed_ahead} typed ahead")
    return " | ".join(parts)


def link_words(event: LinkChanged) -> str:
    """A change of the link in words; empty if it need not be reported."""
    if event.state is LinkState.OFFLINE:
        return f"(offline: {event.reason.rstrip('.') or 'the server is not available'})"
    if event.state is LinkState.BACK:
        return BACK_WORDS
    return ""


def notice_words(event: Notice) -> str:
    """What has changed about the server or the drafter, in one sentence."""
    if isinstance(event, DrafterChanged):
        return f"({event.name} drafts from now on)"
    if isinstance(event, ExecutionChanged):
        level = plain_line(event.level)
        return f"(the server computes in {level} now: the text may continue differently from how it began)"
    return f"({event.message})"


def settled_words(event: Settled | Refused, earlier: Transcript) -> str:
    """The outcome of an answer that ended without the server, in one sentence."""
    question = " ".join(plain_line(earlier.question).split())
    about = f'"{question}"' if len(question) <= SHOWN_CHARACTERS else f'"{question[: SHOWN_CHARACTERS - 3]}..."'
    if isinstance(event, Refused):
        return (
            f"(The server refuses to check the answer to {about}: {event.error} The conversation continues without it.)"
        )
    tokens = "token" if event.written == 1 else "tokens"
    share = f"{event.kept} of {event.written} {tokens} written here {'was' if event.kept == 1 else 'were'} right"
    if event.outcome is Outcome.KEPT:
        return f"(The answer to {about} stays as it was written here.)"
    if event.outcome is Outcome.CONFIRMED:
        return f"(The server confirms the answer to {about}.)"
    if not earlier.ended.strip():
        return f"(The server has answered {about}.)"
    verb = "completed" if event.outcome is Outcome.COMPLETED else "corrected"
    return f"(The server has {verb} the answer to {about}{f'; {share}' if event.written else ''}.)"


def settled_remark(event: Earlier | Settled | Refused, earlier: Transcript) -> str:
    """The same where nothing can be changed in its place, with what differs from the text shown; may be empty."""
    if isinstance(event, Earlier):
        return ""
    words = settled_words(event, earlier)
    lead, changed = ("", "") if isinstance(event, Refused) else changed_words(event, earlier.ended, earlier.committed)
    return f"{words} {lead}".rstrip() + f"\n{changed}" if changed else words


def changed_words(event: Settled, shown: str, text: str) -> tuple[str, str]:
    """What of an answer must be said because it is not what is shown: a lead, and the text; empty if nothing.

    Args:
        shown: the answer as it can be read above; `text`: as the server has decided it.
    """
    if text.strip() == shown.strip():
        return "", ""
    lead = "It goes on:" if event.outcome is Outcome.COMPLETED else "From the sentence that changes:"
    return lead if shown.strip() else "", without_controls(changed_part(shown, text))


def changed_part(shown: str, text: str) -> str:
    """The text from the first sentence on that was not shown."""
    same = 0
    while same < min(len(shown), len(text)) and shown[same] == text[same]:
        same += 1
    ends = [match.end() for match in SENTENCE_END.finditer(text) if match.end() < len(text.rstrip())]
    begin = max((end for end in ends if end <= same), default=0)
    return text[begin:].strip()


def first_cut_words(*, styled: bool) -> str:
    """What provisional text is, for a reader who sees some for the first time."""
    which = "Dim text" if styled else "Text after [unverified:]"
    return (
        f"({which} was written by the small model on this device while the server does not answer. "
        "The server will check it, and correct it where it is wrong.)"
    )


def unverified_words(count: int, *, is_printed: bool) -> str:
    """That an answer ended with `count` tokens that no server has verified."""
    if is_printed:
        return f"(The last {count} tokens were written by the small model on this device; no server has checked them.)"
    return (
        f"({count} more tokens were written by the small model on this device. They are not printed, because no server "
        "has checked them; --alone always prints such text.)"
    )


def _activity(unchecked: Unchecked, *, is_served: bool) -> str:
    """What becomes of text that no server has decided, in words."""
    words = "1 word" if unchecked.words == 1 else f"{unchecked.words} words"
    answers = "1 answer" if unchecked.answers == 1 else f"{unchecked.answers} answers"
    if unchecked.words:
        return f"the server checks {words}" if is_served else f"{words} to be checked"
    if unchecked.answers:
        return f"the server finishes {answers}" if is_served else f"{answers} to be finished"
    return ""
