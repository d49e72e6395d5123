from __future__ import annotations

from typing import Any

import pytest
from moa_client.web.error_form import RequestError

TOO_LONG = RequestError(400, "The prompt has 9 tokens.", param="messages", code="context_length_exceeded")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (
            "/v1/chat/completions",
            {
                "error": {
                    "message": "The prompt has 9 tokens.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            },
        ),
        (
            "/v1/messages",
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "message": "prompt is too long: The prompt has 9 tokens."},
            },
        ),
        ("/api/chat", {"error": "The prompt has 9 tokens."}),
    ],
)
def test_an_error_has_the_form_of_its_path(path: str, fields: dict[str, Any]) -> None:
    assert TOO_LONG.fields_at(path) == fields


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (408, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (503, "overloaded_error"),
    ],
)
def test_the_types_are_anthropics(status: int, kind: str) -> None:
    assert RequestError(status, "").anthropic_fields["error"]["type"] == kind
