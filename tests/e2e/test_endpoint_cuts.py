"""The `openai` SDK over the daemon's endpoint, behind an emulated 4G link: cuts change no text, and no request is lost."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import grpc
import pytest
from moa.v1 import moa_pb2 as pb
from moa.v1 import moa_pb2_grpc
from moa_bench.harness.links import RunningLink, find_links, linked
from moa_client.tools.template import ChatTemplate
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.files import read_sampling_defaults
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sampling.settings import REPEAT_LAST_N
from openai import OpenAI
from openai.types.responses import ResponseStreamEvent

from tests.support.daemon_home import Home, daemon_home
from tests.support.skipping import cannot_run

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("endpoints"), pytest.mark.long]
QUESTION = "Explain to a child, in four long paragraphs, why the sky is blue."
CUTS_S = (0.7, 2.0, 0.4)
LENGTH = 320
PLAIN = {"repeat_penalty": 1.0}  # as most answers over a wire are asked for, not as the model's defaults say
SEED = 10  # whose answer is long: after each cut the server is 64 tokens ahead at once
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": SEED}
FRUIT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "colour": {"enum": ["red", "green", "yellow"]}},
    "required": ["name", "colour"],
    "additionalProperties": False,
}
FRUITS = {"type": "array", "items": FRUIT, "minItems": 8, "maxItems": 12}
FRUITS_QUESTION = "List some fruits with their colours, as JSON."
Answer = list[int]  # its tokens


class Behind4G:
    """A daemon behind an emulated 4G link to the real server."""

    def __init__(self, home: Home, link: RunningLink, server: str, template: ChatTemplate) -> None:
        self.link = link
        self._template, self._server = template, server
        assert home.run("daemon", "start")[0] == 0
        self.url = home.status()["url"] + "/v1"

    def over_a_wire(self, asked: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Answer]:
        """What the server alone writes for questions and their sampling, which it computes together."""
        with grpc.insecure_channel(self._server) as channel:
            stub = moa_pb2_grpc.MoaStub(channel)
            prompts = [(self._template.first_turn(question), pb.Sampling(**sampling)) for question, sampling in asked]
            calls = [
                stub.Generate(pb.GenerateRequest(tokens=prompt, sampling=sampling)) for prompt, sampling in prompts
            ]
            return [[token for part in call for token in part.tokens] for call in calls]


@pytest.fixture(scope="module")
def behind_4g(exact_server: str, default_model_files: ModelFiles) -> Iterator[Behind4G]:
    template = ChatTemplate(load_tokenizer(default_model_files))
    with (
        linked(find_links(("4G",))[0], exact_server) as link,
        daemon_home(dict(os.environ), SERVER=link.address, STANDALONE="never") as home,
    ):
        yield Behind4G(home, link, exact_server, template)


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


@pytest.fixture(scope="module")
def over_a_wire(behind_4g: Behind4G, default_model_files: ModelFiles) -> dict[str, Answer]:
    """The answers that the tests compare with."""
    fruits = pb.Constraint(kind=pb.Constraint.KIND_JSON_SCHEMA, text=json.dumps(FRUITS))
    defaults = {"repeat_last_n": REPEAT_LAST_N} | dict(read_sampling_defaults(default_model_files))
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "greedy": (QUESTION, {}),
        "sampled": (QUESTION, SAMPLED),
        "form": (FRUITS_QUESTION, SAMPLED | {"constraint": fruits}),
        "defaults": (QUESTION, defaults | {"temperature": 0.0}),
    }
    requests = [(question, sampling | {"max_tokens": LENGTH}) for question, sampling in asked.values()]
    return dict(zip(asked, behind_4g.over_a_wire(requests), strict=True))


def text_through_cuts(behind_4g: Behind4G, question: str, **asked: Any) -> str:
    """An answer's text as a stream that is cut each time after 40 characters more, as often as CUTS_S has it."""
    with OpenAI(base_url=behind_4g.url, api_key="none") as client:
        stream = client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": question}], top_p=1, seed=SEED, max_tokens=LENGTH,
            stream=True, extra_body=PLAIN, **asked,
        )  # fmt: skip
        return joined_through_cuts(
            behind_4g, (choice.delta.content or "" for chunk in stream for choice in chunk.choices)
        )


