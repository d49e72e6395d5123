"""Answers of a form and required calls by the real model; `forms_figures` asks for more of them, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from moa_bench.harness.answers import PlainClient
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.tokenizer.tokenizer import Tokenizer

from tests.e2e.forms_figures import is_call_right, wrong_answers

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
