"""Structured logs on standard error: one event a line, as JSON for machines or plain for people.

Invariant: what clients wrote is clipped, and no conversation is in it: tracebacks come without local variables.
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Literal, TextIO

import structlog
from moa_shared.plain_text import plain_line
from moa_shared.programs.progress import Progress, Task

MOST_CHARACTERS = 300  # of one value: some of them were written by clients


def configure_logs(
    log_format: Literal["auto", "json", "plain"] = "auto",
    level: str = "info",
    stream: TextIO | None = None,
    on_event: Callable[[str], None] | None = None,
) -> bool:
    """Sets up structlog for the process; returns whether it writes JSON.

    `stream`: None: standard error. `on_event`: called with the level of each line, on any thread.
    """
    stream = sys.stderr if stream is None else stream
    plain = log_format == "plain" or (log_format == "auto" and stream.isatty())
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        partial(_clip, on_event),
        structlog.processors.StackInfoRenderer(),
    ]
    if plain:
        formatter = structlog.dev.plain_traceback
        processors.append(structlog.dev.ConsoleRenderer(colors=stream.isatty(), exception_formatter=formatter))
    else:
        transformer = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
        processors += [structlog.processors.ExceptionRenderer(transformer), structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
    return not plain


def _clip(
    on_event: Callable[[str], None] | None, logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Clips long values and removes terminal control characters."""
    if on_event is not None:
        on_event(str(event["level"]))
    for name, value in event.items():
        if isinstance(value, str):
            more = f"... ({len(value)} characters)" if len(value) > MOST_CHARACTERS else ""
            event[name] = plain_line(value[:MOST_CHARACTERS]) + more
    return event


class LogProgress(Progress):
    """Reports progress as log events: where standard error is JSON, nothing else belongs there."""

    @contextmanager
    def task(self, title: str, total: int | None = None, *, is_bytes: bool = False) -> Iterator[Task]:
        log, began = structlog.get_logger(), time.monotonic()
        log.info("begun", task=title, **({"total": total} if total else {}))
        with super().task(title, total, is_bytes=is_bytes) as task:
            yield task
        log.info("done", task=title, seconds=round(time.monotonic() - began, 1))

    def note(self, line: str) -> None:
        structlog.get_logger().info("note", text=line)
