"""Where the daemon's files are, and who may enter their folder."""

from __future__ import annotations

import asyncio
import os
import stat
import tempfile
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import httpx
import pytest
from moa_client.chat.messages import facts_words
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import Failed, LinkState, ServerChanged
from moa_client.conversation.figures import LinkStatus
from moa_client.daemon import program
from moa_client.daemon.process import (
    DaemonPaths,
    find_holder,
    find_paths,
    make_folder,
    take_lock,
)
from moa_client.daemon.program import Hub, serve_web_surfaces
from moa_client.settings import ClientSettings
from moa_client.surface.conversation import OpenConversation
from moa_client.surface.messages import ConversationFacts, encode_line, fields_of, opened_fields
from moa_shared.errors import ConfigError

from tests.support.messages import says


def test_they_are_in_the_runtime_folder_or_else_in_that_of_the_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert find_paths().folder == Path("/run/user/7/moa")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/home/ada/.local/state")
    assert find_paths().socket == Path("/home/ada/.local/state/moa/run/daemon.sock")


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
    """A conversation of which the daemon says this."""
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
    parts = dict.fromkeys(("host", "store", "set_offline", "open", "timeline"))
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