def joined_through_cuts(behind_4g: Behind4G, stream: Iterable[str]) -> str:
    """The text of such a stream."""
    pieces: list[str] = []
    cuts = list(CUTS_S)
    for piece in stream:
        pieces.append(piece)
        if cuts and len("".join(pieces)) > 40 * (len(CUTS_S) - len(cuts) + 1):
            behind_4g.link.cut(cuts.pop())
    assert not cuts
    return "".join(pieces)


@pytest.mark.parametrize(("name", "temperature"), [("greedy", 0.0), ("sampled", 0.8)])
def test_three_cuts_leave_the_text_as_over_a_wire(
    behind_4g: Behind4G, over_a_wire: dict[str, Answer], tokenizer: Tokenizer, name: str, temperature: float
) -> None:
    text = text_through_cuts(behind_4g, QUESTION, temperature=temperature)
    assert text == tokenizer.shown(over_a_wire[name])


def test_three_cuts_leave_a_response_as_over_a_wire(
    behind_4g: Behind4G, over_a_wire: dict[str, Answer], tokenizer: Tokenizer
) -> None:
    with OpenAI(base_url=behind_4g.url, api_key="none") as client:
        stream = client.responses.create(
            model="default",
            input=QUESTION,
            temperature=0,
            top_p=1,
            max_output_tokens=LENGTH,
            stream=True,
            extra_body=PLAIN,
        )
        events: list[ResponseStreamEvent] = []
        text = joined_through_cuts(behind_4g, deltas(stream, events))
    last = events[-1]
    assert last.type == "response.completed"
    assert last.response.output_text == text
    assert text == tokenizer.shown(over_a_wire["greedy"])


def deltas(stream: Iterable[ResponseStreamEvent], events: list[ResponseStreamEvent]) -> Iterator[str]:
    """The text of a response as it comes; notes all events."""
    for event in stream:
        events.append(event)
        if event.type == "response.output_text.delta":
            yield event.delta


def test_a_form_holds_through_cuts(behind_4g: Behind4G, over_a_wire: dict[str, Answer], tokenizer: Tokenizer) -> None:
    """JSON of a schema, which is what the server alone writes under it, without drafts."""
    form = {"type": "json_schema", "json_schema": {"name": "fruits", "schema": FRUITS}}
    text = text_through_cuts(behind_4g, FRUITS_QUESTION, temperature=0.8, response_format=form)
    assert text == tokenizer.shown(over_a_wire["form"])
    fruits = json.loads(text)
    assert 8 <= len(fruits) <= 12
    assert all(set(fruit) == {"name", "colour"} for fruit in fruits)


async def test_a_cut_leaves_anthropics_stream_as_over_a_wire(
    behind_4g: Behind4G, over_a_wire: dict[str, Answer], tokenizer: Tokenizer
) -> None:
    if find_spec("anthropic") is None:
        cannot_run("anthropic is not installed: pip install '.[test-clients]'")
    from anthropic import AsyncAnthropic

    text, has_cut = "", False
    url = behind_4g.url.removesuffix("/v1")
    async with (
        AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client,
        client.messages.stream(
            model="default",
            max_tokens=LENGTH,
            messages=[{"role": "user", "content": QUESTION}],
            extra_body={"temperature": 0},
        ) as stream,
    ):
        async for piece in stream.text_stream:
            text += piece
            if not has_cut and len(text) > 40:
                has_cut = True
                behind_4g.link.cut(2.0)
        message = await stream.get_final_message()
    assert has_cut
    tokens = over_a_wire["defaults"]
    assert text == tokenizer.shown(tokens)
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", len(tokens))
