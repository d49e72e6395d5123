"""What a chat says besides the answers: help, the status line, remarks on the link and on earlier answers. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa_shared.protocol.finish_rule import Finish
from moa_shared.text.plain_text import plain_line, without_controls
from rich.filesize import decimal

from moa_client.conversation import events
from moa_client.conversation.figures import down_words, drafted_words, standalone_words

if TYPE_CHECKING:
    from moa_client.conversation.answer_text import AnswerText
    from moa_client.conversation.figures import LinkStatus
    from moa_client.surface.messages import ConversationFacts
    from moa_client.tools.tool import AnsweredCall

HELD_BACK_WORDS = (
    "(What this device would write next is unlikely to be right. It waits for the server; "
    "--standalone always shows such text.)"
)
BACK_WORDS = "(the server is back)"
UNREAD_WORDS = "(No server has read this question: it is answered when one is back.)"
WAITS_OFFLINE_WORDS = "(You are offline: the question waits for the server. /online connects.)"
LEFT_WORDS = "(The answer goes on when the server is back. You can ask the next question meanwhile.)"
SENTENCE_END = re.compile(r"[.!?:](?:[\"')\]*]*)\s+|[\u3002\uff01\uff1f]|\n+")
MOST_ARGUMENTS = 2000  # characters of a call: the user is to see what is run
MOST_RESULT = 600  # characters: the model gets all
ASK_WORDS = "  Run it? y: yes, n: no, a: always in this chat"
DECIDED_WORDS = {
    events.Permission.ONCE: "  yes",
    events.Permission.ALWAYS: "  always",
    events.Permission.DENIED: "  no",
}
SHOWN_CHARACTERS = 48  # of a question, enough to recognize it
NOT_SERVED = (events.LinkState.OFFLINE, events.LinkState.WAITING)


def writes_standalone(facts: ConversationFacts, standalone: str) -> bool:
    """Whether this device answers while the user wants no server."""
    return standalone == "always" or (bool(facts.companion) and standalone == "auto")


def worth_words(facts: ConversationFacts) -> str:
    if facts.companion:
        return f"Until a server is reachable, {facts.companion} on this device answers."
    return f"Until a server is reachable, the small model on this device answers, much worse than {facts.target}."


def offline_words(facts: ConversationFacts, *, writes: bool) -> str:
    """What it means to be offline by wish. `writes`: this device answers, rather than leave questions to the server."""
    if writes:
        return f"Offline, as requested. {worth_words(facts)} /online connects again."
    return (
        "Offline, as requested. Questions wait for the server: /online connects again, and /standalone has the small "
        f"model on this device answer meanwhile, much worse than {facts.target}."
    )


def execution_words(facts: ConversationFacts) -> str:
    """How exact the server's text is, in words; empty if no server has said."""
    if not facts.level:
        return ""
    if facts.exact:
        return f"execution {facts.level}: the text does not depend on what is verified together"
    return f"execution {facts.level}: the text may depend on what is verified together"


def drafter_words(facts: ConversationFacts) -> str:
    if not facts.drafter:
        return "no drafter that reads memory"
    standalone = f"\n{facts.standalone} writes while no server answers" if facts.standalone else ""
    return f"drafter {facts.drafter}: {facts.drafter_reason}{standalone}"


def model_words(facts: ConversationFacts) -> str:
    """Which model answers, where, how exactly, and what drafts."""
    where = f"{facts.target} at {facts.server}" + ("" if facts.online else " (not there now)")
    return "\n".join(filter(None, [where, execution_words(facts), drafter_words(facts)]))


def status_line(
    status: LinkStatus,
    provisional: Sequence[str] = (),
    answers: int = 0,
    reason: str = "",
    typed_ahead: int = 0,
    *,
    has_keys: bool = True,
) -> str:
    """One line, without line breaks; what matters most is first.

    Args:
        provisional: texts that no server has decided yet; `answers`: how many have ended without it.
        reason: why the link is in this state.
        typed_ahead: characters waiting for the next prompt.
    """
    parts, words = [], sum(len(text.split()) for text in provisional)
    if status.holds_back:
        parts.append("waiting for the server" + (" (Ctrl-O: keep writing)" if has_keys else ""))
    mark = "OFFLINE" if status.state is events.LinkState.OFFLINE else status.state.value
    parts.append(f"link {mark}" + (f" ({reason})" if reason else ""))
    if activity := _activity(words, answers, is_served=status.state not in NOT_SERVED):
        parts.append(activity)
    if status.written_standalone and not words:
        parts.append(standalone_words(status.written_standalone, status.kept, status.undecided))
    if status.rtt_ms is not None:
        parts.append(f"RTT {status.rtt_ms:.0f} ms")
    if status.tokens_per_s:
        parts.append(f"{status.tokens_per_s:.1f} tokens/s")
        parts.append(drafted_words(status.by_server, status.by_device))
    if status.up_bytes or status.down_bytes:
        parts.append(f"{decimal(status.up_bytes)} up, {down_words(status.down_bytes, status.memory_bytes)}")
    if typed_ahead:
        parts.append(f"{typed_ahead} typed ahead")
    return " | ".join(parts)


