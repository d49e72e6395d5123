"""The suite's results as Markdown."""

from collections.abc import Mapping
from typing import Any

from moa_bench.report.report import Column, facts_line, table_of

MS = "ms: median (quartiles)"
VERIFICATION: tuple[Column, ...] = (
    ("fed at once", "{0.shape}"),
    ("tokens", "{0.tokens}"),
    ("bare forward, ms", "{0.bare_ms:1}"),
    ("rows encoded", "{0.encoded_rows}"),
    ("whole verification, ms", "{0.whole_ms:1}"),
    ("ratio", "{0.ratio:2}"),
)
DRAFTING: tuple[Column, ...] = (
    ("piece", "{0.what}"),
    (MS, "{0.ms:2}"),
    ("of a target forward of one token", "{0.ratio:3}"),
)
FIRST_TOKENS: tuple[Column, ...] = (
    ("way", "{0.way}"),
    ("prompt tokens", "{0.prompt_tokens}"),
    (MS, "{0.ms:0}"),
    ("ratio to plain streaming", "{0.ratio:2}"),
)
TRAFFIC: tuple[Column, ...] = (
    ("way", "{0.way}"),
    ("prompt tokens", "{0.prompt_tokens}"),
    ("tokens a verdict", "{0.tokens_a_verdict}"),
    ("up a token", "{0.up_a_token}"),
    ("down a token", "{0.down_a_token}"),
    ("up in all", "{0.whole.up}"),
    ("down in all", "{0.whole.down}"),
)


def render(result: Mapping[str, Any]) -> str:
    parts = [facts_line(result)]
    if "verification" in result:
        note = (
            f"### Verification over the bare forward\n\nAfter {result['prefix_tokens']} tokens, {result['level']} "
            f"({result['execution']}). Ratios are of interleaved pairs.\n"
        )
        parts += [note, table_of(VERIFICATION, result["verification"])]
    if "drafting" in result:
        note = f"### Drafting\n\nThe drafter: {result['drafter']}; weights in int8.\n"
        parts += [note, table_of(DRAFTING, result["drafting"])]
    if "first_tokens" in result:
        note = "### Time to the first token\n\nOver loopback, from the question on an open connection.\n"
        parts += [note, table_of(FIRST_TOKENS, result["first_tokens"])]
    if "traffic" in result:
        note = (
            f"### Bytes at the socket\n\nAnswers of {result['traffic'][0].answer_tokens} tokens. A token: after the "
            "first ones of the answer. In all: connection, prompt and its memory included.\n"
        )
        parts += [note, table_of(TRAFFIC, result["traffic"])]
    return "\n".join(parts)
