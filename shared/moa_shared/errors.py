"""The catalogue of errors: every failure that a user or a peer can meet, in one tree.

Each class fixes a stable code (sent on the wire), the gRPC status, the process's exit code and a default hint.
The message says what happened (expected and got); the hint says what to do next. Both ends build the same class
from a code, so that a refusal reads the same in the server's log and on the client's screen. Text from peers and files
enters messages: an error is always one line, of at most 2,000 characters, without control characters.
"""

from typing import ClassVar

from moa_shared.plain_text import plain_line


class MoaError(Exception):
    """Base of all errors that moa reports: a sentence of what happened, and one of what to do (None: the class's)."""

    code: ClassVar[str] = "internal"
    grpc_status: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 70  # sysexits.h has 64 to 78
    default_hint: ClassVar[str] = "This is a defect of moa: please report it with the log."

    def __init_subclass__(
        cls, code: str = "", status: str = "", exit_code: int = 0, hint: str | None = None, **rest: object
    ) -> None:
        """A row of the catalogue; what it leaves out is its parent's."""
        super().__init_subclass__(**rest)
        cls.code, cls.grpc_status = code or cls.code, status or cls.grpc_status
        cls.exit_code, cls.default_hint = exit_code or cls.exit_code, cls.default_hint if hint is None else hint

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = plain_line(message, 2000)
        self.hint = self.default_hint if hint is None else plain_line(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class InternalError(MoaError):
    """A defect: something happened that should be impossible."""


class ConfigError(
    MoaError, code="config", status="INVALID_ARGUMENT", exit_code=2, hint="See --help for the values allowed."
):
    """A flag, an environment variable or a configuration file holds a value that cannot be used."""


class NoFormsError(
    ConfigError,
    code="no_forms",
    status="FAILED_PRECONDITION",
    hint="Ask for text, or have its operator install llguidance.",
):
    """An answer must have a form, and the server lacks the library that holds answers to one."""


class NotFoundError(MoaError, code="not_found", status="NOT_FOUND", exit_code=66, hint="Check the name."):
    """A file or a name that the user gave does not exist."""


class ModelSourceError(
    MoaError,
    code="model_source",
    status="FAILED_PRECONDITION",
    exit_code=66,
    hint="Name a model with 'default', a hub id, a local folder or a .gguf file.",
):
    """A model cannot be fetched, read or used."""


class ChecksumError(ModelSourceError, code="checksum", exit_code=65, hint="Delete the file and fetch it again."):
    """A file is not what it was recorded to be."""


class CheckpointError(
    MoaError, code="checkpoint", status="FAILED_PRECONDITION", exit_code=65, hint="Fetch or train the checkpoint again."
):
    """A drafter checkpoint is corrupt, truncated or of the wrong shape."""


class DataError(MoaError, code="data", status="INVALID_ARGUMENT", exit_code=65, hint="Check the file named."):
    """Training or evaluation data that cannot be used."""


class DiskFullError(
    MoaError,
    code="disk_full",
    status="RESOURCE_EXHAUSTED",
    exit_code=74,
    hint="Free some space, or set MOA_CACHE_DIR to a folder on a larger disk.",
):
    """No room for a file that must be written."""


class HistoryError(MoaError, code="history", exit_code=74, hint="Chat with --no-history, which keeps nothing."):
    """The conversations that this device keeps cannot be read or written."""


class ConflictError(
    MoaError, code="conflict", status="FAILED_PRECONDITION", exit_code=75, hint="Try again when that is over."
):
    """What is asked for contradicts what is going on."""


class OutputError(MoaError, code="output", exit_code=74, hint="Write to another place, or free some space there."):
    """Standard output cannot be written."""


class ProtocolError(
    MoaError, code="protocol", status="INVALID_ARGUMENT", exit_code=76, hint="Use the same version of moa at both ends."
):
    """The peer sent something that the protocol does not allow in this state.

    `expected`: what would have been legal. `got`: what came.
    """

    def __init__(self, expected: str, got: str = "", *, hint: str | None = None) -> None:
        super().__init__(f"Expected {expected}, got {got}." if got else expected, hint=hint)


class MismatchError(
    MoaError,
    code="mismatch",
    status="FAILED_PRECONDITION",
    exit_code=78,
    hint="Start the client with the server's model and drafter, or connect to another server.",
):
    """Client and server do not run the same thing (protocol version, target, tokenizer or drafter).

    `what`: the thing compared, in words. `expected`: the server's value. `got`: the client's value.
    """

    def __init__(self, what: str, expected: str = "", got: str = "", *, hint: str | None = None) -> None:
        message = f"The {what} does not match: the server has {expected}, the client has {got}." if expected else what
        super().__init__(message, hint=hint)


class ContextLengthError(
    MoaError,
    code="context_length",
    status="OUT_OF_RANGE",
    exit_code=65,
    hint="Shorten the prompt, /reset the conversation, or raise the server's --context-length.",
):
    """The tokens do not fit into the context."""


class TokenRangeError(
    MoaError, code="token_range", status="INVALID_ARGUMENT", exit_code=65, hint="Use the server's tokenizer."
):
    """A token id outside the target's vocabulary."""


class TreeError(
    MoaError,
    code="tree",
    status="INVALID_ARGUMENT",
    exit_code=76,
    hint="Number the nodes so that each parent comes before its children.",
):
    """A draft tree that is not a tree: parents must come before their children."""


class OverloadedError(
    MoaError, code="overloaded", status="RESOURCE_EXHAUSTED", exit_code=75, hint="Try again in a few seconds."
):
    """The server has no room for one more session, stream or answer."""

    retry_after_ms = 2000  # when to try again: an answer of 50 tokens on one core


class RateLimitError(
    OverloadedError, code="rate_limit", hint="Wait as long as told; the operator can raise the limit of your key."
):
    """The caller has used up what it may take in a minute."""


class DeniedError(MoaError, code="denied", status="PERMISSION_DENIED", exit_code=77, hint="Ask the operator."):
    """The server does not let this caller do this; asking again changes nothing."""


class AuthenticationError(
    DeniedError,
    code="authentication",
    status="UNAUTHENTICATED",
    hint="Add the server again with its key: moa-client servers add NAME ADDRESS --tls --key-file FILE.",
):
    """The caller has not shown a key or a certificate that the server knows."""


class ForbiddenError(DeniedError, code="forbidden", hint="Ask the operator for a key with this right."):
    """The caller's key does not permit this."""


class UnavailableError(
    MoaError,
    code="unavailable",
    status="UNAVAILABLE",
    exit_code=69,
    hint="Check --server HOST:PORT or `moa-client servers list`, and that moa-server runs there.",
):
    """The server cannot be reached, or is shutting down."""

    servers: tuple[str, ...] = ()  # HOST:PORT of those that go on in its place, best first


class CancelledAnswerError(MoaError, code="cancelled", status="CANCELLED", exit_code=130, hint=""):
    """The user stopped the answer."""


CATALOGUE: dict[str, type[MoaError]] = {
    cls.code: cls for cls in list(globals().values()) if isinstance(cls, type) and issubclass(cls, MoaError)
}


def error_from_code(code: str, message: str, hint: str) -> MoaError:
    """The error that a peer reported, as the class of that code (InternalError for a code unknown here)."""
    cls = CATALOGUE.get(code, InternalError)
    error = cls.__new__(cls)
    MoaError.__init__(error, message, hint=hint)
    return error
