"""What the clients of a fleet met, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from moa_bench.report.report import facts_line, machine_line, table

if TYPE_CHECKING:
    from moa_bench.fleet.outcome import Resumes
    from moa_bench.fleet.scenarios import FleetEffort
    from moa_bench.fleet.throughput import Throughput


def render(result: Mapping[str, Any], name: str) -> str:
    """One scenario: what happened, what the clients met, resumes, and each replica's share."""
    played = result["scenarios"][name]
    effort: FleetEffort = result["effort"]
    met = played["outcome"]
    head = ["answers", "through an incident", "lost", "different", "median stall, s", "longest", "tokens/s"]
    tokens = sum(share.tokens for share in met.shares)
    row = [
        met.answers, met.through, met.lost, met.different, f"{met.stall_median_s:.2f}", f"{met.stall_longest_s:.2f}",
        f"{tokens / met.seconds:.1f}" if met.seconds else "",
    ]  # fmt: skip
    resumes: list[list[object]] = [
        ["with its KV", *_resumes(met.warm)],
        ["without", *_resumes(met.cold)],
        ["new question", "", "", "", f"{met.first_text_s:.2f}", ""],
        ["new question, undisturbed and alone", "", "", "", f"{played['alone_first_s']:.2f}", ""],
    ]
    parts = [
        facts_line(result),
        _note(result, played, effort),
        table(head, [row]),
        table(["stream", "count", "text, tokens", "opened in, s", "text in, s", "longest"], resumes),
        table(
            ["replica", "streams", "tokens", "share of tokens"],
            [
                [f"{number}", share.streams, share.tokens, f"{share.tokens / tokens:.0%}" if tokens else ""]
                for number, share in enumerate(met.shares, 1)
            ],
        ),
    ]
    if played["facts"]:
        parts.append(table(list(played["facts"]), [[f"{value:g}" for value in played["facts"].values()]]))
    return "\n".join(parts)


def _note(result: Mapping[str, Any], played: Mapping[str, Any], effort: FleetEffort) -> str:
    """What was done, and under whom."""
    padding = f" {effort.padding.description}" if effort.padding is not None else ""
    return (
        f"{played['done']} {played['title']}{'' if played['is_complete'] else ' (interrupted)'} under {effort.clients} "
        f"clients that ask again and again for answers of {effort.answer_tokens} tokens; a drain's grace is "
        f"{effort.grace_s:g} s; drafter {result['drafter']}, {result['level']}.{padding}\n"
    )


def _resumes(resumes: Resumes) -> list[object]:
    if not resumes.count:
        return [0, "", "", "", ""]
    return [
        resumes.count,
        f"{resumes.text_median:.0f}",
        f"{resumes.open_median_s:.2f}",
        f"{resumes.median_s:.2f}",
        f"{resumes.longest_s:.2f}",
    ]


def render_throughput(result: Mapping[str, Any]) -> str:
    """One row for each comparison."""
    met: Throughput = result["throughput"]
    rows = [
        [f"{met.users} on each replica", met.one.text(), met.two.text(), met.ratio.text(2)],
        [f"{2 * met.users} in all", met.one_full.text(), met.two.text(), met.full_ratio.text(2)],
    ]
    head = ["users", "one replica on one core, tokens/s", "two on two", "ratio of pairs"]
    how = f", one thread each, each replica pinned to a core, {met.one.count} interleaved rounds"
    return "\n".join([machine_line(result, how), table(head, rows)])
