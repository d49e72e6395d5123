"""The target's tokenizer and chat template, over the `tokenizers` package and jinja2.

Gives the ids and texts that transformers gives for the same tokenizer.json. A template may come from a server: it runs
in jinja2's sandbox, and sees plain strings only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import tokenizers
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moa_shared.errors import ModelSourceError
from moa_shared.models.sources.files import ModelFiles
from moa_shared.text.json_text import parse_json

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CORRUPT = "The file is truncated or corrupt: delete it and fetch the model again."


class Tokenizer:
    """Text to token ids and back.

    Args:
        backend: what tokenizer.json describes.
        chat_template: jinja2; None: the model has none.
        special: the names of special tokens ("eos_token") and how they are spelled.
    """

    def __init__(
        self, backend: tokenizers.Tokenizer, chat_template: str | None = None, special: Mapping[str, str] | None = None
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special = dict(special or {})
        self.chat_template = chat_template

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, as the tokenizer's configuration has it."""
        token = self._special.get("eos_token")
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; special tokens that are spelled out in it are found, none are added."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """The text of some tokens, spaces as they are."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def shown(self, ids: Sequence[int]) -> str:
        """The text of an answer's tokens as a reader sees it, and as stop strings are looked for: no special tokens."""
        return self.decode(ids, skip_special_tokens=True)

    def apply_chat_template(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = False) -> str:
        """The text of a conversation.

        Args:
            messages: `role` and `content` each.
            add_generation_prompt: end with what introduces an answer.

        Raises:
            jinja2.TemplateError: the template refuses the conversation, or makes no sense.
            ModelSourceError: there is no template.
        """
        if self.chat_template is None:
            raise ModelSourceError(
                "The target's tokenizer has no chat template.", hint="Serve a model that was trained for chat."
            )
        try:
            return _compile(self.chat_template).render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                **self._special,
            )
        except jinja2.TemplateError:
            raise
        except Exception as error:  # whatever an expression of the template raises
            raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error


def load_tokenizer(files: ModelFiles) -> Tokenizer:
    """The tokenizer of a target, with its chat template.

    Raises:
        ModelSourceError: the tokenizer's files cannot be read.
    """
    folder = files.tokenizer
    try:
        backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
        config = _read_json(folder / "tokenizer_config.json")
        special = _special_tokens(_read_json(folder / "special_tokens_map.json") | config)
        return Tokenizer(backend, _read_template(folder, config), special)
    except Exception as error:  # tokenizers raises a bare Exception on a damaged tokenizer.json
        raise ModelSourceError(
            f"The tokenizer of {files.target_id} in {folder} cannot be read ({error}).", hint=_CORRUPT
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    content = parse_json(path.read_text("utf-8")) if path.is_file() else {}
    if not isinstance(content, dict):
        raise TypeError(f"{path.name} is not a JSON object")
    return content


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; a token is its spelling, or an object with it."""
    found = {name: config[name] for name in _SPECIAL if config.get(name) is not None}
    return {name: str(token["content"] if isinstance(token, dict) else token) for name, token in found.items()}


def _read_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The chat template, from its own file or tokenizer_config.json: one template, or a list of named ones."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text("utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    return None if template is None else str(template)


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),  # the user's local time, as transformers has it
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment.from_string(template)


class _Generation(Extension):
    """`{% generation %}`, by which templates mark what a model writes: nothing but its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _Dict:
    """`dict` for templates: makes dictionaries, gives no way to the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore, which lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        values = dict(*args[1:], **kwargs)
        for name in values:
            _refuse_private(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_private(name)
        Namespace.__setitem__(self, name, value)


def _refuse_private(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template must not set {name!r}")


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without jinja2's escaping for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
