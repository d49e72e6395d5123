"""The guard before real routes, over a socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from inline_snapshot import snapshot
from moa_client.web.access import Access, read_key
from moa_client.web.app import make_app
from moa_shared.errors import ConfigError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from tests.support.messages import says

GUARDED = "https://app.example"
KEY = "0123456789abcdef"


async def show(request: Request) -> Response:
    return JSONResponse({"path": request.url.path})


async def fail(request: Request) -> Response:
    raise ZeroDivisionError


async def greet(socket: WebSocket) -> None:
    await socket.accept("moa")
    await socket.send_text("hello")
    await socket.close()


def client(*, origins: tuple[str, ...] = (), key: str = "") -> httpx.AsyncClient:
    routes = [Route(path, show) for path in ("/", "/page/a.js", "/v1/models")]
    app = make_app(
        [*routes, Route("/fail", fail), WebSocketRoute("/live", greet)], Access("127.0.0.1", 8674, origins, key)
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost:8674")


def error_of(response: httpx.Response) -> dict[str, Any]:
    error = response.json()["error"]
    assert isinstance(error, dict)
    return error


async def test_a_request_of_this_device_enters() -> None:
    response = await client().get("/v1/models")
    assert response.json() == {"path": "/v1/models"}
    assert response.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in response.headers


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models//", "//"])
async def test_a_slash_at_the_end_is_the_same_path(path: str) -> None:
    response = await client().get(path)
    assert (response.status_code, response.json()) == (200, {"path": path.rstrip("/") or "/"})


async def test_a_name_that_was_pointed_here_does_not() -> None:
    response = await client().get("/v1/models", headers={"host": "evil.example"})
    assert (response.status_code, error_of(response)["type"]) == (403, "permission_error")


async def test_a_foreign_page_does_not_and_learns_nothing() -> None:
    response = await client(origins=(GUARDED,)).get("/v1/models", headers={"origin": "https://evil.example"})
    assert response.status_code == 403
    assert "access-control-allow-origin" not in response.headers
    asked = await client(origins=(GUARDED,)).options("/v1/models", headers={"origin": "https://evil.example"})
    assert asked.status_code == 403


async def test_an_allowed_page_may_ask_what_it_may_send_and_read_the_answer() -> None:
    headers = {
        "origin": GUARDED,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
        "access-control-request-private-network": "true",
    }
    asked = await client(origins=(GUARDED,), key=KEY).options("/v1/models", headers=headers)
    assert asked.status_code == 204
    assert {name: value for name, value in asked.headers.items() if name.startswith("access")} == {
        "access-control-allow-origin": GUARDED,
        "access-control-expose-headers": "retry-after",
        "access-control-allow-methods": "GET, POST, DELETE",
        "access-control-allow-headers": "authorization,content-type",
        "access-control-max-age": "600",
        "access-control-allow-private-network": "true",
    }
    response = await client(origins=(GUARDED,)).get("/v1/models", headers={"origin": GUARDED})
    assert (response.headers["access-control-allow-origin"], response.headers["vary"]) == (GUARDED, "origin")
    refused = await client(origins=(GUARDED,), key=KEY).get("/v1/models", headers={"origin": GUARDED})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, GUARDED)


async def test_the_key_is_needed_for_all_but_the_pages_files() -> None:
    with_key = client(key=KEY)
    assert (await with_key.get("/")).status_code == 200
    assert (await with_key.get("/page/a.js")).status_code == 200
    refused = await with_key.get("/v1/models")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert error_of(refused) == snapshot(
        {
            "message": "The key is missing. Send it as Authorization: Bearer KEY.",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_api_key",
        }
    )
    wrong = await with_key.get("/v1/models", headers={"authorization": "Bearer wrong"})
    assert error_of(wrong)["message"] == snapshot("The key is wrong. Send it as Authorization: Bearer KEY.")
    assert (await with_key.get("/v1/models", headers={"authorization": f"Bearer {KEY}"})).status_code == 200
    unknown = await with_key.get("/moa/v1/conversations")
    assert unknown.status_code == 401  # whether there is such a path is nobody's business


async def test_what_is_not_there_and_what_fails_reads_as_other_errors_do(caplog: pytest.LogCaptureFixture) -> None:
    missing = await client().get("/v1/files")
    assert (missing.status_code, error_of(missing)["message"]) == (
        404,
        snapshot("There is nothing at /v1/files. What there is: /v1/models."),
    )
    root = await client().get("/v1/")
    assert error_of(root)["message"] == snapshot("There is nothing at /v1. What there is: /v1/models.")
    elsewhere = await client().get("/files")
    assert error_of(elsewhere)["message"] == snapshot("There is nothing at /files.")
    method = await client().put("/v1/models")
    assert (method.status_code, error_of(method)["message"]) == (405, snapshot("PUT /v1/models: Method Not Allowed."))
    failed = await client().get("/fail")
    assert (failed.status_code, error_of(failed)["code"]) == (500, "internal")
    assert "a request to /fail has failed" in caplog.text


KEY_KEY = "0123456789abcdef.-"


def test_the_file_counts_before_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY_KEY}\n")
    path.chmod(0o600)
    assert read_key(path, {"MOA_ENDPOINT_KEY": "another-one-0123456789"}) == KEY_KEY
    assert read_key(None, {"MOA_ENDPOINT_KEY": KEY_KEY}) == KEY_KEY
    assert read_key(None, {}) == ""


@pytest.mark.parametrize("text", ["short", "", f"{KEY_KEY};", f'"{KEY_KEY}"', f"{KEY_KEY}=", f"{KEY_KEY},"])
def test_what_could_not_be_sent_or_guessed_is_refused(text: str) -> None:
    with says(ConfigError, "MOA_ENDPOINT_KEY has no key of at least 16 letters, digits and ._~+-"):
        read_key(None, {"MOA_ENDPOINT_KEY": text})
