"""The page's routes, without a browser."""

import json
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from moa_client.page.routes import TOO_BIG, Crossing
from moa_client.surface.messages import MOST_QUESTION_BYTES
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.sync.connection import Connection

from tests.page.conftest import Serve
from tests.page.fake_daemon import says
from tests.page.served import ServedPage

FOREIGN = {"origin": "https://elsewhere.example"}
Cases = list[tuple[str | dict[str, Any], str]]


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(says("Yes."))
    served.remember("tides", "Two tides", [("Why?", "The Moon.")])
    return served


def request(served: ServedPage, path: str, method: str = "GET", **headers: str) -> httpx.Response:
    return httpx.request(method, served.url + path, headers=headers, timeout=30, trust_env=False)


def talk(served: ServedPage, path: str = "/moa/v1/conversation", **options: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{served.port}{path}", additional_headers=options, max_size=None, proxy=None)


def answer(tab: Connection, sent: str | dict[str, Any]) -> dict[str, Any]:
    """What comes next after a message."""
    tab.send(sent if isinstance(sent, str) else json.dumps(sent))
    told = json.loads(tab.recv(30))
    assert isinstance(told, dict)
    return told


def test_files_have_types_tags_and_a_strict_policy(served: ServedPage) -> None:
    types = {"/": "text/html", "/page/app.js": "text/javascript", "/page/styles/base.css": "text/css"}
    for path, kind in {**types, "/page/icon.svg": "image/svg+xml", "/page/vendor/README.txt": "text/plain"}.items():
        response = request(served, path)
        assert response.status_code == 200, path
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["content-security-policy"] == (
            "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
            "require-trusted-types-for 'script'; trusted-types 'none'"
        )
        assert response.headers["x-content-type-options"] == "nosniff"
        again = request(served, path, **{"if-none-match": response.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")


def test_only_files_of_the_page_are_served(served: ServedPage) -> None:
    for path in ("/page/", "/page/none.js", "/page/%2e%2e/routes.py", "/page/..%2froutes.py", "/page/styles"):
        assert request(served, path).status_code == 404, path


def test_other_sites_may_neither_ask_nor_connect(served: ServedPage) -> None:
    for method, path in (("GET", "status"), ("DELETE", "conversations/tides"), ("POST", "offline")):
        assert request(served, f"/moa/v1/{path}", method, **FOREIGN).status_code == 403
    for path in ("conversation", "timeline"):
        with pytest.raises(InvalidStatus, match="403"):
            talk(served, f"/moa/v1/{path}", **FOREIGN)


def test_conversations_are_listed_and_deleted(served: ServedPage) -> None:
    listed = "/moa/v1/conversations"
    (kept,) = request(served, f"{listed}?search=moon").json()["conversations"]
    assert (kept["id"], kept["title"], kept["answers"], kept["unverified"]) == ("tides", "Two tides", 1, 0)
    assert request(served, f"{listed}?search=sun").json()["conversations"] == []
    with talk(served) as tab:
        answer(tab, {"do": "open", "conversation": "tides"})
        assert request(served, f"{listed}/tides", "DELETE").status_code == 409
    served.wait_until(lambda: not served.backend.open_conversations["tides"].subscriptions)
    assert [request(served, f"{listed}/tides", "DELETE").status_code for _ in "12"] == [204, 404]


def test_what_cannot_be_followed_changes_nothing_and_what_is_too_long_is_the_last(served: ServedPage) -> None:
    ask, opens = {"do": "ask", "question": "hi"}, {"do": "open", "conversation": "tides"}
    before: Cases = [
        ("{", "The message cannot be read: Expecting property name"),
        ("[" * 100_000 + "]" * 100_000, "The message cannot be read: its brackets are nested too deeply."),
        (ask, "The first message must open a conversation."),
        ({**opens, "conversation": "none"}, "There is no conversation none."),
    ]
    after: Cases = [
        ({**ask, "question": " "}, "The question is empty."),
        ({**ask, "options": {"max_tokens": 10**30}}, "expected 0 (as the context allows) to 2**32"),
        ({**ask, "options": {"x" * 200: 1}}, "xxx... of an answer."),
        ({"do": "continue", "max_tokens": True}, "`max_tokens` must be a number from 0 on."),
        ({"do": ["x"] * 1000}, "There is nothing to do that is called ['x', 'x',"),
    ]
    with talk(served) as tab:
        for cases, next_, event in ((before, opens, "opened"), (after, {"do": "title", "title": "Tides"}, "titled")):
            for sent, words in cases:
                error = answer(tab, sent)
                assert (error["event"], words in error["message"], len(error["message"]) < 200) == ("error", True, True)
            assert answer(tab, next_)["event"] == event
        with pytest.raises(ConnectionClosed) as closed:
            answer(tab, {"do": "x" * MOST_QUESTION_BYTES})
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == TOO_BIG


def test_what_crosses_the_link_is_told_to_those_who_watch(served: ServedPage) -> None:
    watchers, crossing = served.backend.tap._watchers, Crossing(0.0, "up", "draft", 30, 3, 0, "tides", 0)
    with talk(served, "/moa/v1/timeline") as tab:
        served.wait_until(lambda: len(watchers) == 1)
        served.call(lambda: watchers[0].put_nowait(crossing))
        assert json.loads(tab.recv(30)) == asdict(crossing)
    served.wait_until(lambda: not watchers)
