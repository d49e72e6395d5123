"""OpenAI's `/v1/embeddings`: its requests and objects. Pure.

A vector has length 1. `moa` says how it was pooled, and whether the model was made for that: a model that writes text
gives vectors too, but worse ones than a model that was trained to.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from moa_client.endpoint.fields import DEFAULT_MODEL, REFUSED, RequestFields, refused
from moa_client.endpoint.host_source import Embeddings, HostModel
from moa_client.endpoint.openai_fields import as_prompts

MOST_TEXTS = 256


class EmbeddingRequest(RequestFields):
    refused = REFUSED
    model: str = DEFAULT_MODEL
    input: Annotated[list[str | list[int]], BeforeValidator(as_prompts)] = Field(max_length=MOST_TEXTS)
    encoding_format: Literal["float", "base64"] = "float"

    def texts(self, model: HostModel) -> list[list[int]]:
        texts = [model.encode(each) if isinstance(each, str) else each for each in self.input]
        for number, tokens in enumerate(texts):
            if not all(0 <= token < model.vocab_size for token in tokens):
                raise refused(f"input[{number}]", f"expected ids of tokens from 0 to {model.vocab_size - 1}")
            if len(tokens) > model.context_tokens:
                words = f"the text has {len(tokens)} tokens, the context {model.context_tokens}: send it in parts"
                raise refused(f"input[{number}]", words)
        return texts


def embedding_fields(
    asked: EmbeddingRequest, model: str, texts: Sequence[Sequence[int]], embeddings: Embeddings
) -> dict[str, Any]:
    """The response; `texts`: their tokens."""
    tokens = sum(map(len, texts))
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": number, "embedding": _written(vector, asked.encoding_format)}
            for number, vector in enumerate(embeddings.vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "moa": {"pooling": embeddings.pooling, "trained_for_embeddings": embeddings.is_trained},
    }


def _written(vector: Sequence[float], encoding: str) -> list[float] | str:
    numbers = np.asarray(vector, dtype="<f4")
    numbers /= max(float(np.linalg.norm(numbers)), np.finfo(np.float32).tiny)
    return base64.b64encode(numbers.tobytes()).decode() if encoding == "base64" else numbers.tolist()
