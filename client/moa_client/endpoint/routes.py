"""The routes of the endpoint, of all APIs."""

from __future__ import annotations

from starlette.routing import BaseRoute

from moa_client.endpoint.answer_source import AnswerSource
from moa_client.endpoint.anthropic.routes import anthropic_routes
from moa_client.endpoint.endpoint import Endpoint, EndpointSettings
from moa_client.endpoint.ollama.routes import ollama_routes
from moa_client.endpoint.openai.routes import openai_routes
from moa_client.web.closing import Closing


def endpoint_routes(source: AnswerSource, settings: EndpointSettings, closing: Closing) -> list[BaseRoute]:
    """The routes.

    Args:
        source: where answers come from.
        closing: ends requests when the server closes.
    """
    endpoint = Endpoint(source, settings, closing)
    return [*openai_routes(endpoint), *anthropic_routes(endpoint), *ollama_routes(endpoint)]
