"""The log probabilities of tokens as OpenAI's objects have them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from moa_client.endpoint.asked import Fields
from moa_client.endpoint.told_tokens import ToldToken


def chat_logprobs(tokens: Sequence[ToldToken]) -> Fields | None:
    """Of a message, or of the part that a chunk adds; None: there are no tokens."""
    return {"content": [_of_chat(token) for token in tokens], "refusal": None} if tokens else None


def text_logprobs(tokens: Sequence[ToldToken]) -> Fields | None:
    """Of a text, or of the part that a chunk adds; None: there are no tokens."""
    if not tokens:
        return None
    return {
        "tokens": [token.text for token in tokens],
        "token_logprobs": [token.chance for token in tokens],
        "top_logprobs": [_by_text(token) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _of_chat(token: ToldToken) -> Fields:
    likeliest = [{"token": _text(data), "logprob": chance, "bytes": list(data)} for data, chance in token.likeliest]
    return {"token": token.text, "logprob": token.chance, "bytes": list(token.data), "top_logprobs": likeliest}


def _by_text(token: ToldToken) -> dict[str, float] | None:
    """The likeliest tokens by their text, and the token itself; of several with one text the likeliest.

    None: nothing comes before the token.
    """
    if token.chance is None:
        return None
    by_text: dict[str, float] = {}
    for data, chance in token.likeliest:
        by_text.setdefault(_text(data), chance)
    if token.chance not in by_text.values():
        by_text.setdefault(token.text, token.chance)
    return by_text


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
