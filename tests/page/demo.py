"""Serves the page with scripted answers, to look at it: python -m tests.page.demo [PORT]"""

from __future__ import annotations

import signal
import sys

from tests.page.fake_backend import FakeBackend
from tests.page.scripts import CODE, SCRIPTS, TIDES
from tests.page.served import ServedPage

HOUR = 3600.0


def fill(backend: FakeBackend) -> None:
    """Some conversations of before."""
    backend.remember("tides", "Why there are two tides a day", [("Why are there two tides a day?", TIDES)], 0.5 * HOUR)
    backend.remember("fib", "", [("Write the Fibonacci numbers as a generator in Python.", CODE)], 5 * HOUR)
    backend.remember(
        "lat", "Names of trees in Latin", [("What is the Latin name of the ash?", "*Fraxinus*.")], 30 * HOUR
    )
    backend.remember("ar", "", [("ما هي عاصمة مصر؟", "عاصمة مصر هي **القاهرة**.")], 60 * HOUR)
    backend.remember("long", "", [("How do I sharpen a plane iron without a jig?", "Slowly.")], 400 * HOUR)


def main() -> None:
    page = ServedPage(SCRIPTS, int(sys.argv[1]) if len(sys.argv) > 1 else 8675)
    page.call(lambda: fill(page.backend))
    print(
        f"{page.url}  (questions with the words lighthouse, unverified, unread, refused, short or weather do as they say)"
    )
    try:
        signal.pause()
    except KeyboardInterrupt:
        page.close()


if __name__ == "__main__":
    main()
