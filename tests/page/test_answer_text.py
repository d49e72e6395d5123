"""The page's script adds events up to the same text as the programs do."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Asked
from moa_client.surface.messages import Fields, fields_of, opened_fields
from moa_client.surface.open_conversation import ConversationFacts

from tests.page.conftest import Open, Serve
from tests.page.stage import Stage, good_status
from tests.support.answer_events import decode_bytes, events_of
from tests.support.told import Told

Texts = list[list[object]]  # of each answer: committed and provisional text, and the number of provisional tokens
REPLAY = """async (messages) => {
  const { Conversation } = await import("/page/chat/conversation.js");
  const conversation = new Conversation();
  return messages.map((message) => {
    conversation.apply(message, 0);
    return conversation.answers.map((answer) => [answer.committed, answer.provisional, answer.waiting]);
  });
}"""


def conversations() -> tuple[list[Fields], list[Texts]]:
    """What many conversations send, and what their answers are after each message."""
    messages: list[Fields] = []
    texts: list[Texts] = []

    def send(message: Fields, told: list[Told]) -> None:
        messages.append(message)
        texts.append([[each.text.committed, each.text.provisional, len(each.text.waiting)] for each in told])

    @given(st.lists(st.text("añ€😀", max_size=12), max_size=3), st.data())
    def converse(answers: list[str], data: st.DataObject) -> None:
        told: list[Told] = []
        facts = ConversationFacts("", "", "", "", online=True)
        send(opened_fields(facts, good_status(), []), told)
        for number, text in enumerate(answers, 1):
            told.append(Told(decode_bytes, "why?", number))
            send(fields_of(Update(Asked("why?"), number)), told)
            for event in data.draw(events_of(text)):
                send(fields_of(told[-1].tell(event)), told)
            if data.draw(st.booleans()):
                send(opened_fields(facts, good_status(), [each.text for each in told]), told)

    converse()
    return messages, texts


async def nothing(stage: Stage, question: str) -> None:
    stage.end()


def test_the_script_holds_the_text_that_the_programs_hold(serve: Serve, open_page: Open) -> None:
    messages, texts = conversations()
    reader = open_page(serve(nothing))
    assert reader.page.evaluate(REPLAY, messages) == texts
