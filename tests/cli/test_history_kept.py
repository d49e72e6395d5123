"""A chat that is killed in the middle of an answer, and is continued by another one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from moa_shared.models import load_tokenizer, resolve
from moa_shared.text.template import ChatTemplate

from tests.cli.client_program import CHAT, ENVIRONMENT, Run, Served, alone, options, words
from tests.support.terminal import Terminal

pytestmark = pytest.mark.xdist_group("client command line")
TOKENS = 1200  # the answer must not end before the chat is killed
FEW = 40  # of the next one


@pytest.mark.long
def test_a_killed_chat_is_continued(served: Served, run: Run, tmp_path: Path) -> None:
    template = ChatTemplate(load_tokenizer(resolve(str(served.model))))
    question = template.first_turn("w10")
    answer = alone(served, question, max_tokens=TOKENS)
    environment = ENVIRONMENT | {"MOA_CLIENT_HISTORY": "true", "XDG_DATA_HOME": str(tmp_path / "data")}

    chat = Terminal([*CHAT, *options(served, max_tokens=TOKENS)], environment)
    try:
        chat.wait_for("Talking to tiny")
        chat.at_prompt("w10\r")
        chat.wait_for(words(answer[:4]))
        chat.process.kill(signal.SIGKILL)
    finally:
        chat.close()
    shown = run("history", "show", "last")[1]
    assert words(answer[:4]) in " ".join(shown.split())
    assert "(a server is still to check and complete this answer)" in shown

    chat = Terminal([*CHAT, *options(served, max_tokens=FEW), "--continue"], environment)
    try:
        chat.wait_for(words(answer[:4]))
        chat.at_prompt("w11\r")
        chat.wait_for("cut after")
        chat.at_prompt("/bye\r")
        assert chat.end() == 0
    finally:
        chat.close()
    kept = json.loads(run("history", "export", "last", "--format", "json")[1])
    first, second = kept["answers"]
    assert first["tokens"] == answer
    assert first["standing"] == "decided"
    before = [*question, *answer]
    assert second["tokens"] == alone(served, [*before, *template.next_turn("w11", before)], max_tokens=FEW)
