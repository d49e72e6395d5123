"""Several conversations of one device at once, with a real server."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from moa_client.conversation.events import Committed
from moa_client.conversation.options import AnswerOptions
from moa_client.host.surface_session import Watch
from moa_client.host.text_conversation import TextConversation
from moa_client.tools.template import ChatTemplate
from moa_server.verifier import Target

from tests.net.hosted import Characters, hosting
from tests.net.server_peer import decode, plain_text

OPTIONS = AnswerOptions(temperature=0.7, top_p=1, seed=4, max_tokens=24)
QUESTIONS = {"first": ("a cat", "and its hat"), "second": ("a dog", "or a frog")}


async def texts_of(conversation: TextConversation, questions: Sequence[str]) -> list[str]:
    """Asks one question after another; the answers, when all of them are decided."""
    watched = Watch(conversation)
    for question in questions:
        conversation.task.ask(question, OPTIONS)
    async for _ in watched.updates():
        answers = conversation.publisher.answers
        if len(answers) == len(questions) and not any(each.is_running or each.is_unsettled for each in answers):
            break
    await watched.close()
    return [answer.committed for answer in conversation.publisher.answers]


def plain_texts(target: Target, questions: Sequence[str]) -> list[str]:
    """The target's own answers."""
    template = ChatTemplate(cast("Any", Characters()))
    tokens: list[int] = []
    texts = []
    for question in questions:
        tokens += template.next_turn(question, tokens) if tokens else template.first_turn(question)
        answer, _ = plain_text(target, tokens, OPTIONS.settings())
        tokens += answer
        texts.append(decode(answer))
    return texts


async def test_conversations_at_once_give_what_each_alone_gives(target: Target) -> None:
    async with hosting(target) as hosted:
        conversations = [hosted.host.converse(is_read=False) for _ in QUESTIONS]
        given = await asyncio.gather(*map(texts_of, conversations, QUESTIONS.values()))
        assert given == [plain_texts(target, questions) for questions in QUESTIONS.values()]
    assert not hosted.host.conversations


async def test_one_that_leaves_lets_the_others_continue(target: Target) -> None:
    first, second = QUESTIONS.values()
    async with hosting(target) as hosted:
        leaving, staying = hosted.host.converse(is_read=False), hosted.host.converse(is_read=False)
        watched = Watch(leaving, hosted.host.leave)
        leaving.task.ask(first[0], OPTIONS)
        async for update in watched.updates():
            if isinstance(update.event, Committed):
                break
        await watched.close()
        assert hosted.host.conversations == [staying]
        assert await texts_of(staying, second) == plain_texts(target, second)
        assert hosted.host.status().tokens_per_s > 0


async def test_one_without_questions_leaves_its_stream_and_continues_on_another(target: Target) -> None:
    questions = QUESTIONS["first"]
    async with hosting(target) as hosted:
        hosted.host.settings = replace(hosted.host.settings, idle_seconds=0.01)
        conversation = hosted.host.converse(is_read=False)
        for asked, question in enumerate(questions, 1):
            conversation.task.ask(question, OPTIONS)
            while conversation.task.is_answering or conversation.engine.connection.is_up:  # noqa: ASYNC110 (nobody tells it)
                await asyncio.sleep(0)
            assert conversation.engine.connection.stream_number >= asked
        assert [answer.committed for answer in conversation.publisher.answers] == plain_texts(target, questions)
