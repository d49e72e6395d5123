"""The target's chat template, a turn at a time: which tokens to append so that the conversation continues.

The answer's own tokens are never made again from text, but where a program sends a whole conversation in text.
Pure over a tokenizer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jinja2 import TemplateError

from moa_shared.errors import ModelSourceError

if TYPE_CHECKING:
    from moa_shared.models.tokenizer.tokenizer import Tokenizer

MARK = "\x02answer\x03"  # takes an answer's place while the template around it is looked up


class ChatTemplate:
    """Renders turns.

    Args:
        tokenizer: of the target, with a chat template.
        system: the system prompt; None: the template's own default.

    Raises:
        ModelSourceError: the tokenizer has no chat template; rendering raises it if the template refuses.
    """

    def __init__(self, tokenizer: Tokenizer, system: str | None = None) -> None:
        if not tokenizer.chat_template:
            raise ModelSourceError(
                "The target's tokenizer has no chat template.", hint="Serve a model that was trained for chat."
            )
        self._tokenizer = tokenizer
        self._start = [] if system is None else [{"role": "system", "content": system}]

    def first_turn(self, text: str) -> list[int]:
        """Tokens of a new conversation up to where the answer begins."""
        return self._tokenizer.encode(self._render([*self._start, {"role": "user", "content": text}], answer=True))

    def next_turn(self, text: str, committed: Sequence[int]) -> list[int]:
        """Tokens to append to a conversation that ends with an answer, up to where the next one begins."""
        before = [*self._start, {"role": "user", "content": "?"}, {"role": "assistant", "content": MARK}]
        whole = self._render([*before, {"role": "user", "content": text}], answer=True)
        if MARK not in whole:
            raise ModelSourceError(
                "The target's chat template does not repeat earlier answers.", hint="Start a new conversation: /reset."
            )
        after = self._tokenizer.encode(whole.split(MARK, 1)[1])
        # An answer that ended by itself holds the end-of-turn token; one that was cut is closed here.
        return after[1:] if after and committed and committed[-1] == after[0] else after

    def whole(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Tokens of a whole conversation up to where its next answer begins.

        Args:
            messages: `role` (system, user or assistant) and `content` each; the system prompt is among them, if any.

        Raises:
            ModelSourceError: the template refuses them, or leaves out what the system or the user says.
        """
        text = self._render(messages, answer=True, hint="Send other messages, or serve another model.")
        for number, message in enumerate(messages):  # of answers, templates may leave out how they came about
            if message["role"] != "assistant" and message["content"].strip() not in text:
                raise ModelSourceError(
                    f"The target's chat template leaves out message {number}, which is of the role {message['role']}.",
                    hint="Send other messages, or serve another model.",
                )
        return self._tokenizer.encode(text)

    def _render(
        self,
        messages: Sequence[Mapping[str, str]],
        *,
        answer: bool,
        hint: str = "Leave out --system, or serve another model.",
    ) -> str:
        try:
            return self._tokenizer.apply_chat_template(messages, add_generation_prompt=answer)
        except TemplateError as error:  # such as a template that knows no system prompt
            raise ModelSourceError(
                f"The target's chat template refuses the conversation: {str(error).rstrip('.')}.", hint=hint
            ) from None
