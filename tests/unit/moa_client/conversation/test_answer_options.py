from __future__ import annotations

from dataclasses import fields

from moa_client.conversation.answer_options import OPTION_NAMES, AnswerOptions


def test_every_option_has_its_place_among_the_names() -> None:
    """But a constraint, which programs alone set, and tools with their results, which are the conversation's."""
    assert sorted([*OPTION_NAMES, "constraint", "tools", "results"]) == sorted(
        each.name for each in fields(AnswerOptions)
    )
