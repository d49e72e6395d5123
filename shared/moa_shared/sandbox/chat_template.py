"""Renders chat templates in jinja2's sandbox, as transformers renders them.

A template may come from a server: it sees plain JSON only, and operands that would fill the memory at once are
refused. It can still compute for hours with what is left, so only templates known by their hash are rendered in this
process; all others are rendered in a child with limits (child.py).
"""

import hashlib
import json
from collections.abc import Mapping, Sequence, Sized
from contextlib import suppress
from datetime import datetime
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from moa_shared.sandbox.tokenizer_json import read_bos, read_special, read_templates, read_tokenizer

Messages = Sequence[Mapping[str, Any]]  # JSON, as all that a template is given
# sha256 of templates that were read by us: the default model's.
KNOWN = frozenset({"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788"})
MOST_BITS = 4096  # of a product or a power
MOST_ITEMS = 1 << 20  # of a text or list that is repeated


def is_known(template: str) -> bool:
    """Whether this very template may be rendered in any process."""
    return hashlib.sha256(template.encode("utf-8", "surrogatepass")).hexdigest() in KNOWN


def render(
    template: str,
    special: Mapping[str, str],
    messages: Messages,
    *,
    add_generation_prompt: bool,
    arguments: Mapping[str, Any],
) -> str:
    """The text of a conversation; jinja2.TemplateError: the template refuses it, or makes no sense.

    `messages`: `role` and `content` each, and the calls of tools. `arguments`: what else it is given, such as tools.
    """
    try:
        return _compile(template).render(
            {"tools": None, "documents": None, **special, **arguments},
            messages=[dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt,
        )
    except (jinja2.TemplateError, MemoryError):
        raise
    except Exception as error:  # whatever an expression of the template raises
        raise jinja2.TemplateError(f"{type(error).__name__}: {error}") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        items, times = (left, right) if isinstance(left, Sized) else (right, left)
        size, most = 0, MOST_BITS
        if isinstance(left, int) and isinstance(right, int):
            size = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
        elif isinstance(items, Sized) and isinstance(times, int):
            size, most = len(items) * times, MOST_ITEMS
        if size > most:
            raise SecurityError(f"a chat template must not compute so large a {operator}")
        return super().call_binop(context, operator, left, right)


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals |= {
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),  # the user's local time, as transformers has it
        "dict": lambda *args, **kwargs: dict(*args, **kwargs),  # gives no way to the type
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


class _Namespace(Namespace):
    """jinja2's namespace without names that begin with an underscore, which lead out of the sandbox."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(name, str) and name.startswith("_"):
            raise SecurityError(f"a chat template must not set {name!r}")
        Namespace.__setitem__(self, name, value)


def _raise_exception(message: object) -> None:
    raise jinja2.TemplateError(str(message))


TRIAL_IDS = 1000
TRIAL_TEXTS = (
    "Hi", "def f(x):\n    return x + 1\n\n\n", "a" * 200 + "b", " " * 200 + "x", "\t\r\n" * 50, "1234567890" * 20,
    "<|im_start|>user\n'll we?", "日本語 e\u0301 é ﷺ ½ 👩‍👩‍👧", "\ufeff\u00a0\u2028\x00\x1b[0m", "!?.,;" * 40,
)  # fmt: skip
TRIAL_CONVERSATION = tuple(
    {"role": role, "content": f"What is {role}?"} for role in ("system", "user", "assistant", "user")
)


def try_files(folder: str) -> None:
    """Loads the tokenizer in `folder`, and uses it and its chat templates a little; whatever is wrong is raised."""
    described = read_tokenizer(Path(folder))
    special = read_special(Path(folder))
    read_bos(Path(folder), described, special)
    for text in TRIAL_TEXTS:
        described.decode(described.encode(text), skip_special_tokens=True)
    described.decode(range(TRIAL_IDS))
    conversations = (TRIAL_CONVERSATION, TRIAL_CONVERSATION[1:], TRIAL_CONVERSATION[1:2])
    for template, messages in product(read_templates(Path(folder)).values(), conversations):
        with suppress(jinja2.TemplateError):  # such as a template that knows no system prompt
            render(template, special, messages, add_generation_prompt=True, arguments={})
