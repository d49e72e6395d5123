"""Answers of a form and required calls by the real model; `forms_figures` asks for more of them, and how fast they are."""

import asyncio
from collections.abc import Iterator

import pytest
from moa_bench.harness.questions import chat_tokens
from moa_bench.harness.split_client import PlainClient, SplitClient, load_split_device
from moa_client.drafting.settings import DraftingSettings
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.settings import Sampling

from tests.e2e.forms_figures import FORMS, is_call_right, wrong_answers

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("real target"), pytest.mark.long]


@pytest.fixture(scope="module")
def client(exact_server: str) -> Iterator[PlainClient]:
    client = PlainClient(exact_server)
    yield client
    client.close()


@pytest.fixture(scope="module")
def tokenizer(default_model_files: ModelFiles) -> Tokenizer:
    return load_tokenizer(default_model_files)


def test_answers_have_their_form_and_are_the_same_with_drafts(client: PlainClient, tokenizer: Tokenizer) -> None:
    assert wrong_answers(client, tokenizer, 12) == (0, 0)


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
    accepted = {}
    for has_library in (True, False):
        if not has_library:
            monkeypatch.setattr("moa_client.device.loading.constraint_compiler", lambda *_, **__: None)
        with asyncio.Runner() as runner:
            device = load_split_device(runner, ClientSettings(server=exact_server))
            split = SplitClient(runner, exact_server, device, mode=mode)
            for _ in range(2):  # in the first answer the form is still being compiled
                assert split.ask(prompt, settings).tokens == text
            accepted[has_library] = split.figures.accepted
            split.close()
    assert accepted[True] > accepted[False]
