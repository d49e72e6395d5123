"""The page while its daemon, or the server behind it, is not there, in a browser."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import ExecutionChanged, LinkState, ServerChanged
from moa_shared.protocol.finish_rule import Finish
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.stage import Stage


async def answer(stage: Stage, question: str) -> None:
    await stage.commit("An answer ")
    await stage.gate("end")
    await stage.commit("to the end.")
    stage.end()


def test_a_daemon_that_is_killed_and_comes_back_in_the_middle_of_an_answer(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served)
    reader.ask("Why?")
    expect(reader.answer).to_have_text("An answer")
    served.kill()
    expect(reader.notice).to_have_text(
        "moa-client does not run on this device any more. Trying again; nothing that you have typed is lost."
    )
    panel = reader.page.get_by_role("complementary", name="The link")
    expect(panel.locator("#link-state")).to_have_text("moa-client does not run")
    expect(reader.page.locator("#chip")).to_have_text("not running")
    expect(reader.page.get_by_role("switch", name="Offline")).to_be_disabled()
    reader.ask("And then?")
    expect(reader.notice).to_contain_text("Not asked: there is no connection.")
    expect(reader.field).to_have_value("And then?")
    served.open_gate("end")
    served.start()
    reader.expect_connection("open")
    expect(panel.locator("#link-state")).to_have_text("The link is good")
    expect(reader.answer).to_have_text("An answer to the end.")
    reader.field.press("Enter")
    expect(reader.turns).to_have_count(2)
    expect(reader.field).to_have_value("")


def test_a_connection_that_is_lost_is_not_taken_for_a_daemon_that_is_gone(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served)
    reader.page.evaluate("() => { globalThis.WebSocket = class { close() {} }; }")  # nothing connects any more
    served.call(served.backend.open_conversations["c001"].subscriptions[0].close)
    reader.expect_connection("connecting")
    expect(reader.notice).to_have_text("Connecting …")
    expect(reader.page.locator("#chip")).to_have_text("good")


def test_a_question_on_its_way_to_a_daemon_that_dies_is_not_lost(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served)
    reader.ask("First?")
    reader.ask("Second?")
    expect(reader.page.locator(".waiting-question")).to_have_text("Second?")
    served.kill()
    served.call(lambda: served.backend.open_conversations["c001"].forget_waiting())
    served.start()
    reader.expect_connection("open")
    expect(reader.field).to_have_value("Second?")


def test_a_key_is_asked_for_and_taken_from_the_address(serve: Serve, open_page: Open) -> None:
    served = serve(answer, key="a-long-enough-key")
    reader = open_page(served, "/#key=a-long-enough-key")
    assert reader.page.url == served.url + "/"
    expect(reader.conversations).to_have_count(0)
    other = open_page(served, "/#key=a-long-enough-key")
    other.page.evaluate("sessionStorage.clear()")
    other.page.reload()
    expect(other.page.get_by_role("dialog", name="This page needs its key")).to_be_visible()
    other.page.get_by_label("Key", exact=True).fill("a-long-enough-key")
    other.button("Use it").click()
    other.expect_connection("open")
    other.ask("Why?")
    expect(other.answer).to_have_text("An answer")


@pytest.mark.parametrize(
    ("companion", "who"), [("", "questions wait for the server."), ("SmolLM2-360M", "SmolLM2-360M writes.")]
)
def test_the_switch_to_go_offline(serve: Serve, open_page: Open, companion: str, who: str) -> None:
    served = serve(answer)
    served.backend.companion = companion
    reader = open_page(served)
    switch = reader.page.get_by_role("switch", name="Offline")
    expect(switch).not_to_be_checked()
    switch.click()
    expect(switch).to_be_checked()
    expect(reader.notice).to_have_text(f"You are offline: {who}")
    assert served.call(lambda: served.backend.is_offline)
    reader.button("Go online").click()
    expect(switch).not_to_be_checked()
    expect(reader.notice).to_be_empty()
    assert not served.call(lambda: served.backend.is_offline)


def test_a_server_that_is_another_one_now_is_said(serve: Serve, open_page: Open) -> None:
    words = "Another model is served at lab.example:50051 now; the conversation waits for SmolLM2."

    async def script(stage: Stage, question: str) -> None:
        await stage.commit("One ")
        stage.link(LinkState.OFFLINE)
        stage.conversation.publish(Update(ServerChanged("model", words)))
        await stage.gate("back")
        stage.link(LinkState.GOOD)
        stage.conversation.publish(Update(ExecutionChanged("bf16", exact=False)))
        await stage.commit("two.")
        stage.end()

    served = serve(script)
    reader = open_page(served)
    reader.ask("Count.")
    expect(reader.notice).to_have_text(words)
    served.open_gate("back")
    expect(reader.page.locator(".remark")).to_contain_text("This server computes differently (bf16)")
    expect(reader.notice).to_be_empty()


def test_a_wait_that_the_server_has_asked_for_is_counted_down(serve: Serve, open_page: Open) -> None:
    async def script(stage: Stage, question: str) -> None:
        await stage.commit("One ")
        stage.link(LinkState.WAITING, "The server lets this key read and write 600 tokens a minute.", 12.0)
        await stage.gate("on")
        stage.link(LinkState.GOOD)
        await stage.commit("two.")
        stage.end()

    served = serve(script)
    reader = open_page(served)
    reader.ask("Count.")
    limit = "The server lets this key read and write 600 tokens a minute; the answer resumes in"
    expect(reader.notice).to_contain_text(limit)
    expect(reader.notice).to_contain_text(f"{limit} 10 s.")  # it counts down
    served.open_gate("on")
    expect(reader.answer).to_have_text("One two.")
    expect(reader.notice).to_be_empty()


def test_figures_of_the_link(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served)
    panel = reader.page.get_by_role("complementary", name="The link")
    expect(panel).to_contain_text("The link is good")
    expect(panel.locator("#f-rtt")).to_have_text("52 ms")
    expect(panel.locator("#f-level")).to_have_text("int8, exact")
    reader.ask("Why?")
    served.open_gate("end")
    reader.expect_end()
    expect(panel.locator("#f-up")).to_have_text("170 B")
    expect(panel.locator("#f-down")).to_have_text("1.2 kB")
    expect(panel.locator("#f-memory")).to_have_text("1.0 kB")
    expect(panel.locator("#speed-drafted")).to_have_text("100 % drafted: 40 % by the server, 60 % here.")
    expect(reader.page.locator(".cost").last).to_contain_text("100 % drafted: 40 % by the server, 60 % here")


def test_an_answer_without_text_is_to_be_checked_too(serve: Serve, open_page: Open) -> None:
    async def script(stage: Stage, question: str) -> None:
        stage.link(LinkState.OFFLINE)
        stage.hold(unread=True)
        stage.end(Finish.UNFINISHED, verified=False)

    reader = open_page(serve(script))
    expect(reader.page.locator("#f-waiting")).to_have_text("nothing")
    reader.ask("Why?")
    expect(reader.page.locator("#f-waiting")).to_have_text("1 answer")


def test_after_a_fail_over_the_panel_names_the_server_that_answers(serve: Serve, open_page: Open) -> None:
    async def script(stage: Stage, question: str) -> None:
        stage.conversation.status = replace(stage.conversation.status, server="second.example:50051")
        stage.conversation.publish(Update(ServerChanged("address", "second answers now instead of lab.")))
        stage.end()

    reader = open_page(serve(script))
    expect(reader.page.locator("#f-server")).to_have_text("lab.example:50051")
    reader.ask("Why?")
    expect(reader.page.locator("#f-server")).to_have_text("second.example:50051")


def test_what_crosses_the_link_is_drawn_and_said(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served, reduced_motion="reduce")
    reader.page.get_by_text("10 s").click()
    reader.ask("Why?")
    served.open_gate("end")
    reader.expect_end()
    words = reader.page.locator("#timeline-words")
    expect(words).to_have_text(
        "In the last 10 seconds: 5 drafts with 19 tokens; 5 verdicts with 5 tokens, 2 of them drafted by the server, 3 here; "
        "150 B up, 1.1 kB down."
    )
    pause = reader.page.get_by_role("button", name="Pause")
    pause.click()
    expect(pause).to_have_attribute("aria-pressed", "true")
    drawn = (
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(value => value)"
    )
    assert reader.page.locator("#timeline").evaluate(drawn)
    reader.page.get_by_label("Seconds ago").fill("30")
    expect(words).to_have_text("Nothing has crossed the link in the last 10 seconds.")


def test_nothing_listens_to_the_link_while_nobody_looks(serve: Serve, open_page: Open) -> None:
    served = serve(answer)
    reader = open_page(served, with_panel=False)
    chip, panel = reader.page.locator("#chip"), reader.page.get_by_role("complementary")
    expect(chip).to_have_attribute("aria-expanded", "false")
    expect(panel).to_be_hidden()
    chip.click()
    served.wait_until(lambda: served.backend.watching == 1)
    reader.page.reload()
    expect(panel).to_be_visible()
    reader.button("Close the link’s panel").click()
    expect(panel).to_be_hidden()
    served.wait_until(lambda: served.backend.watching == 0)
