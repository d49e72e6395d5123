"""The page while its daemon, or the server behind it, is not there, in a browser."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from playwright.sync_api import expect

from tests.cli.client_program import ENVIRONMENT, alone, make_drafter, make_model, serving, words
from tests.page.conftest import Ask, Open, Serve
from tests.page.fake_daemon import says
from tests.page.served import ServedPage
from tests.support.daemon_home import daemon_home
from tests.support.programs import free_port

ANSWER = says("An answer ", "to the end.")
KEY = "a-long-enough-key"


def test_a_daemon_that_is_killed_and_comes_back_in_the_middle_of_an_answer(ask: Ask) -> None:
    reader = ask(ANSWER, "Why?")
    expect(reader.answer).to_have_text("An answer")
    reader.served.kill()
    expect(reader.notice).to_have_text(
        "moa-client does not run on this device any more. Trying again; nothing that you have typed is lost."
    )
    expect(reader.page.locator("#link-state")).to_have_text("moa-client does not run")
    expect(reader.page.get_by_role("switch", name="Offline")).to_be_disabled()
    reader.ask("And then?")
    expect(reader.notice).to_contain_text("Not asked: there is no connection.")
    expect(reader.field).to_have_value("And then?")
    reader.served.open_gate()
    reader.served.start()
    reader.expect_connection()
    expect(reader.answer).to_have_text("An answer to the end.")
    reader.field.press("Enter")
    expect(reader.turns).to_have_count(2)
    expect(reader.field).to_have_value("")


def test_a_question_on_its_way_to_a_daemon_that_dies_is_not_lost(ask: Ask) -> None:
    reader = ask(ANSWER, "First?")
    reader.ask("Second?")
    expect(reader.page.locator(".waiting-question")).to_have_text("Second?")
    reader.served.kill()
    reader.served.call(reader.served.backend.open_conversations["c001"].todo.get_nowait)  # it is lost, as with a daemon
    reader.served.start()
    reader.expect_connection()
    expect(reader.field).to_have_value("Second?")


def test_a_key_is_asked_for_and_taken_from_the_address(serve: Serve, open_page: Open) -> None:
    served = serve(ANSWER, key=KEY)
    reader = open_page(served, f"/#key={KEY}")
    assert reader.page.url == served.url + "/"
    expect(reader.conversations).to_have_count(0)
    reader.page.evaluate("sessionStorage.clear()")
    reader.page.reload()
    expect(reader.page.get_by_role("dialog", name="This page needs its key")).to_be_visible()
    reader.page.get_by_label("Key", exact=True).fill(KEY)
    reader.button("Use it").click()
    reader.expect_connection()
    reader.ask("Why?")
    expect(reader.answer).to_have_text("An answer")


def test_the_switch_to_go_offline(serve: Serve, open_page: Open) -> None:
    served = serve(ANSWER)
    reader = open_page(served)
    switch = reader.page.get_by_role("switch", name="Offline")
    expect(switch).not_to_be_checked()
    switch.click()
    expect(switch).to_be_checked()
    expect(reader.notice).to_have_text("You are offline: questions wait for the server.")
    assert served.backend.is_offline
    reader.button("Go online").click()
    expect(switch).not_to_be_checked()
    expect(reader.notice).to_be_empty()
    assert not served.backend.is_offline


ASKED = [4, 10, 2, 5]  # the tiny model's template around "w10"
LENGTH = 400  # tokens of an answer: too short for the loop guard


def test_a_server_that_is_killed_and_comes_back_leaves_the_text_as_it_is(tmp_path: Path, open_page: Open) -> None:
    model, drafter, port = make_model(tmp_path / "tiny", 1), make_drafter(tmp_path / "d.safetensors"), free_port()
    at = {"SERVER": f"127.0.0.1:{port}", "ENDPOINT_PORT": str(free_port())}
    with daemon_home(ENVIRONMENT, **at, MODEL=str(model), DRAFTER=str(drafter)) as home:
        with serving(tmp_path, model, drafter, port) as served:
            assert home.run("daemon", "start")[0] == 0
            expected = words(alone(served, ASKED, max_tokens=LENGTH))
            reader = open_page(cast("ServedPage", SimpleNamespace(url=home.status()["url"])))
            reader.page.get_by_role("radio", name="Chance").check(force=True)
            options = {"temperature": 0, "max_tokens": LENGTH}
            reader.page.evaluate("kept => localStorage.setItem('moa.answers', kept)", json.dumps(options))
            reader.ask("w10")
            expect(reader.answer).to_contain_text(expected[:20])
            served.process.kill()
            expect(reader.notice).to_contain_text("server")  # that it is away, or waited for
        with serving(tmp_path, model, drafter, port):
            reader.expect_answer(expected)
            expect(reader.provisional).to_have_count(0)
            painted = reader.answer.locator("[data-paint]")
            assert "".join(painted.all_text_contents()) == expected  # the chance of each token is known
            assert (painted.first.get_attribute("title") or "").startswith("p = ")
