"""Whether a request comes from the page itself: another site's page must not ask, listen or delete. Pure."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import HTTPConnection


def is_own(connection: HTTPConnection) -> bool:
    """Whether the request's origin, if it names one, is the host that it was sent to."""
    origin = connection.headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == connection.headers.get("host", "").lower() != ""
    except ValueError:
        return False
