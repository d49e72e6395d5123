"""The Chromium that is installed."""

from __future__ import annotations

import shutil

# The first is Chromium without windows, which takes a third of the processor's time.
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
MISSING = "there is no Chromium (Debian: apt-get install chromium-headless-shell)"


def find_chromium() -> str | None:
    """Where it is."""
    return next(filter(None, map(shutil.which, NAMES)), None)
