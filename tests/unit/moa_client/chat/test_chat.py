"""Commands of a chat whose conversation, or the opening of another one, may fail."""

import io
import os
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_client.chat import question
from moa_client.chat.chat import Chat
from moa_client.chat.commands import CommandHandler
from moa_client.chat.keys import unasked
from moa_client.chat.question import (
    MOST_BYTES,
    MOST_CHARACTERS,
    TextFile,
    folded,
    read_question,
    read_text_file,
    with_files,
)
from moa_client.chat.views import PipeView
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import Asked, Committed, Corrected, Ended, LinkState, Provisional
from moa_client.conversation.figures import LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import OpenConversation
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.errors import DataError, MoaError, UnavailableError
from moa_shared.protocol.finish_rule import Finish

from tests.support.messages import raises

GONE = UnavailableError("The daemon has ended.", hint="Ask again.")


class Conversation:
    """Answers every question with `a`, until the process that runs it has gone."""

    def __init__(self, system: str | None = None) -> None:
        self.facts = ConversationFacts("id", "", "tiny", "host:1", online=True, system=system)
        self.status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
        self.answers: list[AnswerText] = []
        self.asked: list[str] = []
        self.is_gone = self.is_closed = self.is_offline = self.is_corrected = self.is_kept = False

    def ask(self, question: str, options: AnswerOptions) -> None:
        self.asked.append(question)
        self.options = options

    async def updates(self) -> AsyncGenerator[Update, None]:
        number = len(self.asked)
        yield Update(Asked(self.asked[-1]), number)
        if self.is_offline:
            yield Update(Ended(Finish.UNFINISHED, provisional=True), number)
            return
        if self.is_corrected and not self.is_kept:
            yield Update(Provisional(tuple(range(12)), added="own"), number)
            yield Update(Corrected(12), number)
        yield Update(Committed((0,), text="own" if self.is_kept else "a"), number)
        yield Update(Ended(Finish.STOP), number)

    def go_offline(self) -> None:
        self.stop()
        self.is_offline = True

    def write_standalone(self) -> None:
        self.stop()
        self.is_offline = False

    def stop(self) -> None:
        if self.is_gone:
            raise GONE

    def keep(self) -> None:
        self.is_kept = True

    go_online = abandon = stop

    def rewind(self, answers: int) -> None:
        del self.asked[answers:]

    async def close(self) -> None:
        self.is_closed = True


class Talk:
    """A chat on a pipe. `opens`: whether other conversations can be opened."""

    def __init__(self, settings: ClientSettings | None = None, *, opens: bool = True, **facts: Any) -> None:
        self.first = Conversation()
        self.first.facts = replace(self.first.facts, **facts)
        self.opened: list[tuple[str | None, str | None]] = []
        self.out: list[str] = []
        self.err: list[str] = []
        self._opens = opens
        view = PipeView(self.out.append, self.err.append, unverified=True)
        opened = cast("OpenConversation", self.first)
        self.chat = Chat(settings or ClientSettings(), opened, view, self._open, unasked((), self.err.append))
        self.commands = CommandHandler(self.chat)

    async def _open(self, identifier: str | None, system: str | None) -> OpenConversation:
        if not self._opens:
            raise GONE
        self.opened.append((identifier, system))
        return cast("OpenConversation", Conversation(system))


async def test_what_the_server_has_replaced_can_be_had_back() -> None:
    talk = Talk()
    talk.first.is_corrected = True
    for line in ("/keep", "why?", "/keep"):
        assert await talk.commands.on_line(line)
    assert "".join(talk.out) == "a\nown\n"
    assert talk.err[0].startswith("Error: The server has replaced no text")
    assert talk.err[1:] == ["(The server has replaced 12 tokens that this device had written: /keep has them back.)"]


def test_a_companion_is_offered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    talk = Talk(offer="default")
    for _ in range(2):
        talk.chat.greet()
    assert ["companion set default" in line for line in talk.err] == [False, True, False]


@pytest.mark.parametrize("line", ["/offline", "/online", "/standalone", "/reset", "/set system brief"])
async def test_a_command_that_fails_does_not_end_the_chat(line: str) -> None:
    talk = Talk(opens=False)
    talk.first.is_gone = True
    assert await talk.commands.on_line(line)
    assert talk.err == ["Error: The daemon has ended. Ask again."]
    assert (talk.first.is_closed, talk.chat.settings.system) == (False, None)
    talk.first.is_gone = False
    assert await talk.commands.on_line("//why?")
    assert (talk.first.asked, "".join(talk.out)) == (["/why?"], "a\n")


