"""What a chat says besides the answers: help, the status line, remarks on the link and on earlier answers. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moa_shared.text.plain_text import plain_line, without_controls
from rich.filesize import decimal

from moa_client.conversation.events import (
    DrafterChanged,
    ExecutionChanged,
    LinkChanged,
    LinkState,
    Notice,
    Refused,
    Settled,
)
from moa_client.conversation.transcript import Transcript

if TYPE_CHECKING:
    from moa.v1 import moa_pb2 as pb

    from moa_client.conversation.answer_figures import LinkStatus
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
is available.
Ctrl-C stops an answer; a second one does not wait for the server. A line that ends with \\ continues in the next one;
three double quotes begin and end a block; Alt-Enter makes a new line."""
HELD_BACK_WORDS = (
    "(What this device would write next is unlikely to be right. It waits for the server; "
    "--alone always shows such text.)"
)
BACK_WORDS = "(the server is back)"
SHOWN_CHARACTERS = 48  # of a question, enough to recognize it
MARKS = {LinkState.GOOD: "good", LinkState.SLOW: "slow", LinkState.OFFLINE: "OFFLINE", LinkState.BACK: "back"}


def execution_words(execution: pb.Execution) -> str:
    """How exact the server's text is, in words."""
    if execution.exact:
        return f"execution {execution.level}: the text does not depend on what is verified together"
    return f"execution {execution.level}: the text may depend on what is verified together"


def drafter_words(choice: Choice | None) -> str:
    """Which drafter drafts, and why."""
    return f"drafter {choice.name}: {choice.reason}" if choice is not None else "no drafter that reads memory"


def status_line(
    status: LinkStatus,
    unsettled: int = 0,
    reason: str = "",
    typed_ahead: int = 0,
    *,
    shows_guesses: bool = False,
    holds_back: bool = False,
) -> str:
    """One line, without line breaks.

    Args:
        unsettled: answers that ended without the server; it verifies them as soon as it is available.
        reason: why the link is in this state.
        typed_ahead: characters waiting for the next prompt.
        shows_guesses: there is text that no server has decided.
        holds_back: the device has more, which is too unlikely to be shown.
    """
    parts = ["waiting for the server (Ctrl-O: guess on)"] if holds_back else []
    parts.append(f"link {MARKS[status.state]}" + (f" ({reason})" if reason else ""))
    if shows_guesses:
        parts.append("dim text is guessed here, the server will check it")
    if status.rtt_ms is not None:
        parts.append(f"RTT {status.rtt_ms:.0f} ms")
    if status.tokens_per_s:
        parts.append(f"{status.tokens_per_s:.1f} tokens/s")
        parts.append(f"{100 * status.acceptance:.0f} % drafted here")
    if status.up_bytes or status.down_bytes:
        parts.append(f"{decimal(status.up_bytes)} up, {decimal(status.down_bytes)} down")
    if unsettled:
        answers = "1 answer" if unsettled == 1 else f"{unsettled} answers"
        parts.append(f"{answers} unverified" if status.state is LinkState.OFFLINE else f"verifying {answers}")
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
    """The outcome of an answer that ended without the server, in words."""
    question = " ".join(plain_line(earlier.question).split())
    about = f'"{question}"' if len(question) <= SHOWN_CHARACTERS else f'"{question[: SHOWN_CHARACTERS - 3]}..."'
    if isinstance(event, Refused):
        return (
            f"(The server refuses to check the answer to {about}: {event.error} The conversation continues without it.)"
        )
    if not event.changed:
        return f"(The server confirms the answer to {about}.)"
    return f"(The server has corrected the answer to {about}. It reads:)\n{without_controls(earlier.committed.strip())}"


def unverified_words(count: int, *, is_printed: bool) -> str:
    """That an answer ended with `count` tokens that no server has verified."""
    if is_printed:
        return f"(The last {count} tokens were written by the small model on this device; no server has checked them.)"
    return (
        f"({count} more tokens were written by the small model on this device. They are not printed, because no server "
        "has checked them; --alone always prints such text.)"
    )
