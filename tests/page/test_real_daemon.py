"""The page of a real daemon, with a tiny model: its server killed in the middle of an answer, and the daemon itself."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from playwright.sync_api import expect

from tests.cli.client_program import ENVIRONMENT, Served, alone, make_drafter, make_model, serving, words
from tests.page.conftest import Open
from tests.page.reader import Reader
from tests.page.served import ServedPage
from tests.support.daemon_home import Home, daemon_home
from tests.support.programs import free_port

ASKED = [4, 10, 2, 5]  # the tiny model's template around "w10"
LENGTH = 512  # tokens of an answer


def _home(stack: ExitStack, served: Served) -> Home:
    home = stack.enter_context(
        daemon_home(
            ENVIRONMENT,
            SERVER=served.address,
            MODEL=str(served.model),
            DRAFTER=str(served.drafter),
            ENDPOINT_PORT=str(free_port()),
        )
    )
    assert home.run("daemon", "start")[0] == 0
    return home


def _page_of(home: Home) -> ServedPage:
    return cast("ServedPage", SimpleNamespace(url=home.status()["url"]))


def _ask_greedily(reader: Reader) -> None:
    options = {"temperature": 0, "max_tokens": LENGTH, "loop_guard": False}
    reader.page.evaluate("kept => localStorage.setItem('moa.answers', kept)", json.dumps(options))
    reader.ask("w10")


def test_a_server_that_is_killed_and_comes_back_leaves_the_text_as_it_is(tmp_path: Path, open_page: Open) -> None:
    model, drafter, port = make_model(tmp_path / "tiny", 1), make_drafter(tmp_path / "d.safetensors"), free_port()
    with ExitStack() as stack:
        with serving(tmp_path, model, drafter, port) as served:
            expected = words(alone(served, ASKED, max_tokens=LENGTH))
            reader = open_page(_page_of(_home(stack, served)))
            reader.page.get_by_role("radio", name="Chance").check(force=True)
            _ask_greedily(reader)
            expect(reader.answer).to_contain_text(expected[:20])
            served.process.kill()
            expect(reader.notice).to_contain_text("server")  # that it is away, or waited for
        with serving(tmp_path, model, drafter, port):
            reader.expect_end()
            expect(reader.answer).to_have_text(expected)
            expect(reader.provisional).to_have_count(0)
            painted = reader.answer.locator("[data-paint]")
            assert "".join(painted.all_text_contents()) == expected  # the chance of each token is known
            assert (painted.first.get_attribute("title") or "").startswith("p = ")
