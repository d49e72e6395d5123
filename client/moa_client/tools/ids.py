"""Ids of calls. The same answer gives its calls the same ids, so that a resumed or repeated answer does too. Pure."""

from __future__ import annotations

from hashlib import sha256
from string import ascii_letters, digits

LENGTH = 24  # after "call_", as OpenAI has it
MISTRAL_LENGTH = 9  # Mistral's templates refuse or cut any other
_CHARACTERS = digits + ascii_letters


def call_id(answer: str, index: int) -> str:
    """The id of a call in OpenAI's form.

    Args:
        answer: what tells the answer from all others, such as its own id, or its conversation and seed.
        index: of the call in the answer.
    """
    return "call_" + _characters(f"{answer}/{index}", LENGTH)


def mistral_id(id: str) -> str:
    """The id under which Mistral's templates take a call with this id; one that they take is left as it is."""
    if len(id) == MISTRAL_LENGTH and id.isascii() and id.isalnum():
        return id
    return _characters(id, MISTRAL_LENGTH)


def _characters(text: str, length: int) -> str:
    number = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest())
    characters = []
    for _ in range(length):
        number, digit = divmod(number, len(_CHARACTERS))
        characters.append(_CHARACTERS[digit])
    return "".join(characters)
