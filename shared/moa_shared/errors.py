"""The catalogue of errors: every failure that a user or a peer can meet, in one tree.

Each class fixes a stable code (sent on the wire), the gRPC status, the process's exit code and a default hint.
The message says what happened (expected and got); the hint says what to do next. Both ends build the same class
from a code, so that a refusal reads the same in the server's log and on the client's screen. Text from peers and files
enters messages: an error is always one line without control characters.
"""

from __future__ import annotations

from typing import ClassVar

from moa_shared.text.plain_text import plain_line


class MoaError(Exception):
    """Base of all errors that moa reports.

    Args:
        message: one sentence: what happened, expected and got.
        hint: one sentence: what to do; the class's default where None.
    """

    code: ClassVar[str] = "internal"
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70  # sysexits.h EX_SOFTWARE
    default_hint: ClassVar[str] = "This is a defect of moa: please report it with the log."

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = plain_line(message)
        self.hint = self.default_hint if hint is None else plain_line(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InternalError(MoaError):
    """A defect: something happened that should be impossible."""


class ConfigError(MoaError):
    """A flag, an environment variable or a configuration file holds a value that cannot be used."""

    code = "config"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 2
    default_hint = "See --help for the values allowed."


class NoFormsError(ConfigError):
    """An answer must have a form, and the server lacks the library that holds answers to one."""

    code = "no_forms"
    grpc_status = "FAILED_PRECONDITION"
    default_hint = "Ask for text, or have its operator install llguidance."


class NotFoundError(MoaError):
    """A file or a name that the user gave does not exist."""

    code = "not_found"
    grpc_status = "NOT_FOUND"
    exit_code = 66  # EX_NOINPUT
    default_hint = "Check the name."


class ModelSourceError(MoaError):
    """A model cannot be fetched, read or used."""

    code = "model_source"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 66
    default_hint = "Name a model with 'default', a hub id, a local folder or a .gguf file."


class ChecksumError(ModelSourceError):
    """A file is not what it was recorded to be."""

    code = "checksum"
    exit_code = 65  # EX_DATAERR
    default_hint = "Delete the file and fetch it again."


class CheckpointError(MoaError):
    """A drafter checkpoint is corrupt, truncated or of the wrong shape."""

    code = "checkpoint"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 65
    default_hint = "Fetch or train the checkpoint again."


class DataError(MoaError):
    """Training or evaluation data that cannot be used."""

    code = "data"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 65
    default_hint = "Check the file named."


class DiskFullError(MoaError):
    """No room for a file that must be written."""

    code = "disk_full"
    grpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 74  # EX_IOERR
    default_hint = "Free some space, or set MOA_CACHE_DIR to a folder on a larger disk."


class HistoryError(MoaError):
    """The conversations that this device keeps cannot be read or written."""

    code = "history"
    exit_code = 74
    default_hint = "Chat with --no-history, which keeps nothing."


class ConflictError(MoaError):
    """What is asked for contradicts what is going on."""

    code = "conflict"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 75  # EX_TEMPFAIL
    default_hint = "Try again when that is over."


class OutputError(MoaError):
    """Standard output cannot be written."""

    code = "output"
    exit_code = 74
    default_hint = "Write to another place, or free some space there."


class ProtocolError(MoaError):
    """The peer sent something that the protocol does not allow in this state.

    Args:
        expected: what would have been legal.
        got: what came.
    """

    code = "protocol"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 76  # EX_PROTOCOL
    default_hint = "Use the same version of moa at both ends."

    def __init__(self, expected: str, got: str = "", *, hint: str | None = None) -> None:
        super().__init__(f"Expected {expected}, got {got}." if got else expected, hint=hint)


class MismatchError(MoaError):
    """Client and server do not run the same thing (protocol version, target, tokenizer or drafter).

    Args:
        what: the thing compared, in words.
        expected: the server's value.
        got: the client's value.
    """

    code = "mismatch"
    grpc_status = "FAILED_PRECONDITION"
    exit_code = 78  # EX_CONFIG
    default_hint = "Start the client with the server's model and drafter, or connect to another server."

    def __init__(self, what: str, expected: str = "", got: str = "", *, hint: str | None = None) -> None:
        message = f"The {what} does not match: the server has {expected}, the client has {got}." if expected else what
        super().__init__(message, hint=hint)


class ContextLengthError(MoaError):
    """The tokens do not fit into the context."""

    code = "context_length"
    grpc_status = "OUT_OF_RANGE"
    exit_code = 65
    default_hint = "Shorten the prompt, /reset the conversation, or raise the server's --context-length."


class TokenRangeError(MoaError):
    """A token id outside the target's vocabulary."""

    code = "token_range"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 65
    default_hint = "Use the server's tokenizer."


class TreeError(MoaError):
    """A draft tree that is not a tree: parents must come before their children."""

    code = "tree"
    grpc_status = "INVALID_ARGUMENT"
    exit_code = 76
    default_hint = "Number the nodes so that each parent comes before its children."


class OverloadedError(MoaError):
    """The server has no room for one more session, stream or answer.

    Attributes:
        retry_after_ms: when to try again.
    """

    retry_after_ms = 2000  # an answer of 50 tokens on one core

    code = "overloaded"
    grpc_status = "RESOURCE_EXHAUSTED"
    exit_code = 75  # EX_TEMPFAIL
    default_hint = "Try again in a few seconds."


class RateLimitError(OverloadedError):
    """The caller has used up what it may take in a minute."""

    code = "rate_limit"
    default_hint = "Wait as long as told; the operator can raise the limit of your key."


class DeniedError(MoaError):
    """The server does not let this caller do this; asking again changes nothing."""

    code = "denied"
    grpc_status = "PERMISSION_DENIED"
    exit_code = 77  # EX_NOPERM
    default_hint = "Ask the operator."


class AuthenticationError(DeniedError):
    """The caller has not shown a key or a certificate that the server knows."""

    code = "authentication"
    grpc_status = "UNAUTHENTICATED"
    default_hint = "Add the server again with its key: moa-client servers add NAME ADDRESS --tls --key-file FILE."


class ForbiddenError(DeniedError):
    """The caller's key does not permit this."""

    code = "forbidden"
    default_hint = "Ask the operator for a key with this right."


class UnavailableError(MoaError):
    """The server cannot be reached, or is shutting down.

    Attributes:
        servers: HOST:PORT of those that go on in its place, best first.
    """

    servers: tuple[str, ...] = ()

    code = "unavailable"
    grpc_status = "UNAVAILABLE"
    exit_code = 69  # EX_UNAVAILABLE
    default_hint = "Check --server HOST:PORT, and that moa-server runs there."


class CancelledAnswerError(MoaError):
    """The user stopped the answer."""

    code = "cancelled"
    grpc_status = "CANCELLED"
    exit_code = 130  # the shell's 128 + SIGINT
    default_hint = ""


def _subclasses(cls: type[MoaError]) -> list[type[MoaError]]:
    return [cls] + [leaf for sub in cls.__subclasses__() for leaf in _subclasses(sub)]


CATALOGUE: dict[str, type[MoaError]] = {cls.code: cls for cls in _subclasses(InternalError) + _subclasses(MoaError)}
CATALOGUE["internal"] = InternalError


def error_from_code(code: str, message: str, hint: str) -> MoaError:
    """The error that a peer reported, as the class of that code (InternalError for a code unknown here)."""
    cls = CATALOGUE.get(code, InternalError)
    error = cls.__new__(cls)
    MoaError.__init__(error, message, hint=hint)
    return error
