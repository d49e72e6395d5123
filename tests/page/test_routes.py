"""The page's routes, without a browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPResponse

import pytest
from inline_snapshot import snapshot
from websockets.exceptions import InvalidStatus
from websockets.sync.client import ClientConnection, connect

from tests.page.conftest import Serve
from tests.page.served import ServedPage
from tests.page.stage import Stage

FOREIGN = {"origin": "https://elsewhere.example"}


async def answer(stage: Stage, question: str) -> None:
    await stage.commit("Yes.")
    stage.end()


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(answer)
    served.call(lambda: served.backend.remember("tides", "Two tides", [("Why?", "The Moon.")]))
    return served


def request(
    served: ServedPage, path: str, method: str = "GET", headers: Mapping[str, str] | None = None
) -> HTTPResponse:
    connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
    connection.request(method, path, headers=dict(headers or {}))
    response = connection.getresponse()
    response.body = response.read()  # type: ignore[attr-defined]
    connection.close()
    return response


def body(response: HTTPResponse) -> bytes:
    return bytes(response.body)  # type: ignore[attr-defined]


def talk(served: ServedPage, path: str = "/moa/v1/conversation", **options: str) -> ClientConnection:
    return connect(f"ws://127.0.0.1:{served.port}{path}", additional_headers=options, max_size=None)


def test_files_have_types_tags_and_a_strict_policy(served: ServedPage) -> None:
    types = {"/": "text/html", "/page/app.js": "text/javascript", "/page/styles/base.css": "text/css"}
    for path, kind in {**types, "/page/icon.svg": "image/svg+xml", "/page/vendor/LICENSES.txt": "text/plain"}.items():
        response = request(served, path)
        assert response.status == 200, path
        assert response.headers["content-type"].startswith(kind)
        assert response.headers["content-security-policy"].startswith("default-src 'self'; object-src 'none';")
        assert response.headers["x-content-type-options"] == "nosniff"
        again = request(served, path, headers={"if-none-match": response.headers["etag"]})
        assert (again.status, body(again)) == (304, b"")


def test_only_files_of_the_page_are_served(served: ServedPage) -> None:
    for path in ("/page/", "/page/none.js", "/page/../backend.py", "/page/%2e%2e/backend.py", "/page/styles"):
        assert request(served, path).status == 404, path


def test_the_page_names_no_other_host(served: ServedPage) -> None:
    text = body(request(served, "/")).decode()
    assert "//" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "<script>" not in text
    assert " style=" not in text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/moa/v1/status"),
        ("GET", "/moa/v1/conversations"),
        ("DELETE", "/moa/v1/conversations/tides"),
        ("POST", "/moa/v1/offline"),
    ],
)
def test_other_sites_may_not_ask(served: ServedPage, method: str, path: str) -> None:
    assert request(served, path, method, FOREIGN).status == 403
    assert request(served, path, method, {"origin": served.url}).status in (200, 204)


@pytest.mark.parametrize("path", ["/moa/v1/conversation", "/moa/v1/timeline"])
def test_other_sites_may_not_connect(served: ServedPage, path: str) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        talk(served, path, **FOREIGN)


def test_conversations_are_listed_exported_and_deleted(served: ServedPage) -> None:
    (kept,) = json.loads(body(request(served, "/moa/v1/conversations?search=moon")))["conversations"]
    assert (kept["id"], kept["title"], kept["answers"], kept["unverified"]) == ("tides", "Two tides", 1, 0)
    assert json.loads(body(request(served, "/moa/v1/conversations?search=sun")))["conversations"] == []
    exported = request(served, "/moa/v1/conversations/tides/export?format=markdown")
    assert exported.headers["content-disposition"] == 'attachment; filename="conversation-tides.md"'
    assert body(exported).startswith(b"# Two tides")
    assert json.loads(body(request(served, "/moa/v1/conversations/tides")))["id"] == "tides"
    with talk(served) as tab:
        tab.send('{"do": "open", "conversation": "tides"}')
        tab.recv(30)
        assert request(served, "/moa/v1/conversations/tides", "DELETE").status == 409
    served.wait_until(lambda: not served.backend.open_conversations["tides"].subscriptions)
    assert request(served, "/moa/v1/conversations/tides", "DELETE").status == 204
    assert request(served, "/moa/v1/conversations/tides", "DELETE").status == 404


def test_a_conversation_over_a_websocket(served: ServedPage) -> None:
    with talk(served, origin=served.url) as tab:
        tab.send('{"do": "open", "conversation": null, "system": null}')
        assert json.loads(tab.recv(30))["event"] == "opened"
        tab.send('{"do": "ask", "question": "Is it?", "options": {"temperature": 0, "seed": 3}}')
        events = [json.loads(tab.recv(30)) for _ in range(3)]
        assert [(each["event"], each["answer"]) for each in events] == [("asked", 1), ("committed", 1), ("ended", 1)]
        tab.send('{"do": "title", "title": "Tides"}')
        assert json.loads(tab.recv(30))["title"] == "Tides"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "{",
            snapshot(
                "The message cannot be read: Expecting property name enclosed in double quotes: line 1 column 2 (char 1). docs/device.md has the messages."
            ),
        ),
        (
            "[" * 100_000 + "]" * 100_000,
            snapshot(
                "The message cannot be read: its brackets are nested too deeply. docs/device.md has the messages."
            ),
        ),
        ("[]", snapshot("Expected a JSON object, got another value. docs/device.md has the messages.")),
        ('{"do": "ask"}', snapshot("The first message must open a conversation. Reload the page.")),
        (
            '{"do": "open", "conversation": "none"}',
            snapshot("There is no conversation none. Begin a new one."),
        ),
    ],
    ids=["no JSON", "deep", "a list", "not open", "not there"],
)
def test_what_cannot_be_followed_is_answered_and_changes_nothing(served: ServedPage, text: str, message: str) -> None:
    with talk(served) as tab:
        tab.send(text)
        error = json.loads(tab.recv(30))
        assert error["event"] == "error"
        assert f"{error['message']} {error['hint']}" == message
        tab.send('{"do": "open", "conversation": "tides"}')
        assert json.loads(tab.recv(30))["event"] == "opened"


ODD = [
    (
        {"do": "ask", "question": "hi", "options": {"max_tokens": 10**30}},
        snapshot(
            "max_tokens is 1000000000000000000000000000000, expected 0 (as the context allows) to 2**32 - 1. See --help for the values allowed."
        ),
    ),
    (
        {"do": "ask", "question": "hi", "options": {"x" * 200: 1}},
        snapshot(
            "There is no option 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... of an answer. docs/device.md lists them."
        ),
    ),
    (
        {"do": "rewind", "answers": True},
        snapshot("`answers` must be a number from 0 on. docs/device.md has the messages."),
    ),
    (
        {"do": ["x"] * 1000},
        snapshot(
            "There is nothing to do that is called ['x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x', 'x',.... docs/device.md has the messages."
        ),
    ),
]


@pytest.mark.parametrize(("sent", "message"), ODD, ids=range(len(ODD)))
def test_what_an_open_conversation_cannot_follow_is_answered(
    served: ServedPage, sent: dict[str, object], message: str
) -> None:
    with talk(served) as tab:
        tab.send('{"do": "open", "conversation": "tides"}')
        tab.recv(30)
        tab.send(json.dumps(sent))
        error = json.loads(tab.recv(30))
        assert error["event"] == "error"
        assert f"{error['message']} {error['hint']}" == message
        tab.send('{"do": "title", "title": "Tides"}')
        assert json.loads(tab.recv(30))["event"] == "titled"


def test_what_crosses_the_link_is_told_to_those_who_watch(served: ServedPage) -> None:
    with talk(served, "/moa/v1/timeline") as tab:
        served.wait_until(lambda: served.backend.watching == 1)
        served.call(lambda: served.backend.open_conversations["tides"].cross("up", "draft", 30, 3))
        crossing = json.loads(tab.recv(30))
    assert {**crossing, "t": 0} == {
        "t": 0,
        "way": "up",
        "kind": "draft",
        "bytes": 30,
        "tokens": 3,
        "accepted": 0,
        "conversation": "tides",
        "server_accepted": 0,
    }
    served.wait_until(lambda: served.backend.watching == 0)
