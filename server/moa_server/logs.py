"""Structured logs on standard error: one event a line, as JSON for machines or plain for people."""

from __future__ import annotations

import logging
import sys
from typing import Literal, TextIO

import structlog


def configure_logs(
    log_format: Literal["auto", "json", "plain"] = "auto", level: str = "info", stream: TextIO | None = None
) -> None:
    """Sets up structlog for the process.

    Args:
        log_format: "auto" is plain on a terminal and JSON elsewhere.
        level: events below it are dropped.
        stream: default: standard error, so that standard output stays free.
    """
    stream = sys.stderr if stream is None else stream
    plain = log_format == "plain" or (log_format == "auto" and stream.isatty())
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=stream.isatty()) if plain else structlog.processors.JSONRenderer()
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    if not plain:
        processors.append(structlog.processors.dict_tracebacks)
    structlog.configure(
        processors=[*processors, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=False,
    )
