"""Errors of HTTP requests, in the form that the clients of their path read: OpenAI's, Anthropic's or ollama's.

Pure. An error of the catalogue keeps its words; its class decides the status.
"""

from typing import Any

from moa_shared import errors
from starlette.responses import JSONResponse

TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ANTHROPIC_TYPES = TYPES | {413: "request_too_large", 503: "overloaded_error"}  # the latter: try again
ANTHROPIC_TOO_LONG = "prompt is too long"  # agents look for these words, and shorten the conversation
UNREAD = (408, 413)  # the body of the request was not read to its end
CODES = {  # which programs look for
    errors.ContextLengthError.code: "context_length_exceeded",
    errors.RateLimitError.code: "rate_limit_exceeded",
}
STATUS: tuple[tuple[type[errors.MoaError], int], ...] = (
    (errors.NotFoundError, 404),
    (errors.OverloadedError, 429),
    (errors.MismatchError, 503),
    (errors.UnavailableError, 503),
    (errors.DeniedError, 502),  # the server does, not this device
    (errors.ConfigError, 400),
    (errors.ContextLengthError, 400),
    (errors.DataError, 400),
    (errors.ModelSourceError, 400),
    (errors.TokenRangeError, 400),
)


class RequestError(Exception):
    """A request is refused, or has failed.

    Args:
        message: what happened, and what to do.
        param: the parameter that it is about, such as "messages[0].role".
        code: for programs.
        retry_seconds: when to try again.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_seconds: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_seconds = retry_seconds

    def fields_at(self, path: str) -> dict[str, Any]:
        """What the clients of a path read."""
        if path.startswith("/api/"):
            return {"error": str(self)}
        if path.startswith("/v1/messages"):
            kind = ANTHROPIC_TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "api_error")
            is_long = self.code == CODES[errors.ContextLengthError.code]
            message = f"{ANTHROPIC_TOO_LONG}: {self}" if is_long else str(self)
            return {"type": "error", "error": {"type": kind, "message": message}}
        kind = TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> JSONResponse:
        """The answer to the request. `path`: of the request, which decides the form; empty: OpenAI's."""
        headers = {} if self.retry_seconds is None else {"retry-after": str(self.retry_seconds)}
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        if self.status in UNREAD:
            headers["connection"] = "close"
        return JSONResponse(self.fields_at(path), self.status, headers)


def request_error(error: errors.MoaError, *, status: int | None = None, param: str | None = None) -> RequestError:
    """An error of the catalogue as the failure of a request.

    `status` is HTTP's, by default that of the error's class; `param` is the parameter that it is about.
    """
    if status is None:
        status = next((status for kind, status in STATUS if isinstance(error, kind)), 500)
    retry = -(-error.retry_after_ms // 1000) if isinstance(error, errors.OverloadedError) else None
    return RequestError(status, str(error), param=param, code=CODES.get(error.code, error.code), retry_seconds=retry)
