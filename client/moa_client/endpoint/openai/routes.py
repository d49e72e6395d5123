"""The routes of OpenAI's API: models, completions of chats and of texts, embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.endpoint import Endpoint
from moa_client.endpoint.openai.embeddings import embedding_fields, embedding_request
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
        Route("/v1/embeddings", handlers.embeddings, methods=["POST"]),
    ]


class OpenAiHandlers:
    """Handles requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def models(self, request: Request) -> Response:
        """The server's model, as OpenAI's and as Anthropic's clients read a list of one."""
        model = await self._endpoint.model()
        page = {"has_more": False, "first_id": model.name, "last_id": model.name}
        return JSONResponse({"object": "list", "data": [self._model_fields(model)], **page})

    async def model(self, request: Request) -> Response:
        """The server's model by its name, or by `default`."""
        return JSONResponse(self._model_fields(await self._endpoint.model(request.path_params["name"])))

    async def chat(self, request: Request) -> Response:
        """The next message of a chat."""
        return await self._endpoint.choices(chat_request(await read_json(request)), request)

    async def text(self, request: Request) -> Response:
        """The continuation of a text."""
        return await self._endpoint.choices(text_request(await read_json(request)), request)

    async def embeddings(self, request: Request) -> Response:
        """The vectors of some texts."""
        asked = embedding_request(await read_json(request))
        model = await self._endpoint.model(asked.model)
        texts = await asyncio.to_thread(asked.texts, model)
        embeddings = await self._endpoint.embed(model, texts)
        return JSONResponse(embedding_fields(asked, model.name, texts, embeddings))

    def _model_fields(self, model: ServedModel) -> Mapping[str, Any]:
        since = self._endpoint.since
        return {
            "id": model.name,
            "object": "model",
            "created": since,
            "owned_by": "moa",
            "type": "model",  # this and what follows: Anthropic's
            "display_name": model.name,
            "created_at": datetime.fromtimestamp(since, UTC).isoformat(),
            "lifecycle": "active",
            "max_input_tokens": model.context_tokens,
            "max_tokens": model.context_tokens,
        }
