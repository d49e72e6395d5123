"""The client's log: what happened to the link, in a file. Never on the terminal, and never a conversation's text."""

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

MOST_BYTES = 1 << 20  # of the file; one older file of that size is kept
LINE = "%(asctime)s %(levelname)s client %(process)d: %(message)s"
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
    handler.setFormatter(logging.Formatter(LINE))
    for old in log.handlers:
        old.close()
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
