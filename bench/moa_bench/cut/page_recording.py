"""`moa-bench record --surface page`: the page in a browser through a cut of the link, as an animated picture.

Playwright drives Debian's Chromium; nothing is downloaded.
"""

from __future__ import annotations

import io
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import click
from moa_shared.errors import NotFoundError

WIDTH, HEIGHT = 1320, 760
SCALE = 0.75  # of the picture
EVERY_S = 0.2
AFTERWARDS_S = 4.0  # of the cut
QUALITY = 55  # of WebP: text stays readable
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def record_page(
    url: str, question: str, cut: Callable[[], None], cut_after_s: float, cut_s: float, picture: Path
) -> None:
    """Asks a question on the page, cuts the link, and writes what is seen.

    Args:
        url: of the daemon.
        cut_after_s: from the question.
        picture: an animated WebP.

    Raises:
        NotFoundError: there is no Chromium, or no Playwright.
    """
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        browser_path = None
    if browser_path is None:
        raise NotFoundError(
            "The page is recorded with Playwright and Chromium.",
            hint="Install them: pip install playwright; apt-get install chromium.",
        )
    frames: list[tuple[float, bytes]] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        composer = page.get_by_role("textbox", name="question")
        composer.fill(question)
        frames.append((time.monotonic(), page.screenshot()))
        composer.press("Enter")
        began = time.monotonic()
        cutting = threading.Timer(cut_after_s, cut)
        cutting.start()
        while (now := time.monotonic()) < began + cut_after_s + cut_s + AFTERWARDS_S:
            frames.append((now, page.screenshot()))
            time.sleep(max(0.0, EVERY_S - (time.monotonic() - now)))
        cutting.join()
        browser.close()
    _write(frames, picture)
    click.echo(f"{picture}: {len(frames)} frames, {picture.stat().st_size / 1e3:.0f} kB")


def _write(frames: list[tuple[float, bytes]], picture: Path) -> None:
    from PIL import Image

    size = round(WIDTH * SCALE), round(HEIGHT * SCALE)
    images = [Image.open(io.BytesIO(data)).convert("RGB").resize(size) for _, data in frames]
    times = [at for at, _ in frames]
    shown_ms = [round(1e3 * (after - at)) for at, after in zip(times, [*times[1:], times[-1] + 2.0], strict=True)]
    images[0].save(
        picture, save_all=True, append_images=images[1:], duration=shown_ms, loop=0, quality=QUALITY, method=6
    )
