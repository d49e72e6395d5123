from __future__ import annotations

from dataclasses import fields

from moa_client.conversation.answer_options import OPTION_NAMES, AnswerOptions


def test_every_option_has_its_place_among_the_names() -> None:
    """But what programs alone set, and tools with their results, which are the conversation's."""
    others = ["constraint", "chances", "tools", "results"]
    assert sorted([*OPTION_NAMES, *others]) == sorted(each.name for each in fields(AnswerOptions))
