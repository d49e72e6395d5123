"""Conversations as text: for a terminal, as Markdown, as JSON. Pure.

Invariant: text of questions and models is harmless for terminals, but for JSON, which escapes it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from moa_shared.text.plain_text import plain_line, without_controls

from moa_client.conversation.events import Provenance
from moa_client.history import records
from moa_client.history.reading import END, START
from moa_client.tools.tool import AnsweredCall

UNVERIFIED = "[unverified:]"  # as the chat marks it where it cannot dim
TITLE_CHARACTERS = 60
MODEL_CHARACTERS = 40
_REMARKS = {
    "max_tokens": "(cut: max_tokens)",
    "context": "(cut: the context is full)",
    "loop": "(ended: it only repeated itself)",
    "cancelled": "(stopped)",
    "": "(broken off)",
}


def shown_conversation(stored: records.StoredConversation) -> str:
    lines = [*_facts(stored), ""]
    for answer in stored.answers:
        lines += [*(f"> {line}" for line in _asked(answer)), ""]
        lines += [*_lines(_marked(answer)), *_remarks(answer), ""]
    return "\n".join(lines)


def markdown(stored: records.StoredConversation) -> str:
    """A whole conversation as Markdown; the model's text is Markdown already."""
    lines = [f"# {_title(stored) or 'Conversation'}", "", *(f"{line}  " for line in _facts(stored)[1:]), ""]
    for number, answer in enumerate(stored.answers, 1):
        lines += [f"## Question {number}", "", *(f"> {line}" for line in _asked(answer)), ""]
        lines += [_marked(answer), ""]
        for remark in _remarks(answer):
            lines += [f"*{remark}*", ""]
    return "\n".join(line.rstrip("\n") for line in lines).rstrip() + "\n"


def as_json(stored: records.StoredConversation) -> dict[str, Any]:
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


def list_table(summaries: Sequence[records.Summary]) -> str:
    rows = [("ID", "LAST USED", "QUESTIONS", "MODEL", "TITLE")]
    for each in summaries:
        waiting = f" ({each.unverified} to be checked)" if each.unverified else ""
        title = plain_line(each.title, TITLE_CHARACTERS) + waiting
        model = plain_line(each.model, MODEL_CHARACTERS)
        rows.append((each.identifier, _moment(each.updated), str(each.answers), model, title))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "".join("  ".join((*map(str.ljust, row, widths), row[4])).rstrip() + "\n" for row in rows)


def list_json(summaries: Sequence[records.Summary]) -> str:
    names = {"identifier": "id", "answers": "questions"}
    shown = [{names.get(name, name): value for name, value in asdict(each).items()} for each in summaries]
    return json.dumps(shown, indent=2) + "\n"


def shown_hit(hit: records.Hit, start: str, end: str) -> str:
    """What a search has found, for a person.

    Args:
        start, end: put around the words that were searched for.
    """
    first, *others = " ".join(hit.snippet.splitlines()).split(START)
    snippet = plain_line(first)
    for part in others:
        word, _, rest = part.partition(END)
        snippet += f"{start}{plain_line(word)}{end}{plain_line(rest)}"
    title = plain_line(hit.title, TITLE_CHARACTERS)
    return f"{hit.identifier}  {_moment(hit.asked)}  question {hit.number} of: {title}\n    {snippet}\n"


def _facts(stored: records.StoredConversation) -> list[str]:
    origin = stored.origin
    level = f" ({plain_line(origin.execution)})" if origin.execution else ""
    lines = [_title(stored) or "(no title)", f"Conversation {stored.identifier} of {_moment(stored.created)}"]
    place = f" at {plain_line(origin.server)}" if origin.server else ""
    lines.append(f"with {plain_line(origin.model)}{level}{place}")
    if origin.system is not None:
        lines.append(f"System prompt: {plain_line(origin.system)}")
    return lines


def _title(stored: records.StoredConversation) -> str:
    title = stored.title or next((line for answer in stored.answers for line in _lines(answer.question) if line), "")
    return plain_line(title, TITLE_CHARACTERS)


def _asked(answer: records.StoredAnswer) -> list[str]:
    return _lines("\n".join([answer.question, *map(_answered, answer.options.results)]).removeprefix("\n"))


def _answered(answered: AnsweredCall) -> str:
    return f"[{answered.call.name} {answered.call.arguments}]\n{answered.content}"


def _marked(answer: records.StoredAnswer) -> str:
    if answer.provisional:
        return without_controls(f"{answer.text}{UNVERIFIED} {answer.provisional}")
    return without_controls(answer.text)


def _remarks(answer: records.StoredAnswer) -> list[str]:
    remarks = [f"(chosen with {answer.options.words()})"] if answer.options.temperature else []
    if answer.standing is records.AnswerStatus.DECIDED and answer.finish in _REMARKS:
        remarks.append(_REMARKS[answer.finish])
    if answer.standing.is_open:
        remarks.append("(a server is still to check and complete this answer)")
    if answer.standing is records.AnswerStatus.REFUSED:
        remarks.append("(the server has refused to check this answer)")
    if Provenance.ALONE.letter.encode() in answer.provenance[answer.question_tokens :]:
        remarks.append("(kept as this device has written it)")
    return remarks


def _answer_json(answer: records.StoredAnswer) -> dict[str, Any]:
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
