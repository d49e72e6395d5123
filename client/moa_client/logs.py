"""The client's log: what happened to the link, in a file. Never on the terminal, and never a conversation's text.

A log that cannot be written must not end a chat: only a file that the user names is checked, when the program starts.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from moa_shared.errors import ConfigError

MOST_BYTES = 1 << 20  # of the file; one older file of that size is kept
LINE = "%(asctime)s %(levelname)s client %(process)d: %(message)s"


class _QuietHandler(RotatingFileHandler):
    """Drops a line that cannot be written: the standard handler prints a traceback to standard error."""

    def handleError(self, record: logging.LogRecord) -> None:
        pass


def default_log_file() -> Path:
    """The log in the user's log folder, which is made where absent."""
    import platformdirs

    path = platformdirs.user_log_path("moa", appauthor=False) / "client.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def log_traces(sentence: str) -> None:
    """Logs what is wrong with the traces."""
    logging.getLogger("moa_client").warning("%s", sentence)


def configure_log(log_file: Path | None) -> None:
    """Sends the client's log to a file. `log_file`: None: the default one, made with the first line."""
    path = log_file if log_file is not None else default_log_file()
    try:
        handler = _QuietHandler(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=log_file is None)
    except OSError as error:
        raise ConfigError(
            f"The log file {path} cannot be written: {error.strerror or error}.", hint="Name another with --log-file."
        ) from error
    handler.setFormatter(logging.Formatter(LINE))
    log = logging.getLogger("moa_client")
    for old in log.handlers:
        old.close()
    log.handlers = [handler]
    log.propagate = False
    log.setLevel(logging.INFO)
