"""The client's log: in a file, never on the terminal, and never a conversation's text.

It has what is known of an unforeseen exception, which surfaces are told of in one sentence.

Each task of a conversation ends in an event, whatever was raised in it. A panic of a package in Rust is no Exception,
so BaseException is caught; what ends a task or the program passes.
"""

import asyncio
import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from moa_shared.errors import InternalError, MoaError

MOST_BYTES = 1 << 20  # of the file; one older file of that size is kept
ENDING = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
log = logging.getLogger("moa_client")


def log_file() -> Path:
    """The file in the user's log folder, which is made where absent."""
    import platformdirs

    path = platformdirs.user_log_path("moa", appauthor=False) / "client.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def configure_log() -> None:
    """Sends the client's log to its file, which is made with the first line; what cannot be written is dropped."""
    logging.raiseExceptions = False  # a log that cannot be written must not end a chat, nor be a traceback in it
    handler = RotatingFileHandler(log_file(), maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s client %(process)d: %(message)s"))
    for old in log.handlers:
        old.close()
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def told(error: BaseException, what: str = "The conversation") -> MoaError:
    """What surfaces are told of an exception, which is raised again if it ends a task or the program."""
    if isinstance(error, ENDING):
        raise error
    if isinstance(error, MoaError):
        return error
    log.error("%s has failed", what, exc_info=error)
    return InternalError(f"{what} has failed ({type(error).__name__}).")
