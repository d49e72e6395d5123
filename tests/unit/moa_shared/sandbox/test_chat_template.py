from __future__ import annotations

import jinja2
import pytest
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.sandbox.chat_template import is_known, render


def shown(template: str) -> str:
    return render(template, {}, [{"role": "user", "content": "Hi"}], add_generation_prompt=True, arguments={})


@pytest.mark.parametrize(
    "expression",
    [
        "3 ** (10 ** 9)",
        "(-3) ** 10000",
        "messages | length ** (10 ** 9)",
        "'a' * 10 ** 9",
        "10 ** 9 * 'a'",
        "[1] * 10 ** 9",
        "(10 ** 1000) * (10 ** 1000)",
        "range(10 ** 12) | list",
        "range(0, -(10 ** 30), -1) | list",
    ],
)
def test_operands_that_would_fill_the_memory_are_refused(expression: str) -> None:
    with pytest.raises(jinja2.TemplateError, match="must not"):
        shown("{{ " + expression + " }}")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("2 ** 10", "1024"),
        ("2 ** -1", "0.5"),
        ("1.5 * 2", "3.0"),
        ("3 * 4", "12"),
        ("'ab' * 3", "ababab"),
        ("2 * [1]", "[1, 1]"),
        ("range(3) | list", "[0, 1, 2]"),
        ("range(9, 0, -4) | list", "[9, 5, 1]"),
        ("range(messages | length) | length", "1"),
    ],
)
def test_what_templates_compute(expression: str, text: str) -> None:
    assert shown("{{ " + expression + " }}") == text


def test_the_default_models_template_is_known(default_model_files: ModelFiles) -> None:
    template = load_tokenizer(default_model_files).chat_template or ""
    assert is_known(template)
    assert not is_known(template + " ")
