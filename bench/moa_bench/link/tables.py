"""Results of the link suites as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from moa_bench.report import facts_line, table
from moa_bench.spread import Spread

PORT = re.compile(r"(?<=127\.0\.0\.1):\d+")  # differs from link to link and says nothing


def render(result: Mapping[str, Any]) -> str:
    """The table of ratios for the oracle, and that of the real drafter."""
    effort = result["effort"]
    cells = result["cells"]
    oracle = [cell for cell in cells if cell.acceptance is not None]
    real = [cell for cell in cells if cell.acceptance is None]
    ratios = (
        "Tokens a second over the whole answer, as a ratio to plain streaming of the same prompt over the same link"
    )
    note = f"{effort.answer_tokens} tokens, greedy, bf16. {ratios}: median (quartiles) over the prompts."
    parts = [facts_line(result), note + "\n"]
    if oracle:
        parts += [f"### An oracle drafter, {effort.draft_ms:g} ms a step, chains\n", _oracle(oracle)]
    if real:
        parts += [f"### The drafter: {result['drafter']}\n", _real(real)]
    parts.append(_remarks(cells))
    return "\n".join(parts)


def _oracle(cells: list[Any]) -> str:
    acceptances = sorted({cell.acceptance for cell in cells})
    rows = []
    for link, way in dict.fromkeys((cell.link, cell.way) for cell in cells):
        found = {cell.acceptance: cell for cell in cells if (cell.link, cell.way) == (link, way)}
        plain = next(iter(found.values())).plain_tokens_per_s
        rows.append(
            [link, way, f"{plain.median:.1f}", *(_ratio(found[acceptance].ratio) for acceptance in acceptances)]
        )
    head = ["link", "way", "plain, tokens/s", *(f"acceptance {acceptance:g}" for acceptance in acceptances)]
    return table(head, rows)


def _real(cells: list[Any]) -> str:
    rows = [
        [cell.link, cell.way, f"{cell.plain_tokens_per_s.median:.1f}", _ratio(cell.ratio), _ratio(cell.first_ratio)]
        for cell in cells
    ]
    return table(["link", "way", "plain, tokens/s", "ratio", "ratio of the time to the first token"], rows)


def _ratio(spread: Spread | None) -> str:
    return "failed" if spread is None else spread.text(2)


def _remarks(cells: list[Any]) -> str:
    answers = sum(cell.ratio.count for cell in cells if cell.ratio is not None)
    other = sum(cell.other_texts for cell in cells)
    lines = [f"Of {answers} answers {other} had another text than plain streaming's (bf16 rounds; see above)."]
    failures = Counter((cell.link, PORT.sub("", failure)) for cell in cells for failure in cell.failures)
    lines += [f"{count} answers over {link} failed: {failure}" for (link, failure), count in failures.items()]
    return "\n".join(lines) + "\n"


def render_cut(result: Mapping[str, Any]) -> str:
    """The table of incidents."""
    rows = []
    for kind in dict.fromkeys(incident.kind for incident in result["incidents"]):
        found = [incident for incident in result["incidents"] if incident.kind is kind]
        stalls = [incident.stall_ms for incident in found]
        resumes = [incident.resume_ms for incident in found]
        rows.append(
            [
                kind.value,
                len(found),
                sum(incident.equal for incident in found),
                Spread.of([1e3 * incident.seconds for incident in found]).text(0),
                Spread.of(stalls).text(0),
                f"{max(stalls):.0f}",
                Spread.of(resumes).text(0),
                f"{max(resumes):.0f}",
            ]
        )
    head = ["incident", "answers", "texts equal", "away, ms", "stall, ms", "longest", "to resume, ms", "longest"]
    effort = result["effort"]
    note = (
        f"{effort.answer_tokens} tokens, greedy, float32, over {result['link']}; "
        f"{result['missed']} answers had ended before their incident. Median (quartiles).\n"
    )
    return "\n".join([facts_line(result), note, table(head, rows)])
