"""The target's tokenizer and chat template, over the `tokenizers` package and jinja2.

Gives the ids and texts that transformers gives for the same tokenizer.json. A file may come from a server: its template
is rendered, and text is encoded by expressions that are not known here, in a child process with limits.
Invariant: a panic of `tokenizers` is raised as a ModelSourceError, not as the BaseException that it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import tokenizers

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.models.tokenizer.token_bytes import token_bytes
from moa_shared.sandbox import chat_template as sandbox
from moa_shared.sandbox.child import ChildError, text_child
from moa_shared.sandbox.patterns import KNOWN, patterns_in
from moa_shared.sandbox.tokenizer_files import (
    failure,
    read_backend,
    read_bos,
    read_special,
    read_template,
    without_panics,
)

_CORRUPT = "The file is truncated or corrupt: delete it and fetch the model again."


class Tokenizer:
    """Text to token ids and back.

    Args:
        backend: what tokenizer.json describes.
        chat_template: jinja2; None: the model has none.
        special: the names of special tokens ("eos_token") and how they are spelled.
        folder: of a tokenizer.json that may take for ever with some texts: they are encoded in a child process.
        bos: the token that a raw text begins with; None: it begins with its own first.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        chat_template: str | None = None,
        special: Mapping[str, str] | None = None,
        folder: Path | None = None,
        bos: int | None = None,
    ) -> None:
        self._backend = backend
        self._folder = folder
        self._bos = bos
        self._special = dict(special or {})
        self.chat_template = chat_template

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, as the tokenizer's configuration has it."""
        token = self._special.get("eos_token")
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens that are spelled out in it are found, none are added.

        Raises:
            ModelSourceError: the tokenizer cannot encode this text, or takes too much for it.
        """
        if self._folder is not None:
            try:
                return text_child().encode(self._folder, text)
            except ChildError as error:
                raise failure(error) from None
        with without_panics():
            # as a batch, since that lets other threads run meanwhile
            return self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def token_id(self, text: str) -> int | None:
        """The token that is spelled so; None: there is none."""
        number: int | None = self._backend.token_to_id(text)
        return number

    @property
    def size(self) -> int:
        """How many tokens there are, with all added ones."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def vocabulary(self) -> dict[str, int]:
        """The ids of all tokens, added ones too, by how the vocabulary spells them."""
        return self._backend.get_vocab(with_added_tokens=True)

    @property
    def special_tokens(self) -> dict[str, int]:
        """The ids of special tokens by how they are spelled."""
        added = self._backend.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    def to_json(self) -> str:
        """What tokenizer.json describes, with all added tokens."""
        with without_panics():
            return self._backend.to_str()

    def with_bos(self, ids: list[int]) -> list[int]:
        """The tokens of a text that no chat template has made, after BOS where the model's files say so."""
        return ids if self._bos is None or ids[:1] == [self._bos] else [self._bos, *ids]

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens, spaces as they are."""
        with without_panics():
            return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token: int) -> bytes:
        """What one token adds to a text, in UTF-8; of a part of a character its bytes, of no token nothing."""
        piece = self._backend.id_to_token(token)
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
        """The text of a conversation.

        Args:
            messages: `role` and `content` each, and the calls of tools.
            add_generation_prompt: end with what introduces an answer.
            arguments: what else the template is given, by name, such as tools.

        Raises:
            jinja2.TemplateError: the template refuses the conversation, makes no sense, or takes too much.
            ModelSourceError: there is no template.
        """
        if not self.chat_template:
            raise ModelSourceError(
                "The target's tokenizer has no chat template.",
                hint="Serve a model that was trained for chat, or ask for raw text: POST /v1/completions.",
            )
        template, special = self.chat_template, self._special
        render = sandbox.render if sandbox.is_known(template) else text_child().render
        try:
            return render(
                template, special, messages, add_generation_prompt=add_generation_prompt, arguments=arguments or {}
            )
        except ChildError as error:
            raise jinja2.TemplateError(str(error)) from None

    def prepare(self) -> None:
        """Starts the child process, if one is needed, so that the first question need not wait for it."""
        if self._folder is not None or (self.chat_template is not None and not sandbox.is_known(self.chat_template)):
            text_child().start()


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a target, with its chat template.

    Raises:
        ModelSourceError: the tokenizer's files cannot be read.
    """
    folder = files.tokenizer
    try:
        backend = read_backend(folder)
        bounded = None if _is_bounded(backend) else folder
        special = read_special(folder)
        return Tokenizer(backend, read_template(folder), special, bounded, read_bos(folder, backend, special))
    except Exception as error:  # tokenizers raises a bare Exception on a damaged tokenizer.json
        raise ModelSourceError(
            f"The tokenizer of {files.target_id} in {folder} cannot be read ({error}).", hint=_CORRUPT
        ) from error


def _is_bounded(backend: tokenizers.Tokenizer) -> bool:
    """Whether encoding takes time in proportion to the text's length: byte pairs, cut by expressions known here."""
    steps = [json.loads(step.__getstate__()) for step in (backend.normalizer, backend.pre_tokenizer) if step]
    model = backend.model
    plain = isinstance(model, tokenizers.models.BPE) and not model.continuing_subword_prefix
    return plain and patterns_in(steps) <= KNOWN
