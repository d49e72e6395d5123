"""The suite's results as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from moa_bench.report.report import facts_line, table

MS = "ms: median (quartiles)"


def render(result: Mapping[str, Any]) -> str:
    """All tables of the measurements that the result holds."""
    sections: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "verification": _verification,
        "drafting": _drafting,
        "first_tokens": _first_tokens,
        "traffic": _traffic,
        "overhead": _overhead,
    }
    parts = [facts_line(result)]
    parts += [show(result) for key, show in sections.items() if key in result]
    return "\n".join(parts)


def _verification(result: Mapping[str, Any]) -> str:
    rows = [
        [
            cost.shape,
            cost.tokens,
            cost.bare_ms.text(),
            cost.encoded_rows,
            cost.whole_ms.text(),
            cost.ratio.text(2),
        ]
        for cost in result["verification"]
    ]
    head = ["fed at once", "tokens", "bare forward, ms", "rows encoded", "whole verification, ms", "ratio"]
    return (
        f"### Verification over the bare forward\n\nAfter {result['prefix_tokens']} tokens, {result['level']} "
        f"({result['execution']}). Ratios are of interleaved pairs.\n\n" + table(head, rows)
    )


def _drafting(result: Mapping[str, Any]) -> str:
    rows = [[cost.what, cost.ms.text(2), cost.ratio.text(3)] for cost in result["drafting"]]
    head = f"### Drafting\n\nThe drafter: {result['drafter']}; weights in int8.\n\n"
    return head + table(["piece", MS, "of a target forward of one token"], rows)


def _first_tokens(result: Mapping[str, Any]) -> str:
    rows = [[cost.way, cost.prompt_tokens, cost.ms.text(0), cost.ratio.text(2)] for cost in result["first_tokens"]]
    return "### Time to the first token\n\nOver loopback, from the question on an open connection.\n\n" + table(
        ["way", "prompt tokens", MS, "ratio to plain streaming"], rows
    )


def _traffic(result: Mapping[str, Any]) -> str:
    rows = [
        [
            way.way,
            way.prompt_tokens,
            way.tokens_a_verdict,
            way.up_a_token,
            way.down_a_token,
            way.whole.up,
            way.whole.down,
        ]
        for way in result["traffic"]
    ]
    answer_tokens = result["traffic"][0].answer_tokens
    head = ["way", "prompt tokens", "tokens a verdict", "up a token", "down a token", "up in all", "down in all"]
    return (
        f"### Bytes at the socket\n\nAnswers of {answer_tokens} tokens. A token: after the first ones of the answer. "
        "In all: connection, prompt and its memory included.\n\n" + table(head, rows)
    )


def _overhead(result: Mapping[str, Any]) -> str:
    rows = [
        [
            cost.way,
            cost.sessions,
            cost.rows,
            cost.step_ms.text(2),
            cost.forward_ms.text(2),
            cost.encoder_ms,
            _percent(cost.share.median),
            _percent(cost.serial_share),
            _percent(cost.cpu_share),
        ]
        for cost in result["overhead"]
    ]
    head = ["way", "sessions", "rows a forward", "step, ms", "the forward, ms", "the memory encoder, ms", "the rest"]
    head += ["the rest, of CPU time on the target's core", "of all CPU time"]
    return (
        "### Overhead of a step\n\nA step: from the beginning of one forward to that of the next. Forward and encoder: "
        "what the inference thread computed in them. CPU time does not count what other processes took. On the "
        "target's core: of the inference thread, and of the loop while it plans the next forward; all: frames too.\n\n"
        + table(head, rows)
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
