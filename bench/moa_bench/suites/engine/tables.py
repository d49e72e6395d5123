"""What `moa-bench engine` found, as Markdown."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report import Column, facts_line, table, table_of

LIMITS: tuple[Column, ...] = (
    ("engine", "{0[0].engine}"),
    ("context", "{0[0].context}"),
    ("plain step, ms", "{0[0].ms:1}"),
    ("reading its bytes, ms", "{0[1].ms:1}"),
    ("ratio", lambda pair: f"{pair[0].ms.median / pair[1].ms.median:.2f}"),
)


def render(result: Mapping[str, Any]) -> str:
    parts = [facts_line(result)]
    for context in dict.fromkeys(cost.context for cost in result["forwards"]):
        parts += [f"### A forward after {context} tokens, ms\n", _forwards(result, context)]
    parts += ["### Reading a prompt, ms a token\n", _prompts(result)]
    parts += ["### The plain step over its limit\n", _limits(result)]
    return "\n".join(parts)


def _forwards(result: Mapping[str, Any], context: int) -> str:
    costs = [cost for cost in result["forwards"] if cost.context == context]
    counts = sorted({cost.rows for cost in costs})
    rows = []
    for engine in dict.fromkeys(cost.engine for cost in costs):
        found = {cost.rows: cost for cost in costs if cost.engine == engine}
        cells = [f"{found[count].ms.median:.1f}" if count in found else "" for count in counts]
        cells += [f"{found[count].to_step.median:.2f}" if count in found else "" for count in (8, 16)]
        rows.append([engine, *cells])
    limit = next(limit for limit in result["limits"] if limit.context == context)
    rows.append(["memory limit", f"{limit.ms.median:.1f}", *[""] * (len(counts) + 1)])
    heads = ["1 row" if count == 1 else str(count) for count in counts]
    return table(["engine", *heads, "8 rows over 1", "16 over 1"], rows)


def _prompts(result: Mapping[str, Any]) -> str:
    costs, memory, load_s = result["prompts"], result["memory"], result["load_s"]
    contexts = list(dict.fromkeys(cost.context for cost in costs))
    rows = []
    for engine in dict.fromkeys(cost.engine for cost in costs):
        found = {cost.context: cost.ms_a_token for cost in costs if cost.engine == engine}
        read = [f"{found[context].median:.2f}" for context in contexts]
        rows.append([engine, *read, f"{memory[engine]:.0f}", f"{load_s[engine]:.1f}"])
    return table(["engine", *(f"{context} tokens" for context in contexts), "resident then, MB", "start, s"], rows)


def _limits(result: Mapping[str, Any]) -> str:
    limits, forwards = result["limits"], result["forwards"]
    pairs = [(cost, limit) for limit in limits for cost in forwards if (cost.context, cost.rows) == (limit.context, 1)]
    note = (
        f"The bytes of a step in the file's own format, and keys and values in float16: {limits[0].mb:.0f} MB after "
        f"{limits[0].context} tokens. One core reads {limits[0].gb_s:1} GB/s.\n\n"
    )
    return note + table_of(LIMITS, pairs)
