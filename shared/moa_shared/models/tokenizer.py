"""The target's tokenizer and chat template, over tokenizer.json and jinja2.

Ids and texts are transformers'. A file may come from a server: its template is rendered, and text is encoded by steps
that are not known to be quick, in a child process with limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2

from moa_shared.errors import ModelSourceError
from moa_shared.models.files import ModelFiles
from moa_shared.sandbox import chat_template as sandbox
from moa_shared.sandbox import tokenizer_json
from moa_shared.sandbox.child import ChildError, text_child
from moa_shared.sandbox.tokenizer_json import token_bytes


class Tokenizer:
    """Text to token ids and back, as tokenizer.json describes it; `folder`: of the chat template and of BOS, if any."""

    def __init__(self, described: tokenizer_json.JsonTokenizer, folder: Path | None = None) -> None:
        self._described, self.text = described, described.text  # that of tokenizer.json
        self._slow = None if described.is_bounded else folder  # whose texts may take for ever: in a child process
        self._special = tokenizer_json.read_special(folder) if folder is not None else {}
        self._bos = tokenizer_json.read_bos(folder, described, self._special) if folder is not None else None
        self._chat_templates = tokenizer_json.read_templates(folder) if folder is not None else {}
        self.chat_template = self._chat_templates.get(tokenizer_json.DEFAULT)
        self.vocabulary: Mapping[str, int] = described.vocabulary  # all tokens, added ones too, as they are spelled
        self.size = len(self.vocabulary)
        self.special_tokens: Mapping[str, int] = described.special
        self.eos_token_id = self.vocabulary.get(self._special.get("eos_token", ""))

    def with_tools(self) -> Tokenizer:
        """The same for conversations with tools: for these, a model may have a chat template of its own."""
        if tokenizer_json.WITH_TOOLS not in self._chat_templates:
            return self
        other = copy(self)
        other.chat_template = self._chat_templates[tokenizer_json.WITH_TOOLS]
        return other

    def encode(self, text: str, *, is_guarded: bool = False) -> list[int]:
        """Token ids of a text; special tokens that are spelled out in it are found, none are added.

        `is_guarded`: parts of it are of `as_letters`. ModelSourceError: it takes too much, or has no tokens.
        """
        try:
            if self._slow is not None:
                given = {"folder": str(self._slow), "text": text, "is_guarded": is_guarded}
                return list(text_child().ask("moa_shared.sandbox.tokenizer_json:encode_text", **given))
            return self._described.encode(text, is_guarded=is_guarded)
        except (ChildError, ValueError) as error:
            raise _failure(error) from None

    def as_letters(self, text: str, but: Sequence[str] = ()) -> str:
        """A text of others for a prompt: encoded as `is_guarded`, it has no special tokens, whatever it spells.

        Nor has it other added tokens that the chat template writes; `but`: texts whose tokens it may have.
        """
        begins, lengths, tokens = self._controls
        parts, end = [], 0
        for place in begins.finditer(text):
            start = place.start()
            spelled = {text[start : start + length] for length in lengths[place[0]]} & tokens
            if any(not any(token in each for each in but) for token in spelled):
                parts += [text[end : start + 1], tokenizer_json.GUARD]
                end = start + 1
        return "".join([*parts, text[end:]])

    @cached_property
    def _controls(self) -> tuple[re.Pattern[str], dict[str, set[int]], set[str]]:
        described, template = self._described, self.chat_template or ""
        tokens = {each for each in described.added if each in described.special or (each.strip() and each in template)}
        lengths: dict[str, set[int]] = {}
        for token in filter(None, tokens):
            lengths.setdefault(token[0], set()).add(len(token))
        return re.compile("[" + "".join(map(re.escape, lengths)) + "]" if lengths else r"(?!)"), lengths, tokens

    def with_bos(self, ids: list[int]) -> list[int]:
        """The tokens of a text that no chat template has made, after BOS where the model's files say so."""
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens, spaces as they are."""
        try:
            return self._described.decode(ids, skip_special_tokens=skip_special_tokens)
        except ValueError as error:
            raise _failure(error) from None

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text, in UTF-8; of a part of a character its bytes, of no token nothing."""
        piece = self._described.token(token)
        return token_bytes(piece, self.decode([token])) if piece is not None else b""

    def shown(self, ids: Sequence[int]) -> str:
        """The text of an answer's tokens as a reader sees it, and as stop strings are looked for: no special tokens."""
        return self.decode(ids, skip_special_tokens=True)

    def apply_chat_template(
        self,
        messages: sandbox.Messages,
        *,
        add_generation_prompt: bool = False,
        arguments: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of a conversation; arguments are those of `sandbox.render`."""
        if not self.chat_template:
            raise no_template()
        given: dict[str, Any] = {
            "template": self.chat_template,
            "special": dict(self._special),
            "messages": [dict(each) for each in messages],
            "add_generation_prompt": add_generation_prompt,
            "arguments": dict(arguments or {}),
        }
        if sandbox.is_known(self.chat_template):
            return sandbox.render(**given)
        try:
            return str(text_child().ask("moa_shared.sandbox.chat_template:render", **given))
        except ChildError as error:
            raise jinja2.TemplateError(str(error)) from None

    def prepare(self) -> None:
        """Starts the child process, if one is needed, so that the first question need not wait for it."""
        if self._slow is not None or (self.chat_template is not None and not sandbox.is_known(self.chat_template)):
            text_child().start()


def no_template() -> ModelSourceError:
    hint = "Serve a model that was trained for chat, or ask for raw text: POST /v1/completions."
    return ModelSourceError("The target's tokenizer has no chat template.", hint=hint)


def _failure(error: Exception) -> ModelSourceError:
    hint = "Send another text, or use another model."
    return ModelSourceError(f"The target's tokenizer has failed: {str(error).rstrip('.')}.", hint=hint)


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a target, with its chat template; ModelSourceError: its files cannot be read."""
    folder = files.folder
    try:
        return Tokenizer(tokenizer_json.read_tokenizer(folder), folder)
    except (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        raise ModelSourceError(
            f"The tokenizer of {files.target_id} in {folder} cannot be read ({error}).",
            hint="If the file is truncated or corrupt, delete it and fetch the model again; else use another model.",
        ) from error
