"""Answers of a form and required calls by the real model: whether they have it, with drafts and without."""

import asyncio
import json
import re
from collections.abc import Iterator

import pytest
from moa_bench.harness.questions import chat_tokens
from moa_bench.harness.split_client import PlainClient, SplitClient, load_split_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.settings import ClientSettings
from moa_client.tools.answer_reader import AnswerReader, CallPiece, find_format
from moa_client.tools.formats import forced_grammar
from moa_client.tools.template import ChatTemplate
from moa_client.tools.tool import Tool
from moa_client.tools.turns import ChatMessage, template_input
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.protocol.messages import AnswerSettings
from moa_shared.sampling.settings import Constraint, ConstraintKind, Sampling

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target"), pytest.mark.long]
PLACES = ("Paris", "Oslo", "Lima", "Cairo", "Quito")
PROPERTIES = {
    "city": {"type": "string", "maxLength": 24},
    "unit": {"enum": ["celsius", "fahrenheit"]},
    "days": {"type": "integer", "minimum": 1, "maximum": 14},
}
RECORD = {"type": "object", "properties": PROPERTIES, "required": [*PROPERTIES], "additionalProperties": False}
DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
FORMS = (
    Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(RECORD)),
    Constraint(ConstraintKind.REGEX, f"On {DATE} it (rains|snows|is dry)\\."),
    Constraint(ConstraintKind.CHOICE, json.dumps(["warm and dry", "warm and wet", "cold and dry", "cold and wet"])),
)
TOOL = Tool("get_weather", "Weather of a city.", RECORD)


@pytest.fixture(scope="module")
def client(exact_server: str) -> Iterator[PlainClient]:
    client = PlainClient(exact_server)
    yield client
    client.close()


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


def _question(tokenizer: Tokenizer, number: int) -> tuple[list[int], AnswerSettings, Constraint]:
    """A prompt, how it is answered, and the form of its answer."""
    form, place = FORMS[number % len(FORMS)], PLACES[number % len(PLACES)]
    sampling = Sampling(0.0 if number % 4 == 0 else 1.0, seed=number, constraint=form)
    prompt = chat_tokens(tokenizer, f"What is the weather in {place} now?")
    return prompt, AnswerSettings(sampling, max_tokens=200), form


def _is_of(form: Constraint, text: str) -> bool:
    if form.kind is ConstraintKind.JSON_SCHEMA:
        return _is_record(text)
    return text in form.choices if form.kind is ConstraintKind.CHOICE else bool(re.fullmatch(form.text, text))


def _is_record(text: str) -> bool:
    try:
        match json.loads(text):
            case {"city": str(city), "unit": "celsius" | "fahrenheit", "days": int(days), **others}:
                return len(city) <= 24 and 1 <= days <= 14 and not others
    except ValueError:
        pass
    return False


def is_call_right(client: PlainClient, tokenizer: Tokenizer, seed: int) -> bool:
    """Whether an answer that must be a call is one whole call, with arguments of the schema."""
    template = tokenizer.chat_template or ""
    form = find_format(template)
    question = ChatMessage("user", f"What is the weather in {PLACES[seed % len(PLACES)]}?")
    given = template_input(form, template, [question], [TOOL])
    prompt = ChatTemplate(tokenizer).whole(given.messages, given.arguments)
    grammar = forced_grammar(form, [TOOL], tokenizer.special_tokens)
    sampling = Sampling(1.0, seed=seed, constraint=Constraint(ConstraintKind.LARK, grammar))
    answer = client.ask(prompt, AnswerSettings(sampling, max_tokens=200), server_drafts=True)
    reader = AnswerReader(None, form, [TOOL])
    pieces = [*reader.push(tokenizer.decode(list(answer.tokens))), *reader.finish()]
    calls = [piece for piece in pieces if isinstance(piece, CallPiece)]
    return len(calls) == 1 and _is_record(calls[0].arguments)


def test_answers_have_their_form_and_are_the_same_with_drafts(client: PlainClient, tokenizer: Tokenizer) -> None:
    for number in range(12):
        prompt, settings, form = _question(tokenizer, number)
        plain, drafted = (client.ask(prompt, settings, server_drafts=drafts).tokens for drafts in (False, True))
        assert _is_of(form, tokenizer.shown(plain))
        assert plain == drafted


def test_required_calls_are_valid(client: PlainClient, tokenizer: Tokenizer) -> None:
    assert all(is_call_right(client, tokenizer, seed) for seed in range(4))


def test_a_device_drafts_within_the_form_where_it_has_the_library(
    exact_server: str, client: PlainClient, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text is the server's either way; the server waits for drafts, so that each is counted."""
    settings = AnswerSettings(Sampling(1.0, seed=3, constraint=FORMS[0]), max_tokens=100)
    prompt = chat_tokens(tokenizer, "What is the weather in Lima now?")
    text = client.ask(prompt, settings).tokens
    mode = DraftingSettings("device", rounds=4, tree=True)
    for has_library in (True, False):
        if not has_library:
            monkeypatch.setattr("moa_client.device.loading.constraint_compiler", lambda *_, **__: None)
        with asyncio.Runner() as runner:
            device = load_split_device(runner, ClientSettings(server=exact_server))
            split, accepted = SplitClient(runner, exact_server, device, mode=mode), 0
            while not accepted:  # at first the form is still being compiled
                assert split.ask(prompt, settings).tokens == text
                accepted = split.figures.accepted or not has_library
            split.close()
