"""Results of the link suites as Markdown."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from moa_bench.report.report import facts_line, table
from moa_bench.report.spread import Spread

PORT = re.compile(r"(?<=127\.0\.0\.1):\d+")  # differs from link to link and says nothing


def render(result: Mapping[str, Any]) -> str:
    """The tables of ratios for the oracle and the real drafter, and those of bytes and beginnings."""
    effort = result["effort"]
    cells = result["cells"]
    oracle = [cell for cell in cells if cell.acceptance is not None]
    real = [cell for cell in cells if cell.acceptance is None]
    ratios = (
        "Tokens a second over the whole answer, as a ratio to plain streaming of the same prompt over the same link"
    )
    note = f"{effort.answer_tokens} tokens, greedy, {result['level']}. {ratios}: median (quartiles) over the prompts."
    if result["padding"] is not None:
        note += f" {result['padding'].description}"
    parts = [facts_line(result), note + "\n"]
    if oracle:
        parts += [f"### An oracle drafter, {effort.draft_ms:g} ms a step, chains\n", _oracle(oracle)]
        parts += ["What the event simulation says, and measured over simulated, less one:\n", _predicted(oracle)]
    if real:
        parts += [f"### The drafter: {result['drafter']}\n", _real(real)]
    parts.append(remarks(cells))
    parts += ["### Bytes at the socket\n", traffic_table(result["traffic"])]
    parts += ["### How an answer begins\n", _starts(result["starts"])]
    return "\n".join(parts)


def _oracle(cells: list[Any]) -> str:
    return _grid(cells, lambda cell: ratio_text(cell.ratio))


def _predicted(cells: list[Any]) -> str:
    return _grid(
        cells,
        lambda cell: (
            "" if cell.predicted is None else f"{cell.predicted.median:.2f} ({100 * cell.error.median:+.0f} %)"
        ),
    )


def _grid(cells: list[Any], text: Callable[[Any], str]) -> str:
    """A row for each link and way, a column for each acceptance."""
    acceptances = sorted({cell.acceptance for cell in cells})
    rows = []
    for link, way in dict.fromkeys((cell.link, cell.way) for cell in cells):
        found = {cell.acceptance: cell for cell in cells if (cell.link, cell.way) == (link, way)}
        plain = next(iter(found.values())).plain_tokens_per_s
        columns = [text(found[acceptance]) if acceptance in found else "" for acceptance in acceptances]
        rows.append([link, way, f"{plain.median:.1f}", *columns])
    head = ["link", "way", "plain, tokens/s", *(f"acceptance {acceptance:g}" for acceptance in acceptances)]
    return table(head, rows)


def _real(cells: list[Any]) -> str:
    rows = [
        [
            cell.link,
            cell.way,
            f"{cell.plain_tokens_per_s.median:.1f}",
            ratio_text(cell.ratio),
            ratio_text(cell.first_ratio),
        ]
        for cell in cells
    ]
    return table(["link", "way", "plain, tokens/s", "ratio", "ratio of the time to the first token"], rows)


def traffic_table(rows: list[Any]) -> str:
    """Bytes of each way."""
    head = ["way", "prompt tokens", "answer tokens", "up a token", "down a token", "tokens a verdict"]
    return table(
        head,
        [
            [
                row.way,
                row.prompt_tokens,
                row.answer_tokens,
                f"{row.up_a_token:.1f}",
                f"{row.down_a_token:.1f}",
                f"{row.tokens_a_verdict:.2f}",
            ]
            for row in rows
        ],
    )


def _starts(rows: list[Any]) -> str:
    head = ["link", "prompt tokens", "first token, plain, ms", "split, ms", "ratio", "first draft after, ms", "RTT, ms"]
    return table(
        head,
        [
            [
                row.link,
                row.prompt_tokens,
                row.plain_ms.text(0),
                row.split_ms.text(0),
                ratio_text(row.ratio),
                "none was sent" if row.draft_after_ms is None else row.draft_after_ms.text(0),
                f"{row.rtt_ms:.0f}",
            ]
            for row in rows
        ],
    )


def ratio_text(spread: Spread | None) -> str:
    """A ratio with its quartiles."""
    return "failed" if spread is None else spread.text(2)


def remarks(cells: list[Any]) -> str:
    """How many answers had another text, and why others failed."""
    answers = sum(cell.ratio.count for cell in cells if cell.ratio is not None)
    other = sum(cell.other_texts for cell in cells)
    lines = [f"Of {answers} answers {other} had another text than plain streaming's."]
    failures = Counter((cell.link, PORT.sub("", failure)) for cell in cells for failure in cell.failures)
    lines += [f"{count} answers over {link} failed: {failure}" for (link, failure), count in failures.items()]
    return "\n".join(lines) + "\n"


def render_cut(result: Mapping[str, Any]) -> str:
    """The table of incidents."""
    rows = []
    for kind in dict.fromkeys(incident.kind for incident in result["incidents"]):
        found = [incident for incident in result["incidents"] if incident.kind is kind]
        rows.append(
            [
                kind.value,
                len(found),
                sum(incident.whole for incident in found),
                sum(incident.alone for incident in found),
                Spread.of([1e3 * incident.seconds for incident in found]).text(0),
                *_distribution([incident.stall_ms for incident in found if incident.stall_ms is not None]),
                *_distribution([incident.resume_ms for incident in found if incident.resume_ms is not None]),
            ]
        )
    head = [
        "incident",
        "met",
        "texts whole",
        "wrote standalone text",
        "away, ms",
        "stall, ms",
        "95 %",
        "longest",
        "to resume, ms",
    ]
    head += ["95 %", "longest"]
    effort = result["effort"]
    note = (
        f"{result['answers']} answers of {effort.answer_tokens} tokens, greedy, {result['level']}, over "
        f"{', and '.join([result['link'], *result['recordings']])}. Median (quartiles).\n"
    )
    return "\n".join([facts_line(result), note, table(head, rows)])


def _distribution(values: list[float]) -> tuple[str, str, str]:
    if not values:
        return "none", "", ""
    high = sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]
    return Spread.of(values).text(0), f"{high:.0f}", f"{max(values):.0f}"