def thinking_words(tokens: int) -> str:
    """The line that reasoning is folded into while it comes, before the status; empty: none comes."""
    return f"thinking ... {tokens} {'token' if tokens == 1 else 'tokens'} | " if tokens else ""


def thought_words(tokens: int) -> str:
    return f"(thought for {tokens} {'token' if tokens == 1 else 'tokens'}: /thinking shows it)"


def link_words(event: events.LinkChanged) -> str:
    """A change of the link in words; empty if it need not be reported."""
    if event.state is events.LinkState.OFFLINE:
        return f"(offline: {event.reason.rstrip('.') or 'the server is not available'})"
    if event.state is events.LinkState.BACK:
        return BACK_WORDS
    if event.state is events.LinkState.WAITING:
        return f"({event.reason.rstrip('.')}; the answer resumes in {_whole(event.wait_seconds)} s)"
    return ""


def countdown_words(reason: str, seconds: float) -> str:
    """How long the server lets the answer wait, and why; what counts down is first, where no line is too short."""
    return f"resumes in {_whole(seconds)} s: {reason.rstrip('.')}"


def _whole(seconds: float) -> int:
    return max(1, math.ceil(seconds))


def event_words(event: events.SurfaceEvent) -> str:
    """What a chat says about an event beside the text of answers; empty: nothing."""
    match event:
        case events.CallWanted():
            where = f"a tool of {plain_line(event.server)}" if event.server else "no tool that is here"
            return f"* {plain_line(event.tool)} {_shortened(event.arguments, MOST_ARGUMENTS)} ({where})"
        case events.CallDecided(permission=permission):
            return DECIDED_WORDS[permission]
        case events.CallAnswered():
            return f"{'!' if event.is_error else '='} {_shortened(event.content, MOST_RESULT)}"
        case events.CallsLeft(reason):
            return f"({plain_line(reason) or 'The call is left without an answer.'} /continue takes it up.)"
        case events.HeldBack(unread):
            return UNREAD_WORDS if unread else HELD_BACK_WORDS
        case events.LinkChanged():
            return link_words(event)
        case events.DrafterChanged(name, reason):
            return f"({reason if name == events.LOOK_UP else f'{name} drafts from now on'})"
        case events.ExecutionChanged(level):
            level = plain_line(level)
            return f"(the server computes in {level} now: the text may continue differently from how it began)"
        case events.ServerChanged(message=message) | events.ToolsChanged(message):
            return f"({message})"
        case events.NotKept(error):
            return f"(From here on this conversation is not kept: {error})"
        case events.Failed(error):
            return f"Error: {error}"
    return ""


def waiting_words(wanted: events.CallWanted) -> str:
    """That a call waits which was wanted before this chat came, or which another surface is asked about."""
    return f"{event_words(wanted)}\n(The call waits: /continue asks about it, a question leaves it.)"


def answered_words(answered: AnsweredCall) -> str:
    call = answered.call
    said = events.CallAnswered(call.id, answered.content, answered.is_error)
    return f"* {plain_line(call.name)} {_shortened(call.arguments, MOST_ARGUMENTS)}\n{event_words(said)}"


def not_run_words(wanted: events.CallWanted) -> str:
    """That a tool was not run where nobody can be asked."""
    tool, option = plain_line(wanted.tool), shlex.quote(plain_line(f"{wanted.server}/{wanted.tool}"))
    return f"({tool} was not run, as nobody can be asked: --mcp-allow {option} lets it.)"


def _shortened(text: str, most: int) -> str:
    """A text for a person, who sees how much of it is left out."""
    shown = without_controls(text[:most])
    return shown if len(text) <= most else f"{shown} ... ({len(text) - most:,} characters more)"


