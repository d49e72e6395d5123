"""The routes of the endpoint, of all APIs, and a table of them."""

import asyncio
import json
import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from moa_shared.errors import MoaError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint import anthropic, ollama, openai, responses
from moa_client.endpoint.answer import Fields
from moa_client.endpoint.endpoint import Endpoint, EndpointSettings, ModelSource
from moa_client.endpoint.fields import parsed_request, refused
from moa_client.endpoint.openai_fields import EmbeddingRequest
from moa_client.history.database import KeptResponses
from moa_client.history.store import HistoryStore
from moa_client.host.catalog import ListedModel
from moa_client.settings import DEFAULT_MODEL
from moa_client.tools.thinking import find_thinking
from moa_client.web.access import HEALTH, RequestError
from moa_client.web.server import read_json

VERSION = "0.12.6"  # of ollama, whose API this is: clients ask for one that is new enough for tools and thinking
FAMILY = "moa"  # ollama's clients look for the context's length under it
FOR_EVER = "9999-12-31T23:59:59+00:00"
NO_DETAILS = dict.fromkeys(("parent_model", "format", "parameter_size", "quantization_level"), "")
DETAILS = {**NO_DETAILS, "family": FAMILY, "families": [FAMILY]}


def endpoint_routes(
    source: ModelSource,
    settings: EndpointSettings,
    closing: asyncio.Event,
    history: Callable[[], HistoryStore | None] = lambda: None,
) -> list[BaseRoute]:
    """The routes.

    Args:
        source: gives the models; raises MoaError where there are none yet.
        closing: ends requests when the server closes.
        history: where what programs ask to keep is kept; None: nowhere.
    """
    handlers = Handlers(Endpoint(source, settings, closing), history)
    return [
        Route("/v1/models", handlers.models),
        Route("/v1/models/{name:path}", handlers.model),
        Route("/v1/chat/completions", handlers.answers(openai.ChatRequest), methods=["POST"]),
        Route("/v1/completions", handlers.answers(openai.TextRequest), methods=["POST"]),
        Route("/v1/embeddings", handlers.embeddings, methods=["POST"]),
        Route("/v1/responses", handlers.respond, methods=["POST"]),
        Route("/v1/responses/{identifier}", handlers.retrieve, methods=["GET"]),
        Route("/v1/responses/{identifier}", handlers.delete, methods=["DELETE"]),
        Route("/v1/messages", handlers.answers(anthropic.MessagesRequest), methods=["POST"]),
        Route("/v1/messages/count_tokens", handlers.count, methods=["POST"]),
        Route("/api/version", handlers.ollama_version),
        Route("/api/tags", handlers.ollama_models),
        Route("/api/ps", handlers.ollama_loaded),
        Route("/api/show", handlers.ollama_model, methods=["POST"]),
        Route("/api/chat", handlers.answers(ollama.ChatRequest), methods=["POST"]),
        Route("/api/generate", handlers.answers(ollama.TextRequest), methods=["POST"]),
    ]


