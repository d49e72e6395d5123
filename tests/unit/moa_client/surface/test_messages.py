"""What a surface may ask of an answer, how it crosses to the daemon, and what that says."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inline_snapshot import snapshot
from moa_client.chat.messages import facts_words
from moa_client.conversation import events
from moa_client.conversation.answer_text import AnswerText, Update
from moa_client.conversation.events import Failed, LinkState, Permission, Provenance, Rewound, ServerChanged, Titled
from moa_client.conversation.figures import Figures, LinkStatus
from moa_client.conversation.options import AnswerOptions
from moa_client.daemon import program
from moa_client.daemon.process import DaemonPaths, find_holder, make_folder, take_lock
from moa_client.daemon.program import Hub, serve_web_surfaces
from moa_client.host.surface_session import Watch, serve_surface
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import MOST_UNREAD, OpenConversation, Subscription
from moa_client.surface.messages import ConversationFacts, encode_line, fields_of, opened_fields, options_of, update_of
from moa_client.tools.tool import AnsweredCall
from moa_shared.errors import CATALOGUE, ConfigError, InternalError, OverloadedError, error_from_code
from moa_shared.protocol.messages import Finish
from moa_shared.sampling.settings import TokenChances, WantedChances

from tests.support.messages import raises, says
from tests.support.tool_calls import NOW, WEATHER, call


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chances": 3}, "The option chances cannot be 3"),
        ({"chances": {"likeliest": 21}}, "21 likeliest tokens were asked for, expected 0 to 20"),
        ({"chances": {"processed": 1}}, "expected likeliest"),
        ({"chances": {"top": 1}}, "expected likeliest"),
        ({"seed": 1.5}, "The option seed cannot be 1.5"),
        ({"top_k": True}, "The option top_k cannot be True"),
        ({"reasoning_effort": "most"}, "The option reasoning_effort cannot be 'most'"),
        ({"tools": []}, "There is no option 'tools'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        options_of(options)
    given = {"temperature": 1, "seed": None, "chances": {"likeliest": 3, "processed": True}}
    assert options_of(given) == AnswerOptions(temperature=1, chances=WantedChances(3, processed=True))


COUNT, TEXT = st.integers(0, 2**40), st.text(max_size=8)
DECIMALS = st.floats(-100, 1e6).map(lambda number: round(number, 4))  # as many as are sent
LIKELIEST = st.dictionaries(COUNT, DECIMALS, max_size=3)
TOLD = st.builds(lambda chosen, each: TokenChances(chosen, tuple(each), tuple(each.values())), DECIMALS, LIKELIEST)
LETTERS = st.sampled_from(["", *(each.letter for each in Provenance)])
RUNS = st.tuples(COUNT, LETTERS) | st.tuples(COUNT, LETTERS, DECIMALS)
RESULTS = (AnsweredCall(call("now"), "12:00", is_error=True),)
OPTIONS = (
    AnswerOptions(tools=(WEATHER, NOW), results=RESULTS),
    AnswerOptions(temperature=0.5, stop=("a",), logit_bias=((3, -1.0),), chances=WantedChances(3, processed=True)),
)
OF_TYPE: dict[str, st.SearchStrategy[Any]] = {  # as their classes write them
    "int": COUNT,
    "str": TEXT,
    "bool": st.booleans(),
    "float": DECIMALS,
    "float | None": st.none() | DECIMALS,
    "tuple[int, ...]": st.lists(COUNT, max_size=5).map(tuple),
    "tuple[tuple[str, str], ...]": st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
    "tuple[float, ...]": st.lists(DECIMALS, max_size=5).map(tuple),
    "tuple[TokenChances, ...]": st.lists(TOLD, max_size=4).map(tuple),
    "tuple[TextRun, ...]": st.lists(RUNS, max_size=3).map(tuple),
    "tuple[Provenance, ...]": st.just(()),  # for the history alone
    "Finish": st.sampled_from(Finish),
    "LinkState": st.sampled_from(LinkState),
    "AnswerOutcome": st.sampled_from(events.AnswerOutcome),
    "Permission": st.sampled_from(Permission),
    "AnswerOptions": st.sampled_from(OPTIONS),
    "MoaError": st.builds(error_from_code, st.sampled_from(sorted(CATALOGUE)), TEXT, TEXT),
    "Literal['address', 'drafter', 'model']": st.sampled_from(("drafter", "model")),
}


def made(kind: type, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.builds(kind, **{each.name: OF_TYPE[str(each.type)] for each in fields(kind)} | fixed)


@st.composite
def updates(draw: st.DrawFn) -> Update:
    kind = draw(st.sampled_from(get_args(events.SurfaceEvent)))
    event = draw(made(kind, standalone=st.just("deep")) if kind is events.DrafterChanged else made(kind))
    figures = None
    if isinstance(event, events.Ended):
        figures = draw(made(Figures, stale=st.just(0), finish=st.just(event.finish)))
    return Update(event, draw(st.integers(0, 9)), draw(st.none() | made(LinkStatus)), figures)


NO_ERROR = InternalError("none")


def compared(update: Update) -> tuple[Update, object]:
    """An update and its error, which two processes cannot share, apart."""
    event: events.SurfaceEvent = update.event
    if not isinstance(event, events.Failed | events.NotKept | events.Refused):
        return update, None
    error = event.error
    return replace(update, event=replace(event, error=NO_ERROR)), (type(error), error.message, error.hint)


@given(updates())
def test_an_update_comes_back_as_it_was(update: Update) -> None:
    fields = fields_of(update)
    assert compared(update_of(fields)) == compared(update)
    assert compared(update_of(json.loads(json.dumps(fields)))) == compared(update)


@given(updates())
def test_what_is_no_update_of_a_known_kind_is_not_read_as_another(update: Update) -> None:
    fields = fields_of(update)
    with pytest.raises((KeyError, ValueError, TypeError)):
        update_of({**fields, "event": "unknown"})
    for name in fields:
        try:
            read = update_of({key: value for key, value in fields.items() if key != name})
        except (KeyError, ValueError, TypeError):
            continue
        assert type(read.event) is type(update.event)


class Conversation:
    facts = ConversationFacts("id", "", "tiny", "host:1", online=True)
    status = LinkStatus(LinkState.GOOD, None, 0.0, 0.0, 0, 0, server="host:1")

    def __init__(self, *open_events: object) -> None:
        self.engine = self.publisher = self.task = self.calls = self
        self.answers = (AnswerText("why?", 1, committed="ab", runs=((2, "C"),)),)
        self.subscriptions: list[Subscription] = []
        self.open_events = open_events

    def stop(self) -> None:
        raise ZeroDivisionError

    def set_title(self, title: str) -> None:
        self.subscriptions[0].push_update(Update(Titled(title)))

    def permit(self, call: str, permission: Permission) -> None:
        self.set_title(f"{call} {permission.value}")


class Surface:
    def __init__(self, *asked: Mapping[str, Any]) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.has_left = asyncio.Event()
        self._asked = asked

    async def messages(self) -> AsyncIterator[dict[str, Any]]:
        for each in ({"do": "open"}, *self._asked):
            yield dict(each)
        await self.has_left.wait()

    async def send(self, fields: Mapping[str, Any]) -> None:
        self.sent.append(fields)
        if fields["event"] == "titled":
            self.has_left.set()

    async def be_served(self, conversation: Conversation) -> None:
        async def open_it(identifier: str | None, system: str | None, single: bool) -> Watch:
            return Watch(cast("Any", conversation))

        async with asyncio.timeout(60):
            await serve_surface(self.messages(), self.send, open_it)
        assert not conversation.subscriptions


async def test_what_cannot_be_followed_is_told_and_the_next_message_followed() -> None:
    bad = {"do": "permit", "call": "call_1", "permission": "yes"}
    surface = Surface({"do": "stop"}, bad, {**bad, "call": None}, {**bad, "permission": "always"})
    await surface.be_served(Conversation())
    _, defect, *refused, titled = surface.sent
    assert defect == snapshot(
        {
            "event": "error",
            "code": "internal",
            "message": "What was asked for has failed (ZeroDivisionError).",
            "hint": "This is a defect of moa: please report it with the log.",
        }
    )
    words = snapshot("`permit` needs the text `call`, and as `permission` one of once, always and denied.")
    assert [each["message"] for each in refused] == [words, words]
    assert titled["title"] == "call_1 always"


@pytest.mark.parametrize("open_events", [("no event",), [Titled("t")] * (MOST_UNREAD + 1)], ids=["defect", "lag"])
async def test_a_surface_that_can_be_told_no_more_learns_that_and_is_left(open_events: Sequence[object]) -> None:
    surface = Surface()
    await surface.be_served(Conversation(*open_events))
    assert [surface.sent[0]["event"], surface.sent[-1]["event"]] == ["opened", "error"]


def numbered(count: int, start: int = 0) -> list[Update]:
    return [Update(Rewound(start + index)) for index in range(count)]


async def read(subscription: Subscription, count: int) -> list[Update]:
    """The next updates, by a reader of its own."""
    got: list[Update] = []
    async with aclosing(cast("Any", subscription.updates())) as updates:
        async for update in updates:
            got.append(update)
            if len(got) == count:
                break
    return got


async def test_updates_are_read_in_order_and_a_reader_that_lags_too_far_is_cut_off_for_good() -> None:
    subscription = Subscription(most_unread=5)
    for update in numbered(5):
        subscription.push_update(update)
    assert await read(subscription, 2) == numbered(2)
    subscription.push_update(*numbered(1, 5))
    assert await read(subscription, 4) == numbered(4, 2)
    for update in numbered(6):
        subscription.push_update(update)
    for _ in range(2):
        with raises(OverloadedError, snapshot("More than 5 events were not read. Open the conversation again.")):
            await read(subscription, 6)
        subscription.push_update(*numbered(1))


def test_only_the_user_can_enter_the_folder() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        paths = DaemonPaths(Path(short) / "open" / "moa")
        paths.folder.mkdir(parents=True, mode=0o755)
        os.chmod(paths.folder, 0o755)
        make_folder(paths)
        assert stat.S_IMODE(paths.folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("/" + "x" * 90, "/daemon.sock is too long for the path of a socket."),
        ("/dev/null/moa", "The daemon's folder /dev/null/moa cannot be used:"),
    ],
    ids=["long", "no folder"],
)
def test_a_folder_that_cannot_be_the_daemon_s_is_an_error(folder: str, message: str) -> None:
    with says(ConfigError, message):
        make_folder(DaemonPaths(Path(folder)))


def test_a_link_that_another_user_made_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, link = tmp_path / "mine", tmp_path / "link"
    mine.mkdir(mode=0o755)
    link.symlink_to(mine)
    make_folder(DaemonPaths(link))  # one's own may be
    mine.chmod(0o755)
    found = list(link.lstat())
    found[stat.ST_UID] = os.getuid() + 1
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result(found))
    with says(ConfigError, "The daemon's folder TMP/link belongs to another user."):
        make_folder(DaemonPaths(link))
    assert stat.S_IMODE(mine.stat().st_mode) == 0o755


def test_its_holder_is_known_as_long_as_it_is_held(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert find_holder(path) is None
    lock = take_lock(path)
    assert find_holder(path) == os.getpid()
    with says(ConfigError, f"A daemon is already running (process {os.getpid()})."):
        take_lock(path)
    assert find_holder(path) == os.getpid()
    lock.close()
    assert find_holder(path) is None


def status(server: str, state: LinkState = LinkState.GOOD) -> LinkStatus:
    return LinkStatus(state, None, 0.0, 0.0, 0, 0, server=server)


def opened(*messages: bytes) -> OpenConversation:
    reader, facts = asyncio.StreamReader(), ConversationFacts("", "", "tiny", "first:1", online=True)
    reader.feed_data(b"".join(messages))
    writer = Mock(is_closing=lambda: False, wait_closed=AsyncMock())
    return OpenConversation(reader, writer, opened_fields(facts, status("first:1"), []))


async def test_after_a_fail_over_it_names_the_server_that_answers() -> None:
    event = ServerChanged("address", "second answers now instead of first.")
    told = [status("first:1", LinkState.OFFLINE), status("second:2")]
    conversation = opened(*(encode_line(fields_of(Update(event, status=each))) for each in told))
    async with aclosing(cast("Any", conversation.updates())) as updates:
        named = [await anext(updates) and facts_words(conversation.facts).splitlines()[0] for _ in told]
    assert named == ["tiny at first:1 (not there now)", "tiny at second:2"]
    await conversation.close()


@pytest.mark.parametrize("line", [b"{\n", b'{"event": "dance"}\n', b'{"event": "committed"}\n', b"{}\n"])
async def test_when_the_daemon_says_what_cannot_be_read_the_conversation_is_to_be_opened_again(line: bytes) -> None:
    conversation = opened(line)
    [update] = [update async for update in conversation.updates()]
    assert isinstance(update.event, Failed)
    assert (update.event.taken_back, conversation.is_gone) == (True, True)
    await conversation.close()


@pytest.mark.parametrize("tells", [True, False])
async def test_where_users_cannot_be_told_apart_a_key_is_made(
    tells: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(program, "tells_users", lambda: tells)
    shown_by = {"status": lambda: {"phase": "starting"}, "url": "", "web_error": ""}
    parts = dict.fromkeys(("models", "store", "set_offline", "open", "timeline"))
    daemon = SimpleNamespace(**shown_by, **parts, link=SimpleNamespace(describe=None))
    hub = cast(Hub, daemon)
    async with AsyncExitStack() as stack:
        await serve_web_surfaces(ClientSettings(endpoint_port=0), hub, stack)
        url, _, key = hub.url.partition("/#key=")
        assert bool(key) is not tells
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        assert (await client.get("/moa/v1/status")).status_code == (200 if tells else 401)
        shown = await client.get("/moa/v1/status", headers={"authorization": f"Bearer {key or 'none'}"})
        assert shown.json() == {"phase": "starting"}
    assert not key or key not in caplog.text
