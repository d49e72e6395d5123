"""What an answer of the default model costs the link, as the programs are."""

from contextlib import closing

import pytest
from moa_bench.harness.questions import chat_tokens
from moa_bench.harness.split_client import SplitClient, load_split_device
from moa_client.settings import ClientSettings
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.programs.run_loop import make_runner
from moa_shared.protocol.messages import AnswerSettings

pytestmark = [pytest.mark.xdist_group("real target")]
QUESTION = "Explain to a child, in four long paragraphs, why the sky is blue."
TOKENS = 128
MOST_DOWN, MOST_UP = 60, 12  # bytes a token


def test_an_answer_takes_few_bytes_while_the_server_drafts(default_model_files: ModelFiles, exact_server: str) -> None:
    prompt = chat_tokens(load_tokenizer(default_model_files), QUESTION)
    with make_runner() as runner:
        device = load_split_device(runner, ClientSettings(server=exact_server))
        provisional = True
        while provisional:  # a busy machine may lose its link, and then all rows come
            with closing(SplitClient(runner, exact_server, device)) as client:
                client.ask(prompt, AnswerSettings(max_tokens=TOKENS))
                figures = client.figures
            provisional = bool(figures.provisional)
    assert figures.tokens == TOKENS
    assert figures.accepted == 0  # this device drafted nothing
    assert figures.memory_bytes > 4 * 324  # it could write alone
    assert figures.down_bytes <= MOST_DOWN * TOKENS
    assert figures.up_bytes <= MOST_UP * TOKENS