async def test_a_new_conversation_takes_the_place_of_the_one_before() -> None:
    talk = Talk()
    for line in ("/reset", "/set system brief", "/set seed 3", "/reset"):
        assert await talk.commands.on_line(line)
    assert talk.opened == [(None, None), (None, "brief"), (None, "brief")]
    assert talk.first.is_closed
    assert not await talk.commands.on_line("/bye")


async def test_a_question_opens_a_conversation_again_whose_process_has_gone() -> None:
    talk = Talk()
    talk.first.is_gone = True
    assert await talk.commands.on_line("why?")
    assert talk.opened == [("id", None)]
    assert (talk.first.asked, "".join(talk.out), talk.err) == ([], "a\n", [])


async def test_offline_a_question_waits_until_its_reader_wants_the_devices_answer() -> None:
    talk = Talk()
    for line in ("/offline", "why?", "/standalone", "/standalone"):
        assert await talk.commands.on_line(line)
    assert (talk.first.asked, "".join(talk.out)) == (["why?"], "a\n")
    assert talk.err[1] == "(You are offline: the question waits for the server. /online connects.)"
    assert talk.err[2] == talk.err[3]


@pytest.mark.parametrize(("efforts", "asked"), [(("none", "high"), "none"), (("low", "high"), None)])
async def test_a_model_is_asked_not_to_reason_where_it_can_be(efforts: tuple[str, ...], asked: str | None) -> None:
    marks = ReasoningMarks(("<think>",), ("</think>",), efforts=efforts)
    talk = Talk(ClientSettings(thinking="off"), thinking=marks)
    await talk.chat.ask("Why?")
    assert talk.first.options.reasoning_effort == asked


async def test_reasoning_is_shown_when_it_is_asked_for() -> None:
    talk = Talk(thinking=ReasoningMarks(("<",), (">",), opened=("",)))
    for line in ("/thinking", "Why?", "/thinking"):
        await talk.commands.on_line(line)
    assert talk.err[0] == "The last answer came without reasoning that is marked."
    assert talk.err[-2:] == ["(thought for 1 token: /thinking shows it)", "a"]


def test_standard_input_is_read_unless_a_person_or_a_device_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    other, terminal = os.openpty()
    with open("/dev/zero", encoding="utf-8") as device, open(terminal, encoding="utf-8") as person:
        assert [read_question("w1", each, said.append) for each in (device, person)] == ["w1", "w1"]
        assert read_question(None, person, said.append) is None
    os.close(other)
    with raises(DataError, snapshot("Standard input has more than 1048576 characters. Ask about a part of it.")):
        read_question("w1", io.StringIO("x" * (MOST_CHARACTERS + 1)), said.append)
    assert said == []
    monkeypatch.setattr(question, "QUIET_SECONDS", 0.0)
    reading, writing = os.pipe()

    def remark(text: str) -> None:
        said.append(text)
        os.write(writing, b"one\n")
        os.close(writing)

    with open(reading, encoding="utf-8") as stdin:
        assert read_question("two", stdin, remark) == "one\ntwo"
    assert said == ["(Waiting for standard input to end. Where there is none, add </dev/null to the command.)"]


def test_files_are_framed_before_the_question_and_folded_for_a_person(tmp_path: Path) -> None:
    path = tmp_path / 'a "b".txt'  # whatever program has written it
    path.write_bytes("\ufeffone\r\n\r\ntwo ä\r\n".encode())
    asked = with_files("Which?", [read_text_file(path), TextFile("b.txt", "")])
    files = ("<file name=\"a 'b'.txt\">\none\n\ntwo ä\n</file>", '<file name="b.txt">\n\n</file>')
    assert asked == "\n\n".join((*files, "Which?"))
    assert folded(asked) == "[a 'b'.txt] [b.txt] Which?"
    assert with_files("Which?", []) == folded("Which?") == "Which?"
    with pytest.raises(DataError, match="together"):
        with_files("Which?", [TextFile("a.txt", "ä" * (MOST_BYTES // 4))] * 3)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.pdf", b"%PDF-1.7\n\0\xff", "FOLDER/a.pdf is not text in UTF-8."),
        ("a.txt", "a".encode("utf-16"), "FOLDER/a.txt is not text in UTF-8."),
        ("a.txt", b"a" * (MOST_BYTES + 1), "FOLDER/a.txt has more than 256 KiB."),
        ("a.txt", None, "The file FOLDER/a.txt cannot be read: No such file or directory."),
        (".", None, "FOLDER is not a file."),
    ],
)
def test_what_is_no_text_is_refused_by_its_name(tmp_path: Path, name: str, data: bytes | None, words: str) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(MoaError) as raised:
        read_text_file(tmp_path / name)
    assert raised.value.message.replace(str(tmp_path), "FOLDER") == words
    assert raised.value.exit_code == (66 if data is None and name != "." else 65)
