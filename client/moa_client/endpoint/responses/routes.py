"""The routes of OpenAI's API of responses: one is made, read again, and deleted."""

from __future__ import annotations

import json
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from moa_client.endpoint.endpoint import Endpoint
from moa_client.endpoint.fields import refused
from moa_client.endpoint.responses.asked_response import asked_response
from moa_client.endpoint.responses.requests import response_request
from moa_client.history.responses import KeptResponses
from moa_client.history.store import HistoryStore
from moa_client.web.body import read_json
from moa_client.web.error_form import RequestError


def response_routes(endpoint: Endpoint, history: Callable[[], HistoryStore | None]) -> list[BaseRoute]:
    """The routes.

    Args:
        history: where responses are kept; None: nowhere.
    """
    handlers = ResponseHandlers(endpoint, history)
    return [
        Route("/v1/responses", handlers.create, methods=["POST"]),
        Route("/v1/responses/{identifier}", handlers.retrieve, methods=["GET"]),
        Route("/v1/responses/{identifier}", handlers.delete, methods=["DELETE"]),
    ]


class ResponseHandlers:
    """Handles requests."""

    def __init__(self, endpoint: Endpoint, history: Callable[[], HistoryStore | None]) -> None:
        self._endpoint = endpoint
        self._history = history

    async def create(self, request: Request) -> Response:
        """An answer as a response, which can be continued by its id."""
        wanted = response_request(await read_json(request))
        return await self._endpoint.answer(asked_response(wanted, self._kept()), request)

    async def retrieve(self, request: Request) -> Response:
        """A response that is kept."""
        if request.query_params.get("stream") == "true":
            raise refused("stream", "a response is not streamed again")
        return JSONResponse(json.loads(self._must_keep().load(request.path_params["identifier"]).body))

    async def delete(self, request: Request) -> Response:
        """Deletes a response."""
        identifier = request.path_params["identifier"]
        self._must_keep().delete(identifier)
        return JSONResponse({"id": identifier, "object": "response", "deleted": True})

    def _kept(self) -> KeptResponses | None:
        history = self._history()
        return None if history is None else history.responses

    def _must_keep(self) -> KeptResponses:
        kept = self._kept()
        if kept is None:
            raise RequestError(404, "No response is kept here (--no-history).", code="not_found")
        return kept
