"""The client's log: what happened to the link, in a file. Never on the terminal, and never a conversation's text.

A log that cannot be written must not end a chat: only a file that the user names is checked, when the program starts.
"""

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from moa_shared.errors import ConfigError

MOST_BYTES = 1 << 20  # of the file; one older file of that size is kept
LINE = "%(asctime)s %(levelname)s client %(process)d: %(message)s"
log = logging.getLogger("moa_client")


def default_log_file() -> Path:
    """The log in the user's log folder, which is made where absent."""
    import platformdirs

    path = platformdirs.user_log_path("moa", appauthor=False) / "client.log"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
    return path


def configure_log(log_file: Path | None) -> None:
    """Sends the client's log to a file. `log_file`: None: the default one, made with the first line."""
    logging.raiseExceptions = False  # a line that cannot be written is dropped, without a traceback
    path = log_file if log_file is not None else default_log_file()
    try:
        handler = RotatingFileHandler(path, maxBytes=MOST_BYTES, backupCount=1, encoding="utf-8", delay=not log_file)
    except OSError as error:
        raise ConfigError(
            f"The log file {path} cannot be written: {error.strerror or error}.", hint="Name another with --log-file."
        ) from error
    handler.setFormatter(logging.Formatter(LINE))
    for old in log.handlers:
        old.close()
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
