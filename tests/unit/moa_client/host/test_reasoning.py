"""How a device's model marks reasoning, of templates in the manner of the families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from moa_client.host.reasoning import answer_decode, reasoning_marks
from moa_shared.sandbox.chat_template import render

from tests.support.thinking_templates import DEEPSEEK, GPT_OSS, QWEN, QWEN_THINKING


class Templated:
    """A tokenizer, as far as its template."""

    special_tokens: Mapping[str, int] = {"<|channel|>": 1, "<|end|>": 2}

    def __init__(self, chat_template: str) -> None:
        self.chat_template = chat_template

    def apply_chat_template(
        self, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool, arguments: Mapping[str, Any]
    ) -> str:
        return render(
            self.chat_template, {}, messages, add_generation_prompt=add_generation_prompt, arguments=arguments
        )


def marks(chat_template: str) -> Any:
    return reasoning_marks(cast("Any", Templated(chat_template)))


def test_what_opens_reasoning_and_what_may_be_asked() -> None:
    assert marks("{{ messages }}") is None
    assert (marks(QWEN).opened, "none" in marks(QWEN).efforts) == ((), True)
    assert marks(QWEN_THINKING).opened == ("", "medium")
    assert marks(QWEN_THINKING).efforts == ("medium",)
    assert "none" not in marks(DEEPSEEK).opened
    assert "high" in marks(DEEPSEEK).opened
    assert marks(GPT_OSS).efforts == ("low", "medium", "high")


def test_special_tokens_are_spelled_where_they_mark_reasoning() -> None:
    for template, is_spelled in ((GPT_OSS, True), (QWEN, False), ("{{ messages }}", False)):
        device = SimpleNamespace(tokenizer=Templated(template), decode=object(), spelled=object())
        expected = device.spelled if is_spelled else device.decode
        assert answer_decode(cast("Any", device)) is expected