def finish_words(answer: AnswerText, *, is_only: bool) -> str:
    """Why an answer has ended, where its text does not say; empty if it does.

    `is_only`: nothing can be said after it.
    """
    match answer.finish:
        case Finish.MAX_TOKENS:
            way_on = "--max-tokens" if is_only else "/continue goes on"
            return f"(cut after {answer.options.max_tokens} tokens: {way_on})"
        case Finish.CONTEXT:
            return "(the context is full)" if is_only else "(the context is full: /reset starts a new conversation)"
        case Finish.LOOP:
            return "(The answer only repeated itself, so it was ended.)"
    return ""


def settled_words(event: events.Settled | events.Refused, earlier: AnswerText) -> str:
    """The outcome of an answer that ended without the server, in one sentence."""
    question = " ".join(plain_line(earlier.question).split())
    about = f'"{question}"' if len(question) <= SHOWN_CHARACTERS else f'"{question[: SHOWN_CHARACTERS - 3]}..."'
    if isinstance(event, events.Refused):
        return (
            f"(The server refuses to check the answer to {about}: {event.error} The conversation continues without it.)"
        )
    tokens = "token" if event.written == 1 else "tokens"
    share = f"{event.kept} of {event.written} {tokens} written here {'was' if event.kept == 1 else 'were'} right"
    if event.outcome is events.AnswerOutcome.CONFIRMED:
        return f"(The server confirms the answer to {about}.)"
    if not earlier.ended.strip():
        return f"(The server has answered {about}.)"
    verb = "completed" if event.outcome is events.AnswerOutcome.COMPLETED else "corrected"
    return f"(The server has {verb} the answer to {about}{f'; {share}' if event.written else ''}.)"


def settled_remark(event: events.SurfaceEvent, earlier: AnswerText) -> str:
    """The same where nothing can be changed in its place, with what differs from the text shown; may be empty."""
    if not isinstance(event, events.Settled | events.Refused):
        return ""
    words = settled_words(event, earlier)
    lead, changed = (
        ("", "") if isinstance(event, events.Refused) else changed_words(event, earlier.ended, earlier.committed)
    )
    return f"{words} {lead}".rstrip() + f"\n{changed}" if changed else words


def changed_words(event: events.Settled, shown: str, text: str) -> tuple[str, str]:
    """What of an answer must be said because it is not what is shown: a lead, and the text; empty if nothing.

    `shown`: the answer as it can be read above; `text`: as the server has decided it.
    """
    if text.strip() == shown.strip():
        return "", ""
    lead = "It goes on:" if event.outcome is events.AnswerOutcome.COMPLETED else "From the sentence that changes:"
    return lead if shown.strip() else "", without_controls(changed_part(shown, text))


def changed_part(shown: str, text: str) -> str:
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


def offer_words(companion: str) -> str:
    """That a companion could be had; `companion`: as `moa-client companion set` takes it."""
    return (
        f"(Answers need not stop when the link does: `moa-client companion set {companion}` has a small model on this "
        "device write on meanwhile. This is said once.)"
    )


def unsure_words(*, styled: bool) -> str:
    """What the second shade of provisional text is, for a reader who sees some for the first time."""
    which = "Dim text in italics" if styled else "Text after [less sure:]"
    return (
        f"({which} is this device's too, and the server may well write something else: it will check it. "
        "/keep has this device's text back where it was replaced.)"
    )


def withdrawn_words(tokens: int) -> str:
    """That text of this device was replaced, and can be had back."""
    return f"(The server has replaced {tokens} tokens that this device had written: /keep has them back.)"


def unverified_words(count: int, *, is_printed: bool) -> str:
    """That an answer ended with `count` tokens that no server has verified."""
    if is_printed:
        return f"(The last {count} tokens were written by the small model on this device; no server has checked them.)"
    return (
        f"({count} more tokens were written by the small model on this device. They are not printed, because no server "
        "has checked them; --standalone always prints such text.)"
    )


def _activity(words: int, answers: int, *, is_served: bool) -> str:
    if words:
        what = "1 word" if words == 1 else f"{words} words"
        return f"the server checks {what}" if is_served else f"{what} to be checked"
    if answers:
        what = "1 answer" if answers == 1 else f"{answers} answers"
        return f"the server finishes {what}" if is_served else f"{what} to be finished"
    return ""
