"""Commands of a chat, and what a pipe and a program are given for events, of reasoning, and in words."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from inline_snapshot import snapshot
from moa_client.chat import messages, question
from moa_client.chat.chat import Chat
from moa_client.chat.commands import CommandHandler
from moa_client.chat.keys import unasked
from moa_client.chat.messages import facts_words, settled_remark, status_line
from moa_client.chat.question import (
    MOST_BYTES,
    MOST_CHARACTERS,
    TextFile,
    folded,
    read_question,
    read_text_file,
    with_files,
)
from moa_client.chat.views import Folding, JsonView, PipeView, error_line, event_line, ready_line
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import (
    AnswerOutcome,
    Asked,
    Committed,
    Corrected,
    Ended,
    Event,
    Failed,
    HeldBack,
    LinkChanged,
    LinkState,
    ModelsChanged,
    Provisional,
    ServerChanged,
    Settled,
    SurfaceEvent,
    ToolsChanged,
)
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import OpenConversation
from moa_client.surface.messages import ConversationFacts
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.errors import ContextLengthError, DataError, MoaError, UnavailableError
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import TokenChances

from tests.support.answer_events import Told, letters
from tests.support.messages import raises

GONE = UnavailableError("The daemon has ended.", hint="Ask again.")


class Conversation:
    """Answers every question with `a`, until the process that runs it has gone."""

    def __init__(self, system: str | None = None) -> None:
        self.facts = ConversationFacts("id", "", "tiny", "host:1", online=True, system=system)
        self.status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0)
        self.answers: list[AnswerText] = []
        self.asked: list[str] = []
        self.model = ""
        self.models: list[str | None] = []  # that were wished for
        self.menu: list[SurfaceEvent] = []  # what comes of a wish
        self.choose_model = self.models.append
        self.is_gone = self.is_closed = self.is_offline = self.is_corrected = self.is_kept = False
        self.was_told_online = False

    def ask(self, question: str, options: AnswerOptions) -> None:
        self.asked.append(question)
        self.options = options

    async def updates(self) -> AsyncGenerator[Update, None]:
        while self.menu:
            yield Update(self.menu.pop(0))
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

    def go_online(self) -> None:
        self.stop()
        self.was_told_online = True
        self.is_offline = False

    abandon = stop

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


@pytest.mark.parametrize("line", ["/offline", "/online", "/standalone", "/reset", "/model", "/set system brief"])
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


async def test_a_new_conversation_is_with_the_model_that_was_chosen_in_the_one_before() -> None:
    talk = Talk()
    for line in ("/model", "/model large"):
        assert await talk.commands.on_line(line)
    talk.first.model = "large"  # as the daemon has said
    assert await talk.commands.on_line("/reset")
    assert (talk.first.models, talk.first.is_closed) == ([None, "large"], True)
    assert cast("Conversation", talk.chat.conversation).models == ["large"]


async def test_a_question_opens_a_conversation_again_whose_process_has_gone() -> None:
    talk = Talk()
    talk.first.is_gone = True
    assert await talk.commands.on_line("/model large")
    assert cast("Conversation", talk.chat.conversation).models == ["large"]
    assert talk.err.pop() == "(asking for large ...)"
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
    for line in (
        "/reset",
        "why?",
        "/online",
        "/reset",
        "why?",
    ):  # a new conversation is as the user wished for the one before
        assert await talk.commands.on_line(line)
    assert "".join(talk.out) == "a\na\n"


async def test_a_device_that_began_offline_and_is_online_is_so_in_a_new_conversation() -> None:
    talk = Talk(ClientSettings(offline=True))
    for line in ("/online", "/reset"):
        assert await talk.commands.on_line(line)
    assert cast("Conversation", talk.chat.conversation).was_told_online


async def test_the_first_answer_is_another_models_if_that_can_be_had() -> None:
    talk, refused = Talk(), Failed(UnavailableError("No answer."))
    talk.first.menu = [ToolsChanged("a tool is away"), ModelsChanged("large"), refused]
    await talk.chat.begin_with("large")
    assert (talk.first.models, talk.err) == (["large"], ["(a tool is away)"])
    with raises(
        UnavailableError,
        snapshot("No answer. Check --server HOST:PORT or `moa-client servers list`, and that moa-server runs there."),
    ):
        await talk.chat.begin_with("larger")


@pytest.mark.parametrize(("efforts", "asked"), [(("none", "high"), "none"), (("low", "high"), None)])
async def test_a_model_is_asked_not_to_reason_where_it_can_be(efforts: tuple[str, ...], asked: str | None) -> None:
    marks = ReasoningMarks(("<think>",), ("</think>",), efforts=efforts)
    talk = Talk(ClientSettings(thinking="off"), thinking=marks)
    await talk.chat.ask("Why?")
    assert talk.first.options.reasoning_effort == asked


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


GOOD, AWAY = (LinkStatus(state, None, 0.0, 0.0, 0, 0) for state in (LinkState.GOOD, LinkState.OFFLINE))
ENDED_ALONE = Ended(Finish.STOP, provisional=True)
LIMITED = LinkChanged(LinkState.WAITING, "The server lets this key read and write 600 tokens a minute.", 11.2)
LIMITED_AGAIN = (LIMITED, LinkChanged(LinkState.GOOD))
ALONE = (Committed((0,)), Provisional((1,)), ENDED_ALONE)


@pytest.mark.parametrize(
    ("shown", "text", "remarks"),
    [
        (
            (Committed((0,)), LinkChanged(LinkState.OFFLINE, "cut."), HeldBack(), LinkChanged(LinkState.BACK)),
            "a\n",
            ["(offline: cut)", messages.HELD_BACK_WORDS, messages.BACK_WORDS],
        ),
        ((Provisional((1,)), ENDED_ALONE), "", [messages.unverified_words(1, is_printed=False)]),
        (ALONE, "ab\n", [messages.unverified_words(1, is_printed=True)]),
        (
            (Committed((0,)), *LIMITED_AGAIN, Committed((1,)), *LIMITED_AGAIN, Committed((2,)), Ended(Finish.STOP)),
            "abc\n",
            ["(The server lets this key read and write 600 tokens a minute; the answer resumes in 12 s)"],
        ),
    ],
)
def test_a_pipe_has_what_is_committed_and_remarks_are_said_once(
    shown: Sequence[Event], text: str, remarks: list[str]
) -> None:
    out, said, told = list[str](), list[str](), Told()
    view = PipeView(out.append, said.append, unverified=shown is ALONE)
    view.begin()
    for event in shown:
        view.show(told.tell(event), told.text)
    view.end(told.text)
    assert ("".join(out), said) == (text, remarks)


def settled_answer() -> Told:
    return Told(letters, "why is\nthe sky blue?", 1, *ALONE)


@pytest.mark.parametrize(
    ("settled", "words"),
    [
        (Settled((1,), AnswerOutcome.CONFIRMED, Finish.STOP, 1, 1), "(The server confirms {}.)"),
        (
            Settled((1, 3), AnswerOutcome.COMPLETED, Finish.STOP, 1, 1),
            "(The server has completed {}; 1 of 1 token written here was right.) It goes on:\nabd",
        ),
        (
            Settled((2,), AnswerOutcome.CORRECTED, Finish.STOP, 24, 15),
            "(The server has corrected {}; 15 of 24 tokens written here were right.) From the sentence that changes:\nac",
        ),
    ],
)
def test_the_outcome_of_an_earlier_answer_is_one_sentence_and_what_has_changed(settled: Settled, words: str) -> None:
    earlier = settled_answer()
    earlier.tell(settled)
    assert settled_remark(settled, earlier.text) == words.format('the answer to "why is the sky blue?"')
    assert len(messages.settled_words(settled, AnswerText("word " * 30))) < 130
    wild = Told(lambda tokens: "\x1b]52;c;cm0=\x07" * len(tokens), "why\x1b[2J?", 1, ENDED_ALONE, settled).text
    assert "\x1b" in wild.committed
    assert "\x1b" not in settled_remark(settled, wild)  # nothing that a model wrote acts on a terminal


# ---------------------------------------------------------------- words


STATUS = LinkStatus(LinkState.SLOW, 151.4, 12.34, 0.22, 1234, 45_600, by_server=0.4, memory_bytes=38_100)
TEXTS = ["two words", "", "three\n"]
FACTS = ConversationFacts("", "", "t", "s", online=True, level="int8", drafter="deep", drafter_reason="why")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            status_line(STATUS),
            "link slow | RTT 151 ms | 12.3 tokens/s | 62 % drafted: 40 % by the server, 22 % here | "
            "1.2 kB up, 45.6 kB down (38.1 kB for the drafter)",
        ),
        (
            status_line(AWAY, TEXTS, 2, "the server is silent."),
            "link OFFLINE (the server is silent) | 3 words to be checked",
        ),
        (status_line(GOOD, TEXTS, 2), "link good | the server checks 3 words"),
        (status_line(replace(GOOD, written_standalone=24, kept=15)), "link good | standalone 24 tokens, 15 kept"),
        (status_line(replace(AWAY, holds_back=True)), "waiting for the server | link OFFLINE"),
        (status_line(GOOD, thinking=3), "thinking ... 3 tokens | link good"),
        (
            facts_words(replace(FACTS, exact=False, standalone="deep")),
            "t at s\nexecution int8: the text may depend on what is verified together\n"
            "drafter deep: why\ndeep writes while no server answers",
        ),
    ],
)
def test_the_status_says_what_matters_most_first(line: str, expected: str) -> None:
    assert line == expected


# ---------------------------------------------------------------- reasoning

MARKS = ReasoningMarks(("<think>",), ("</think>",))


def test_programs_get_reasoning_in_fields_of_its_own() -> None:
    out: list[str] = []
    view, text = JsonView(out.append, print), AnswerText(number=1)
    view.folding = Folding(MARKS)
    shown: list[tuple[events.SurfaceEvent, tuple[str, ...]]] = [
        (Committed((1,), text="<think>Fi"), ("Fi", "")),
        (Provisional((2,), (0.9,), "rst.</think>An"), ("rst.", "An")),
        (Corrected(1), ()),
        (Committed((2, 3), text="rst.</think>"), ("rst.", "")),
        (Committed((4,), text="An answer <"), ("", "An answer <")),
        (Ended(Finish.STOP), ("", "")),
    ]
    for event, fields in shown:
        text.apply(event)
        view.show(Update(event, 1), text)
        names = ("provisional_reasoning", "provisional") if isinstance(event, Provisional) else ("reasoning", "text")
        line = json.loads(out[-1])
        assert tuple(line[name] for name in names if name in line) == fields


def test_an_answer_of_another_model_is_folded_by_its_own_marks() -> None:
    text = AnswerText(
        "?", 1, AnswerOptions(model="other", marks=MARKS), committed="<think>Hm.</think>Yes", is_running=False
    )
    assert Folding(None, lambda: "fold").shown(text).committed == "Yes"


# ---------------------------------------------------------------- lines for programs

EVENTS: list[events.SurfaceEvent] = [
    Committed((1,), 0, "é\n", (TokenChances(-0.25, (1, 7), (-0.25, -2.5)),), (2,)),
    Provisional((3, 4), (0.5, 1 / 3), "p"),
    HeldBack(unread=True),
    Corrected(4),
    LinkChanged(LinkState.WAITING, "why", 12.34),
    ServerChanged("model", "why"),
    events.DrafterChanged("deep", "why"),
    Ended(Finish.CANCELLED),
    Settled((5,), AnswerOutcome.CORRECTED, Finish.STOP, 24, 15),
    events.Refused(ContextLengthError("Too long.", hint="Shorten it.")),
]


def test_the_guide_names_every_line_and_field() -> None:
    from tests.conftest import CHECKOUT

    # An answer that is shown as committed and provisional text, with all that a surface is told.
    status, text = (
        LinkStatus(LinkState.GOOD, 1.0, 2.0, 0.5, 3, 4),
        AnswerText(committed="é\n", provisional="p", likely=1),
    )
    lines = [event_line(Update(event, 3, status, Figures()), text) for event in EVENTS]
    objects = [json.loads(line) for line in (*lines, ready_line(FACTS), error_line(UnavailableError("why")))]
    names = {str(line["event"]) for line in objects} | {name for line in objects for name in line}
    names |= {name for line in objects for name in (line.get("figures") or line.get("execution") or {})}
    names |= {finish.name.lower() for finish in Finish} | {state.value for state in LinkState}
    names |= {outcome.value for outcome in AnswerOutcome}
    guide = (CHECKOUT / "docs" / "client.md").read_text("utf-8")
    assert not names - set(re.findall(r"`([a-z_]+)`", guide)) - {"unfinished", "draining"}
