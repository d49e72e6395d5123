"""Targets that write what a test says: each token is followed by the same one, whatever comes before."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.tiny_models import END, TinyModel

SURE = 10.0


def follow(model: TinyModel, script: Mapping[int, int]) -> None:
    """Has the model write by a script.

    Args:
        script: the token after each; all others are followed by the end.
    """
    tensors = model.tensors
    embedding, head = tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    rest = embedding.shape[1] - 1
    if len(script) > rest:
        raise ValueError(f"a script of at most {rest} tokens fits")
    for name in tensors:
        if "o_proj" in name or "down_proj" in name:  # layers add nothing
            tensors[name][:] = 0.0
        elif "norm" in name:
            tensors[name][:] = 1.0
    embedding[:], head[:] = 0.0, 0.0
    for feature, (token, after) in enumerate(script.items()):
        embedding[token, feature] = 1.0
        head[after, feature] = SURE
    embedding[[token not in script for token in range(len(embedding))], rest] = 1.0
    head[END, rest] = SURE
