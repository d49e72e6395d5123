"""What `moa-bench drafting` found, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moa_bench.network.tables import ratio_text, remarks, traffic_table
from moa_bench.report.report import facts_line, table

LEAST_RATIO = 0.97  # of an answer whose drafts are useless


def render(result: Mapping[str, Any]) -> str:
    """The tables of ratios, of the limit, of an untrained drafter and of bytes."""
    effort, rows, untrained = result["effort"], result["rows"], result["untrained"]
    note = (
        f"{result['limit'].steps_ratio.count} questions, answers of {effort.shortest_answer} to "
        f"{effort.answer_tokens} tokens, greedy, {result['level']}. Tokens a second over the whole answer, as a ratio "
        "to plain streaming of the same prompt over the same link: median (quartiles) over the questions."
    )
    if result["padding"] is not None:
        note += f" {result['padding'].description}"
    return "\n".join(
        [
            facts_line(result),
            note + "\n",
            f"### Who drafts: {result['drafter']}\n",
            _ways(rows),
            remarks([row.cell for row in rows]),
            "### The limit: the server's steps without a network\n",
            _limit(result["limit"]),
            f"### A drafter that knows nothing: {result['untrained_drafter']}\n",
            _ways(untrained),
            _verdict(untrained),
            "### Bytes at the socket\n",
            traffic_table(result["traffic"]),
        ]
    )


def _ways(rows: Sequence[Any]) -> str:
    head = ["link", "way", "plain, tokens/s", "ratio", "lowest", "tokens a verification", "nodes"]
    head += ["guessed by the server", "client's CPU, ms a token"]
    return table(
        head,
        [
            [
                row.cell.link,
                row.cell.way,
                f"{row.cell.plain_tokens_per_s.median:.1f}",
                ratio_text(row.cell.ratio),
                _number(row.cell.lowest, 2),
                _number(row.tokens_a_verification, 2),
                _number(row.nodes_a_verification, 1),
                "" if row.server_guessed is None else f"{100 * row.server_guessed:.0f} %",
                _number(row.cpu_ms_a_token, 1),
            ]
            for row in rows
        ],
    )


def _verdict(rows: Sequence[Any]) -> str:
    """Whether useless drafts cost no more than they may."""
    medians = [row.cell.ratio.median for row in rows if row.cell.ratio is not None]
    if not medians:
        return "No answer arrived.\n"
    held = "holds" if min(medians) >= LEAST_RATIO else "does not hold"
    return f"That useless drafts leave {LEAST_RATIO:g} of plain streaming {held}.\n"


def _limit(limit: Any) -> str:
    head = [
        "E, tokens a verification",
        "nodes",
        "plain step, ms",
        "c_v",
        "k c_d",
        "first draft, ms",
        "E / (c_v + k c_d)",
    ]
    head += ["by question", "lowest", "whole answers"]
    row = [
        f"{limit.tokens_a_verification:.2f}",
        f"{limit.nodes:.1f}",
        f"{limit.plain_ms:.1f}",
        f"{limit.verification_cost:.2f}",
        f"{limit.drafting_cost:.2f}",
        limit.first_drafting_ms.text(0),
        f"{limit.ratio:.2f}",
        ratio_text(limit.steps_ratio),
        f"{limit.lowest:.2f}",
        ratio_text(limit.whole_ratio),
    ]
    other = f"{limit.other_texts} answers had another text than plain steps'."
    return table(head, [row]) + "\n" + other + "\n"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"
