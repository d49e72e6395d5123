"""Conversations as text: for a terminal, as Markdown, as JSON. Pure.

Invariant: text of questions and models is harmless for terminals, but for JSON, which escapes it.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from moa_shared.plain_text import plain_line, without_controls
from moa_shared.programs.command_line import table

from moa_client.conversation.events import Provenance
from moa_client.history.reading import AnswerStatus, Hit, StoredAnswer, StoredConversation, Summary

UNVERIFIED = "[unverified:]"  # what a chat shows dim
TITLE_CHARACTERS = 60
MODEL_CHARACTERS = 40
_REMARKS = {
    "max_tokens": "(cut: max_tokens)",
    "context": "(cut: the context is full)",
    "loop": "(ended: it only repeated itself)",
    "cancelled": "(stopped)",
    "": "(broken off)",
}


def shown_conversation(stored: StoredConversation) -> str:
    return "\n".join([*_facts(stored), "", *_turns(stored)])


def markdown(stored: StoredConversation) -> str:
    """A whole conversation as Markdown; the model's text is Markdown already."""
    title, *facts = _facts(stored)
    lines = [f"# {title}", "", *(f"{line}  " for line in facts), "", *_turns(stored, "## Question {}", "\n*{}*")]
    return "\n".join(lines).rstrip() + "\n"


def _turns(stored: StoredConversation, heading: str = "", remark: str = "{}") -> Iterator[str]:
    for number, answer in enumerate(stored.answers, 1):
        if heading:
            yield from (heading.format(number), "")
        results = [f"[{each.call.name} {each.call.arguments}]\n{each.content}" for each in answer.options.results]
        asked = "\n".join([answer.question, *results]).removeprefix("\n")
        yield from (*(f"> {line}" for line in _lines(asked)), "")
        provisional = f"{UNVERIFIED} {answer.provisional}" if answer.provisional else ""
        yield from (*_lines(answer.text + provisional), *map(remark.format, _remarks(answer)), "")


def as_json(stored: StoredConversation) -> dict[str, Any]:
    origin = stored.origin
    return {
        "id": stored.identifier,
        "title": stored.title,
        "created": stored.created,
        "updated": stored.updated,
        "model": origin.model,
        "target_fingerprint": origin.target.hex(),
        "tokenizer_hash": origin.tokenizer.hex(),
        "execution": origin.execution,
        "server": origin.server,
        "system": origin.system,
        "answers": [_answer_json(answer) for answer in stored.answers],
    }


def list_table(summaries: Sequence[Summary]) -> str:
    rows = [("ID", "LAST USED", "QUESTIONS", "MODEL", "TITLE")]
    for each in summaries:
        waiting = f" ({each.unverified} to be checked)" if each.unverified else ""
        title = plain_line(each.title, TITLE_CHARACTERS) + waiting
        model = plain_line(each.model, MODEL_CHARACTERS)
        rows.append((each.identifier, _moment(each.updated), str(each.answers), model, title))
    return table(rows)


def shown_hit(hit: Hit) -> str:
    snippet, title = plain_line(" ".join(hit.snippet.splitlines())), plain_line(hit.title, TITLE_CHARACTERS)
    return f"{hit.identifier}  {_moment(hit.asked)}  question {hit.number} of: {title}\n    {snippet}\n"


def _facts(stored: StoredConversation) -> list[str]:
    origin, asked = stored.origin, "\n".join(answer.question for answer in stored.answers)
    title = stored.title or next(filter(None, _lines(asked)), "(no title)")
    level = f" ({plain_line(origin.execution)})" if origin.execution else ""
    place = f" at {plain_line(origin.server)}" if origin.server else ""
    lines = [plain_line(title, TITLE_CHARACTERS), f"Conversation {stored.identifier} of {_moment(stored.created)}"]
    lines.append(f"with {plain_line(origin.model)}{level}{place}")
    return lines if origin.system is None else [*lines, f"System prompt: {plain_line(origin.system)}"]


def _remarks(answer: StoredAnswer) -> list[str]:
    remarks = [f"(chosen with {answer.options.words()})"] if answer.options.temperature else []
    if answer.options.model:
        remarks.append(f"(answered by {plain_line(answer.options.model)})")
    if answer.standing is AnswerStatus.DECIDED and answer.finish in _REMARKS:
        remarks.append(_REMARKS[answer.finish])
    if answer.standing.is_open:
        remarks.append("(a server is still to check and complete this answer)")
    if answer.standing is AnswerStatus.REFUSED:
        remarks.append("(the server has refused to check this answer)")
    if Provenance.ALONE.letter.encode() in answer.provenance[answer.question_tokens :]:
        remarks.append("(kept as this device has written it)")
    return remarks


def _answer_json(answer: StoredAnswer) -> dict[str, Any]:
    return {
        "question": answer.question,
        "text": answer.text,
        "provisional": answer.provisional,
        "standing": answer.standing.value,
        "finish": answer.finish or None,
        "outcome": answer.outcome or None,
        "asked": answer.asked,
        "ended": answer.ended,
        "options": answer.options.fields(),
        "question_tokens": list(answer.tokens[: answer.question_tokens]),
        "tokens": list(answer.tokens[answer.question_tokens :]),
        "provenance": answer.provenance[answer.question_tokens :].decode(),
        "provisional_tokens": list(answer.waiting),
        "written_standalone": answer.shown,
        "kept": answer.kept,
        "figures": dict(answer.figures),
        "versions": [{"question": question, "text": text} for question, text in answer.versions],
    }


def _lines(text: str) -> list[str]:
    return without_controls(text).split("\n")


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
