"""What a chat says besides the answers: about events, answers that have ended, the link and the conversation. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa_shared.plain_text import plain_line, without_controls
from moa_shared.programs.command_line import table
from moa_shared.protocol.messages import Finish
from rich.filesize import decimal

from moa_client.conversation import events
from moa_client.conversation.answer_text import common

if TYPE_CHECKING:
    from moa_client.conversation.answer_text import AnswerText
    from moa_client.conversation.figures import Figures, LinkStatus
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
FIRST_CUT_WORDS = (
    "(Dim text was written by the small model on this device while the server does not answer. "
    "The server will check it, and correct it where it is wrong.)"
)
CALL_WAITS_WORDS = "(The call waits: /continue asks about it, a question leaves it.)"
UNSURE_WORDS = (
    "(Dim text in italics is this device's too, and the server may well write something else: it will check it. "
    "/keep has this device's text back where it was replaced.)"
)
DECIDED_WORDS = {events.Permission.ONCE: "yes", events.Permission.ALWAYS: "always", events.Permission.DENIED: "no"}
OFFER_WORDS = (
    "(Answers need not stop when the link does: `moa-client companion set %s` has a small model on this device write "
    "on meanwhile. This is said once.)"
)
SENTENCE_END = re.compile(r"[.!?:](?:[\"')\]*]*)\s+|[\u3002\uff01\uff1f]|\n+")
MOST_ARGUMENTS = 2000  # characters of a call: the user is to see what is run
MOST_RESULT = 600  # characters: the model gets all
SHOWN_CHARACTERS = 48  # of a question, enough to recognize it
NOT_SERVED = (events.LinkState.OFFLINE, events.LinkState.WAITING)


def event_words(event: events.SurfaceEvent) -> str:
    """What a chat says about an event beside the text of answers; empty: nothing."""
    match event:
        case events.CallWanted(server=server):
            where = f"a tool of {plain_line(server)}" if server else "no tool that is here"
            return f"{_call_words(event.tool, event.arguments)} ({where})"
        case events.CallDecided(permission=permission):
            return f"  {DECIDED_WORDS[permission]}"
        case events.CallAnswered(content=content, is_error=is_error):
            return f"{'!' if is_error else '='} {_shortened(content, MOST_RESULT)}"
        case events.CallsLeft(reason):
            return f"({plain_line(reason) or 'The call is left without an answer.'} /continue takes it up.)"
        case events.HeldBack(unread):
            return UNREAD_WORDS if unread else HELD_BACK_WORDS
        case events.LinkChanged(events.LinkState.OFFLINE, reason):
            return f"(offline: {reason.rstrip('.') or 'the server is not available'})"
        case events.LinkChanged(events.LinkState.BACK):
            return BACK_WORDS
        case events.LinkChanged(events.LinkState.WAITING, reason, seconds):
            return f"({reason.rstrip('.')}; the answer resumes in {max(1, math.ceil(seconds))} s)"
        case events.DrafterChanged(name, reason):
            return f"({name} drafts from now on)"
        case events.ExecutionChanged(level):
            level = plain_line(level)
            return f"(the server computes in {level} now: the text may continue differently from how it began)"
        case events.ServerChanged(message=message) | events.ToolsChanged(message):
            return f"({message})"
        case events.ModelsChanged(model, ()):
            return f"({plain_line(model)} answers from now on: what was said before is new text for it)"
        case events.ModelsChanged(model, models):
            rows = [("*" if name == model else "", plain_line(name), plain_line(about)) for name, about in models]
            return table(rows).rstrip()
        case events.NotKept(error):
            return f"(From here on this conversation is not kept: {error})"
        case events.Failed(error):
            return f"Error: {error}"
    return ""


def answered_words(answered: AnsweredCall) -> str:
    call = answered.call
    said = events.CallAnswered(call.id, answered.content, answered.is_error)
    return f"{_call_words(call.name, call.arguments)}\n{event_words(said)}"


def not_run_words(wanted: events.CallWanted) -> str:
    """That a tool was not run where nobody can be asked."""
    tool, option = plain_line(wanted.tool), shlex.quote(plain_line(f"{wanted.server}/{wanted.tool}"))
    return f"({tool} was not run, as nobody can be asked: --mcp-allow {option} lets it.)"


def _call_words(tool: str, arguments: str) -> str:
    return f"* {plain_line(tool)} {_shortened(arguments, MOST_ARGUMENTS)}"


def _shortened(text: str, most: int) -> str:
    """A text for a person, who sees how much of it is left out."""
    shown = without_controls(text[:most])
    return shown if len(text) <= most else f"{shown} ... ({len(text) - most:,} characters more)"


def finish_words(answer: AnswerText, *, is_only: bool) -> str:
    """Why an answer has ended, where its text does not say; empty if it does. `is_only`: nothing is said after it."""
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
    about = f'"{short(earlier.question, SHOWN_CHARACTERS)}"'
    if isinstance(event, events.Refused):
        return (
            f"(The server refuses to check the answer to {about}: {event.error} The conversation continues without it.)"
        )
    if event.outcome is events.AnswerOutcome.CONFIRMED:
        return f"(The server confirms the answer to {about}.)"
    if not earlier.ended.strip():
        return f"(The server has answered {about}.)"
    share = (
        f"; {event.kept} of {counted(event.written, 'token')} written here {'was' if event.kept == 1 else 'were'} right"
    )
    return f"(The server has {event.outcome.value} the answer to {about}{share if event.written else ''}.)"


def settled_remark(event: events.SurfaceEvent, earlier: AnswerText) -> str:
    """The same where nothing can be changed in its place, with what differs from the text shown; may be empty."""
    if isinstance(event, events.Settled):
        return "\n".join(filter(None, changed_words(event, earlier, earlier.ended, earlier.committed)))
    return settled_words(event, earlier) if isinstance(event, events.Refused) else ""


def changed_words(event: events.Settled, earlier: AnswerText, shown: str, text: str) -> tuple[str, str]:
    """The outcome of an answer, and what of it must be said because it is not what is shown; the latter may be empty.

    `shown`: the answer as it can be read above; `text`: as the server has decided it.
    """
    words = settled_words(event, earlier)
    if text.strip() == shown.strip():
        return words, ""
    is_longer = event.outcome is events.AnswerOutcome.COMPLETED
    lead = "It goes on:" if is_longer else "From the sentence that changes:"
    same = common(shown, text)
    ends = [match.end() for match in SENTENCE_END.finditer(text) if match.end() < len(text.rstrip())]
    changed = text[max((end for end in ends if end <= same), default=0) :].strip()
    return f"{words} {lead}" if shown.strip() else words, without_controls(changed)


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


def short(question: str, most: int) -> str:
    """A question on one line, as much as is needed to recognize it."""
    line = " ".join(plain_line(question).split())
    return line if len(line) <= most else f"{line[: most - 3]}..."


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def status_line(
    status: LinkStatus, provisional: Sequence[str] = (), answers: int = 0, reason: str = "", thinking: int = 0
) -> str:
    """One line, without line breaks; what matters most is first.

    Args:
        provisional: texts that no server has decided yet; `answers`: how many have ended without it.
        reason: why the link is in this state.
        thinking: tokens of reasoning that is folded away while it comes.
    """
    parts, words = [], sum(len(text.split()) for text in provisional)
    is_served = status.state not in NOT_SERVED
    if thinking:
        parts.append(f"thinking ... {counted(thinking, 'token')}")
    if status.holds_back:
        parts.append("waiting for the server")
    mark = "OFFLINE" if status.state is events.LinkState.OFFLINE else status.state.value
    parts.append(f"link {mark}" + (f" ({reason.rstrip('.')})" if reason else ""))
    if words:
        what = counted(words, "word")
        parts.append(f"the server checks {what}" if is_served else f"{what} to be checked")
    elif answers:
        what = counted(answers, "answer")
        parts.append(f"the server finishes {what}" if is_served else f"{what} to be finished")
    if status.written_standalone and not words:
        parts.append(standalone_words(status.written_standalone, status.kept, status.undecided))
    if status.rtt_ms is not None:
        parts.append(f"RTT {status.rtt_ms:.0f} ms")
    if status.tokens_per_s:
        parts.append(f"{status.tokens_per_s:.1f} tokens/s")
        parts.append(drafted_words(status.by_server, status.by_device))
    if status.up_bytes or status.down_bytes:
        parts.append(f"{decimal(status.up_bytes)} up, {down_words(status.down_bytes, status.memory_bytes)}")
    return " | ".join(parts)


def worth_words(facts: ConversationFacts) -> str:
    """What text without a server is worth."""
    if facts.companion:
        return f"Until a server is reachable, {facts.companion} on this device answers."
    return f"Until a server is reachable, the small model on this device answers, much worse than {facts.target}."


def offline_words(facts: ConversationFacts, standalone: str) -> str:
    """What it means to be offline by wish. `standalone`: the setting of that name."""
    if standalone == "always" or (facts.companion and standalone == "auto"):
        return f"Offline, as requested. {worth_words(facts)} /online connects again."
    return (
        "Offline, as requested. Questions wait for the server: /online connects again, and /standalone has the small "
        f"model on this device answer meanwhile, much worse than {facts.target}."
    )


def facts_words(facts: ConversationFacts) -> str:
    """Which model answers, where, how exactly, and what drafts."""
    lines = [f"{facts.target} at {facts.server}" + ("" if facts.online else " (not there now)")]
    if facts.level:
        verb = "does not depend" if facts.exact else "may depend"
        lines.append(f"execution {facts.level}: the text {verb} on what is verified together")
    drafts = f"drafter {facts.drafter}: {facts.drafter_reason}"
    lines.append(drafts if facts.drafter else "no drafter that reads memory")
    if facts.drafter and facts.standalone:
        lines.append(f"{facts.standalone} writes while no server answers")
    return "\n".join(lines)


def cost_line(figures: Figures) -> str:
    """What a reader wants to know, the most important first, on one line."""
    text = counted(figures.tokens + figures.undecided, "token")
    if figures.seconds:
        text += f" in {_time(figures.seconds)}"
        text += f" ({figures.tokens_per_second:.{0 if figures.tokens_per_second >= 10 else 1}f} tokens/s)"
        text += f", first after {_time(figures.first_token_seconds)}"
    parts = [text]
    if figures.verdicts:
        parts.append(drafted_words(figures.by_server, figures.by_device))
        parts.append(down_words(figures.down_bytes, figures.memory_bytes))
    if figures.provisional:
        parts.append(standalone_words(figures.provisional, figures.kept, figures.undecided))
    return "; ".join(parts)


def cost_details(figures: Figures) -> str:
    """What else was counted; empty without a server."""
    if not figures.verdicts:
        return ""
    each = max(1, figures.tokens)
    return (
        f"{figures.acceptance_length:.2f} tokens a verification ({figures.verdicts} steps), "
        f"{figures.up_bytes / each:.0f} bytes up and {figures.down_bytes / each:.0f} down a token, "
        f"{1000 * figures.cpu_seconds / each:.1f} ms of this device's CPU a token"
    )


def drafted_words(by_server: float, by_device: float) -> str:
    """Who drafted an answer, given the shares of its tokens."""
    server, device = round(100 * by_server), round(100 * by_device)
    if server and device:
        return f"{server + device} % drafted: {server} % by the server, {device} % here"
    if server:
        return f"{server} % drafted by the server"
    return f"{device} % drafted here" if device else "not drafted"


def down_words(down_bytes: int, memory_bytes: int) -> str:
    """What came down, and how much of it for this device's drafter."""
    drafter = f" ({decimal(memory_bytes)} for the drafter)" if memory_bytes else ""
    return f"{decimal(down_bytes)} down{drafter}"


def standalone_words(written: int, kept: int, undecided: int = 0) -> str:
    """How much was written without a server, and how much of it was right."""
    if undecided == written:
        return f"standalone {counted(written, 'token')}, not checked yet"
    rest = f", {undecided} not checked yet" if undecided else ""
    return f"standalone {counted(written, 'token')}, {kept} kept{rest}"


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if 0 < seconds < 1 else f"{seconds:.1f} s"
