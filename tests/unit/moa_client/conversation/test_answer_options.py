from __future__ import annotations

from dataclasses import fields

from moa_client.conversation.answer_options import OPTION_NAMES, AnswerOptions


def test_every_option_has_its_place_among_the_names() -> None:
    """But a constraint and what is told of chances, which programs alone set."""
    assert sorted([*OPTION_NAMES, "constraint", "chances"]) == sorted(each.name for each in fields(AnswerOptions))
