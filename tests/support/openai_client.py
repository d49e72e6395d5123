"""OpenAI's library as a client of an endpoint."""

from __future__ import annotations

import openai


def openai_client(url: str, key: str = "none") -> openai.AsyncOpenAI:
    """Without the authorities' certificates, which take 20 ms to read and which no endpoint without TLS needs."""
    http_client = openai.DefaultAsyncHttpxClient(verify=False)
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=http_client)
