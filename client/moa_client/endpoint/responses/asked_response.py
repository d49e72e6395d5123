"""A request for a response over what is kept of earlier ones, and the keeping of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from moa_shared.errors import MoaError, NotFoundError
from moa_shared.sampling.defaults import SamplingDefaults
from pydantic import TypeAdapter

from moa_client.conversation.answer_options import AnswerOptions
from moa_client.endpoint.answer_parts import AnswerParts
from moa_client.endpoint.answer_source import ServedModel
from moa_client.endpoint.asked import AnswerHeader, Fields, Prompt
from moa_client.endpoint.fields import refused
from moa_client.endpoint.responses.forms import ResponseForm
from moa_client.endpoint.responses.items import Item
from moa_client.endpoint.responses.requests import MOST_ITEMS, ResponseRequest
from moa_client.history.responses import KeptResponse, KeptResponses
from moa_client.web.error_form import RequestError

_ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedResponse:
    """A request for a response; implements `Asked`.

    Args:
        before: the items of the responses that it continues.
        kept: where it is kept; None: nowhere.
    """

    request: ResponseRequest
    before: Sequence[Item]
    kept: KeptResponses | None

    @property
    def model(self) -> str:
        """The name of the model that it asks for."""
        return self.request.model

    @property
    def stream(self) -> bool:
        """Whether the answer is to be sent as it comes."""
        return self.request.stream

    @property
    def unverified(self) -> Literal["end", "fail"] | None:
        """What becomes of an answer that the server does not verify in time; None: as the daemon is set."""
        return self.request.unverified

    def prompt(self, model: ServedModel) -> Prompt:
        """What the model is asked."""
        return self.request.prompt_after(self.before, model)

    def options(self, defaults: SamplingDefaults, vocab_size: int) -> AnswerOptions:
        """The options of the answer."""
        return self.request.options(defaults, vocab_size)

    def form(self, header: AnswerHeader, parts: AnswerParts | None) -> ResponseForm:
        """How the answer is sent."""
        return ResponseForm(header, parts, self.request, self._keep, is_kept=self.kept is not None)

    def _keep(self, fields: Fields) -> bool:
        """Keeps the response; whether that was possible. It is not lost to the program if it was not."""
        if self.kept is None:
            return False
        asked = json.dumps([item.model_dump() for item in self.request.input], ensure_ascii=False)
        body = json.dumps(fields, ensure_ascii=False)
        previous = self.request.previous_response_id
        try:
            self.kept.keep(KeptResponse(fields["id"], previous, fields["created_at"], asked, body))
        except MoaError as error:
            log.warning("a response was not kept: %s", error)
            return False
        return True


def asked_response(request: ResponseRequest, kept: KeptResponses | None) -> AskedResponse:
    """A request over what is kept.

    Args:
        kept: None: nothing is, by the user's wish.

    Raises:
        RequestError: what it continues is not kept, or it is to be kept where nothing is.
        MoaError: the history cannot be read.
    """
    if kept is None and request.store:
        raise refused("store", "nothing is kept here (--no-history): send false")
    before: list[Item] = []
    if request.previous_response_id is not None:
        before = _items_of(request.previous_response_id, kept)
        if (number := len(before) + len(request.input)) > MOST_ITEMS:
            words = (
                f"with the responses before it there are {number} items, at most {MOST_ITEMS} are allowed: begin again"
            )
            raise refused("previous_response_id", words)
    return AskedResponse(request, before, kept if request.store is not False else None)


def _items_of(identifier: str, kept: KeptResponses | None) -> list[Item]:
    """All items of a response and of those that it continues: what was asked, and what was answered."""
    param, code = "previous_response_id", "previous_response_not_found"
    if kept is None:
        raise RequestError(400, f"{param}: nothing is kept here (--no-history).", param=param, code=code)
    try:
        chain = kept.chain(identifier)
    except NotFoundError as error:
        raise RequestError(400, f"{param}: {error}", param=param, code=code) from None
    items: list[Item] = []
    for response in chain:
        body: Mapping[str, Any] = json.loads(response.body)
        answered = [item for item in body["output"] if not _is_cut_call(item)]
        items += _ITEMS.validate_python([*json.loads(response.input), *answered])
    return items


def _is_cut_call(item: Mapping[str, Any]) -> bool:
    """Whether it is a call without its end, which nobody can have answered."""
    return (item["type"], item["status"]) == ("function_call", "incomplete")
