"""The routes of the endpoint, of all APIs."""

from __future__ import annotations

from collections.abc import Callable

from starlette.routing import BaseRoute

from moa_client.endpoint.answer_source import AnswerSource
from moa_client.endpoint.anthropic.routes import anthropic_routes
from moa_client.endpoint.endpoint import Endpoint, EndpointSettings
from moa_client.endpoint.ollama.routes import ollama_routes
from moa_client.endpoint.openai.routes import openai_routes
from moa_client.endpoint.responses.routes import response_routes
from moa_client.history.store import HistoryStore
from moa_client.web.closing import Closing


def endpoint_routes(
    source: AnswerSource,
    settings: EndpointSettings,
    closing: Closing,
    history: Callable[[], HistoryStore | None] = lambda: None,
) -> list[BaseRoute]:
    """The routes.

    Args:
        source: where answers come from.
        closing: ends requests when the server closes.
        history: where what programs ask to keep is kept; None: nowhere.
    """
    endpoint = Endpoint(source, settings, closing)
    return [
        *openai_routes(endpoint),
        *response_routes(endpoint, history),
        *anthropic_routes(endpoint),
        *ollama_routes(endpoint),
    ]
