"""The routes of ollama's API, as far as its clients need them to list models and to get answers."""

from __future__ import annotations

from hashlib import sha256

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import Fields
from moa_client.endpoint.endpoint import DEFAULT_MODEL, Endpoint
from moa_client.endpoint.ollama.forms import date_of
from moa_client.endpoint.ollama.requests import LATEST, ChatRequest, TextRequest, chat_request, text_request
from moa_client.tools.thinking import find_thinking
from moa_client.web.body import read_json
from moa_client.web.error_form import RequestError

VERSION = "0.12.6"  # of ollama, whose API this is: clients ask for one that is new enough for tools and thinking
FAMILY = "moa"  # clients look for the context's length under it
FOR_EVER = "9999-12-31T23:59:59+00:00"
NO_DETAILS = {"parent_model": "", "format": "", "parameter_size": "", "quantization_level": ""}


def ollama_routes(endpoint: Endpoint) -> list[BaseRoute]:
    """The routes."""
    handlers = OllamaHandlers(endpoint)
    return [
        Route("/api/version", handlers.version),
        Route("/api/tags", handlers.models),
        Route("/api/ps", handlers.loaded),
        Route("/api/show", handlers.model, methods=["POST"]),
        Route("/api/chat", handlers.chat, methods=["POST"]),
        Route("/api/generate", handlers.text, methods=["POST"]),
    ]


class OllamaHandlers:
    """Handles requests."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    async def version(self, request: Request) -> Response:
        """The version of ollama whose API this is."""
        return JSONResponse({"version": VERSION})

    async def models(self, request: Request) -> Response:
        """The server's model, as ollama has it."""
        return JSONResponse({"models": [self._model_fields(await self._endpoint.model())]})

    async def loaded(self, request: Request) -> Response:
        """The same, which is always loaded."""
        model = await self._endpoint.model()
        loaded = {"expires_at": FOR_EVER, "size_vram": 0, "context_length": model.context_tokens}
        return JSONResponse({"models": [self._model_fields(model) | loaded]})

    async def model(self, request: Request) -> Response:
        """What the model can do, and how long its context is."""
        body = await read_json(request)
        name = body.get("model") or body.get("name") or DEFAULT_MODEL
        if not isinstance(name, str):
            raise RequestError(400, "model: expected a text.", param="model")
        model = await self._endpoint.model(name.removesuffix(LATEST))
        thinking = ["thinking"] if find_thinking(model.chat_template) is not None else []
        fields = self._model_fields(model)
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "",
                "template": model.chat_template,
                "details": fields["details"],
                "model_info": {"general.architecture": FAMILY, f"{FAMILY}.context_length": model.context_tokens},
                "capabilities": ["completion", "tools", *thinking],
                "modified_at": fields["modified_at"],
            }
        )

    async def chat(self, request: Request) -> Response:
        """The next message of a chat, as ollama has it."""
        return await self._answer(chat_request(await read_json(request)), request)

    async def text(self, request: Request) -> Response:
        """The answer to a prompt, or the continuation of a raw one, as ollama has it."""
        return await self._answer(text_request(await read_json(request)), request)

    async def _answer(self, asked: ChatRequest | TextRequest, request: Request) -> Response:
        if not asked.is_empty:
            return await self._endpoint.answer(asked, request)
        model = await self._endpoint.model(asked.model)
        fields = {"model": model.name, "created_at": date_of(self._endpoint.since), **asked.empty_answer}
        return JSONResponse(fields | {"done": True, "done_reason": "load"})

    def _model_fields(self, model: ServedModel) -> Fields:
        return {
            "name": model.name,
            "model": model.name,
            "modified_at": date_of(self._endpoint.since),
            "size": 0,  # on this device
            "digest": sha256(model.fingerprint.encode()).hexdigest(),
            "details": NO_DETAILS | {"family": FAMILY, "families": [FAMILY]},
        }