class Handlers:
    """Handles requests; docs/api.md says what each is for."""

    def __init__(self, endpoint: Endpoint, history: Callable[[], HistoryStore | None]) -> None:
        self._endpoint = endpoint
        self._history = history

    async def models(self, request: Request) -> Response:
        models = await self._endpoint.among(lambda models: models.listed())
        page = {"has_more": False, "first_id": models[0].name, "last_id": models[-1].name}
        return JSONResponse({"object": "list", "data": [self._model_fields(each) for each in models], **page})

    async def model(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(self._model_fields(await self._endpoint.among(lambda models: models.named(name))))

    def answers(
        self, kind: type[openai.ChatRequest | openai.TextRequest | anthropic.MessagesRequest | ollama.OllamaRequest]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            asked = parsed_request(kind, await read_json(request))
            if not isinstance(asked, ollama.OllamaRequest) or (fields := asked.loaded) is None:
                return await self._endpoint.answer(asked.ask(), asked.form, request)
            model = await self._endpoint.model(asked.model)
            loaded = {"model": model.name, "created_at": ollama.date_of(self._endpoint.since), **fields}
            return JSONResponse(loaded | {"done": True, "done_reason": "load"})

        return answer

    async def embeddings(self, request: Request) -> Response:
        asked = parsed_request(EmbeddingRequest, await read_json(request))
        model = await self._endpoint.model(asked.model)
        texts = await asyncio.to_thread(asked.texts, model)
        return JSONResponse(asked.response(model.name, texts, await self._endpoint.embed(model, texts)))

    async def respond(self, request: Request) -> Response:
        asked = responses.response_request(await read_json(request), self._kept())
        return await self._endpoint.answer(*asked, request)

    async def retrieve(self, request: Request) -> Response:
        if request.query_params.get("stream") == "true":
            raise refused("stream", "a response is not streamed again")
        return JSONResponse(json.loads(self._must_keep().load(request.path_params["identifier"]).body))

    async def delete(self, request: Request) -> Response:
        identifier = request.path_params["identifier"]
        self._must_keep().delete(identifier)
        return JSONResponse({"id": identifier, "object": "response", "deleted": True})

    async def count(self, request: Request) -> Response:
        ask = parsed_request(anthropic.MessagesRequest, {**await read_json(request), "max_tokens": 1}).ask()
        model = await self._endpoint.model(ask.model)
        prompt = await asyncio.to_thread(ask.prompt, model)
        return JSONResponse({"input_tokens": len(prompt.tokens)})

    async def ollama_version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def ollama_models(self, request: Request) -> Response:
        models = await self._endpoint.among(lambda models: models.listed())
        return JSONResponse({"models": [self._ollama_fields(each) for each in models]})

    async def ollama_loaded(self, request: Request) -> Response:
        model = await self._endpoint.among(lambda models: models.named(DEFAULT_MODEL))
        loaded = {"expires_at": FOR_EVER, "size_vram": 0, "context_length": model.context_tokens}
        return JSONResponse({"models": [self._ollama_fields(model) | loaded]})

    async def ollama_model(self, request: Request) -> Response:
        body = await read_json(request)
        name = body.get("model") or body.get("name") or DEFAULT_MODEL
        if not isinstance(name, str):
            raise RequestError(400, "model: expected a text.", param="model")
        model = await self._endpoint.model(name.removesuffix(ollama.LATEST))
        thinking = ["thinking"] if find_thinking(model.tokenizer.chat_template or "") is not None else []
        return JSONResponse(
            {
                "modelfile": "",
                "parameters": "",
                "template": model.tokenizer.chat_template or "",
                "details": DETAILS,
                "model_info": {"general.architecture": FAMILY, f"{FAMILY}.context_length": model.context_tokens},
                "capabilities": ["completion", "tools", *thinking],
                "modified_at": ollama.date_of(self._endpoint.since),
            }
        )

    def _kept(self) -> KeptResponses | None:
        history = self._history()
        return None if history is None else history.responses

    def _must_keep(self) -> KeptResponses:
        kept = self._kept()
        if kept is None:
            raise RequestError(404, "No response is kept here (--no-history).", code="not_found")
        return kept

    def _model_fields(self, model: ListedModel) -> Fields:
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

    def _ollama_fields(self, model: ListedModel) -> Fields:
        return {
            "name": model.name,
            "model": model.name,
            "modified_at": ollama.date_of(self._endpoint.since),
            "size": 0,  # on this device
            "digest": sha256(b"".join(model.key)).hexdigest(),
            "details": DETAILS,
        }


FRESH_SECONDS = 5.0  # watchers ask every 5 to 30
ASK_SECONDS = 2.0  # they wait for at least that long
NO_STORE = {"cache-control": "no-store"}


@dataclass(eq=False)
class Health:
    """Whether requests can be answered.

    Args:
        status: of the daemon, as its surfaces get it.
        ask: asks whether the server is there; raises MoaError where it is not.
        clock: in seconds.
    """

    status: Callable[[], Mapping[str, Any]]
    ask: Callable[[], Awaitable[object]]
    clock: Callable[[], float] = time.monotonic
    _asked_at: float = -math.inf
    _failure: str = ""  # of the server; empty: it has answered
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def handle(self, request: Request) -> Response:
        """Whether requests can be answered: 200, or 503 with the reason; needs no key."""
        status = self.status()
        if reason := await self._reason(status):
            return JSONResponse({"status": "unavailable", "reason": reason}, 503, NO_STORE)
        fields = {"status": "ok", "link": status["state"], "model": status["target"], "rtt_ms": status["rtt_ms"]}
        return JSONResponse(fields, 200, NO_STORE)

    async def _reason(self, status: Mapping[str, Any]) -> str:
        """Why requests cannot be answered; empty: they can."""
        if status["phase"] != "ready":
            return f"The daemon is not ready: {status['phase']}"
        if not status["wants_online"]:
            return "The daemon is offline, as its user wants it."
        async with self._asking:
            if self.clock() < self._asked_at + FRESH_SECONDS:
                return self._failure
            try:
                async with asyncio.timeout(ASK_SECONDS):
                    await self.ask()
                self._failure = ""
            except MoaError as error:
                self._failure = error.message
            except TimeoutError:
                self._failure = f"The server has not answered within {ASK_SECONDS:g} s."
            self._asked_at = self.clock()
        return self._failure


def health_route(health: Health) -> BaseRoute:
    return Route(HEALTH, health.handle)
