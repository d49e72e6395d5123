"""How tokens, provenance and times are stored: as few bytes as plain code can read. Pure."""

from __future__ import annotations

import json
import sys
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from moa_client.conversation.answer_options import AnswerOptions, options_from

if TYPE_CHECKING:
    from moa_client.conversation.text_runs import Provenance

# What a record does not name. Greedy: so were all answers before the model had a say.
_OFF = AnswerOptions(loop_guard=False).decided()
_TOKEN = next(code for code in "ILQ" if array(code).itemsize == 4)


def pack_tokens(tokens: Sequence[int]) -> bytes:
    """Four bytes a token, least significant first."""
    return _swapped(array(_TOKEN, tokens)).tobytes()


def unpack_tokens(packed: bytes) -> tuple[int, ...]:
    """The tokens that `pack_tokens` packed."""
    return tuple(_swapped(array(_TOKEN, packed)))


def pack_provenance(provenance: Sequence[Provenance]) -> bytes:
    """One letter a token: see `Provenance`."""
    return "".join(each.letter for each in provenance).encode()


def pack_options(options: AnswerOptions) -> str:
    """As JSON, without what is off."""
    off = _OFF.fields()
    return json.dumps({name: value for name, value in options.fields().items() if value != off.get(name)})


def unpack_options(packed: str) -> AnswerOptions:
    """The options that `pack_options` packed; an unknown one, of a newer version, is left out."""
    known = {name: value for name, value in json.loads(packed).items() if name in AnswerOptions.__dataclass_fields__}
    return options_from(_OFF.fields() | known)


def _swapped(tokens: array[int]) -> array[int]:
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
