"""Results of the engine suites as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import facts_line, machine_line, table

LIMIT = "memory limit"


def render(result: Mapping[str, Any]) -> str:
    """Forwards by context, prompts, the limit, start-up; or products; or models in real sizes."""
    if "products" in result:
        return render_products(result)
    if "sizes" in result:
        return render_sizes(result)
    parts = [facts_line(result)]
    for context in dict.fromkeys(cost.context for cost in result["forwards"]):
        parts += [f"### A forward after {context} tokens, ms\n", _forwards(result, context)]
    parts += ["### Reading a prompt, ms a token\n", _prompts(result["prompts"], result["memory"])]
    parts += ["### The plain step over its limit\n", _limits(result)]
    parts += ["### Start-up and memory\n", _starts(result)]
    return "\n".join(parts)


def _forwards(result: Mapping[str, Any], context: int) -> str:
    costs = [cost for cost in result["forwards"] if cost.context == context]
    counts = sorted({cost.rows for cost in costs})
    rows = []
    for engine in dict.fromkeys(cost.engine for cost in costs):
        found = {cost.rows: cost for cost in costs if cost.engine == engine}
        cells = [f"{found[count].ms.median:.1f}" if count in found else "" for count in counts]
        rows.append(
            [engine, *cells, *(f"{found[count].to_step.median:.2f}" if count in found else "" for count in (8, 16))]
        )
    head = ["engine", *(_rows(count) for count in counts), "8 rows over 1", "16 over 1"]
    limit = next(limit for limit in result["limits"] if limit.context == context)
    rows.append([LIMIT, f"{limit.ms.median:.1f}", *[""] * (len(head) - 2)])
    return table(head, rows)


def _rows(count: int) -> str:
    return "1 row" if count == 1 else str(count)


def _prompts(costs: list[Any], memory: Mapping[str, float]) -> str:
    contexts = list(dict.fromkeys(cost.context for cost in costs))
    rows = []
    for engine in dict.fromkeys(cost.engine for cost in costs):
        found = {cost.context: cost.ms_a_token for cost in costs if cost.engine == engine}
        rows.append([engine, *(f"{found[context].median:.2f}" for context in contexts), f"{memory[engine]:.0f}"])
    return table(["engine", *(f"{context} tokens" for context in contexts), "resident then, MB"], rows)


def _limits(result: Mapping[str, Any]) -> str:
    rows = []
    for limit in result["limits"]:
        for cost in result["forwards"]:
            if (cost.context, cost.rows) == (limit.context, 1):
                over = cost.ms.median / limit.ms.median
                rows.append([cost.engine, cost.context, cost.ms.text(), limit.ms.text(), f"{over:.2f}"])
    first = result["limits"][0]
    note = (
        f"The bytes of a step in the file's own format, and keys and values in float16: {first.mb:.0f} MB after "
        f"{first.context} tokens. One core reads {first.gb_s.text()} GB/s.\n\n"
    )
    return note + table(["engine", "context", "plain step, ms", "reading its bytes, ms", "ratio"], rows)


def _starts(result: Mapping[str, Any]) -> str:
    rows = [
        [cost.program, cost.until, cost.ms.text(0), cost.peak_mb.text(0) if cost.peak_mb else "unknown"]
        for cost in result["starts"]
    ]
    return "Server and client, the model fetched and in the disk's cache.\n\n" + table(
        ["program", "until", "ms: median (quartiles)", "most memory, MB"], rows
    )


def render_products(result: Mapping[str, Any]) -> str:
    """The table of products by format and rows."""
    speeds = [
        [
            each.kind,
            f"{each.bits:.2f}",
            str(each.rows),
            each.gmacs.text(0),
            f"{100 * each.of_peak.median:.0f} %",
            each.gb_s.text(1),
            f"{100 * each.of_memory.median:.0f} %",
        ]
        for each in result["products"]
    ]
    note = f"One core, the variant {result['variant']}, weights that no cache holds.\n"
    head = ["format", "bits", "rows", "GMAC/s", "of the instructions alone", "GB/s of weights", "of reading memory"]
    return "\n".join([machine_line(result), note, table(head, speeds)])


def render_sizes(result: Mapping[str, Any]) -> str:
    """A row for each model and engine."""
    rows = [
        [
            cost.model,
            cost.engine,
            f"{cost.file_mb:.0f}",
            f"{cost.first_s:.1f}",
            f"{cost.later_s:.1f}",
            f"{cost.resident_mb:.0f}",
            f"{cost.step_ms.median:.1f}",
            f"{cost.to_reading.median:.2f}",
            f"{cost.tree_to_step.median:.2f}" if cost.tree_to_step else "",
            f"{cost.prompt_ms.median:.2f}",
        ]
        for cost in result["sizes"]
    ]
    note = (
        f"Random weights in the shapes and mixtures of published files, one thread, after {result['effort'].context} "
        "tokens. A first start packs the weights, a later one maps them; both until the engine can be asked.\n"
    )
    head = ["model", "engine", "file, MB", "first start, s", "later, s", "resident, MB", "plain step, ms"]
    head += ["over reading its bytes", "8 rows over 1", "prompt, ms a token"]
    return "\n".join([facts_line(result), note, table(head, rows)])
