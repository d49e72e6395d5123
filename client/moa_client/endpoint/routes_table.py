"""All routes as a Markdown table: each has the first line of its handler's docstring. Pure."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from starlette.routing import BaseRoute, Route


def routes_table(routes: Iterable[BaseRoute]) -> str:
    """The routes as a Markdown table."""
    lines = ["| request | answer |", "| --- | --- |"]
    for route in routes:
        if isinstance(route, Route):
            methods = sorted((route.methods or set()) - {"HEAD"})
            path = route.path.replace("{name:path}", "NAME")
            lines.append(f"| `{'|'.join(methods)} {path}` | {_words(route)} |")
    return "\n".join(lines) + "\n"


def _words(route: Route) -> str:
    """What a request gets, with a small letter.

    Raises:
        ValueError: the handler does not say it.
    """
    words = (inspect.getdoc(route.endpoint) or "").partition("\n")[0].removesuffix(".")
    if not words:
        raise ValueError(f"The handler of {route.path} has no docstring.")
    return words[0].lower() + words[1:]
