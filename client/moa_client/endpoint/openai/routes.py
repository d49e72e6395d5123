"""The routes of OpenAI's API: models, completions of chats, completions of texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.endpoint import Endpoint
from moa_client.endpoint.openai.requests import chat_request, text_request
from moa_client.web.body import read_json


def openai_routes(endpoint: Endpoint) -> list[BaseRoute]:
    """The routes."""
    handlers = OpenAiHandlers(endpoint)
    return [
        Route("/v1/models", handlers.models),
        Route("/v1/models/{name:path}", handlers.model),
        Route("/v1/chat/completions", handlers.chat, methods=["POST"]),
        Route("/v1/completions", handlers.text, methods=["POST"]),
    ]


class OpenAiHandlers:
    """Handles requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def models(self, request: Request) -> Response:
        """The only model."""
        return JSONResponse({"object": "list", "data": [self._model_fields(await self._endpoint.model())]})

    async def model(self, request: Request) -> Response:
        """A model by its name."""
        return JSONResponse(self._model_fields(await self._endpoint.model(request.path_params["name"])))

    async def chat(self, request: Request) -> Response:
        """The next message of a chat."""
        return await self._endpoint.choices(chat_request(await read_json(request)), request)

    async def text(self, request: Request) -> Response:
        """The continuation of a text."""
        return await self._endpoint.choices(text_request(await read_json(request)), request)

    def _model_fields(self, model: ServedModel) -> Mapping[str, Any]:
        return {"id": model.name, "object": "model", "created": self._endpoint.since, "owned_by": "moa"}
