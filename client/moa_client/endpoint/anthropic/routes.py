"""The routes of Anthropic's API: messages, and how long they would be."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint.anthropic.requests import count_request, messages_request
from moa_client.endpoint.endpoint import Endpoint
from moa_client.web.body import read_json


def anthropic_routes(endpoint: Endpoint) -> list[BaseRoute]:
    """The routes; the list of models is OpenAI's, which Anthropic's clients read too."""
    handlers = AnthropicHandlers(endpoint)
    return [
        Route("/v1/messages", handlers.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", handlers.count, methods=["POST"]),
    ]


class AnthropicHandlers:
    """Handles requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def messages(self, request: Request) -> Response:
        """The next message of a chat, as Anthropic has it."""
        return await self._endpoint.answer(messages_request(await read_json(request)), request)

    async def count(self, request: Request) -> Response:
        """How many tokens the prompt of such a request has."""
        asked = count_request(await read_json(request))
        return JSONResponse({"input_tokens": await self._endpoint.count(asked)})
