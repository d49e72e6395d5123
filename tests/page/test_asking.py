"""Questions and answers in a browser, and what the page does while its daemon, or the server behind it, is not there."""

import re
from dataclasses import replace

from moa_client.conversation import events
from moa_client.conversation.events import LinkState, Provenance
from moa_client.conversation.options import AnswerOptions
from moa_client.tools.thinking import ReasoningMarks
from moa_shared.protocol.messages import Finish
from playwright.sync_api import expect

from tests.page.conftest import Ask, Open, Serve
from tests.page.fake_daemon import Stage, says

TWO_PARTS = says("The **first** part, ", "and the second.")


async def echo(stage: Stage, question: str) -> None:
    stage.commit(f"You asked: {question}")


def test_an_answer_appears_as_it_comes_and_is_there_when_the_page_is_loaded_again_or_stopped(ask: Ask) -> None:
    reader = ask(TWO_PARTS, "What is it?")
    reader.field.fill("Why?")
    for _ in range(2):
        expect(reader.page.locator(".question")).to_have_text("What is it?")
        expect(reader.answer).to_have_text("The first part,")
        expect(reader.answer.locator("strong")).to_have_text("first")
        expect(reader.button("Stop")).to_be_visible()
        expect(reader.field).to_have_value("Why?")
        reader.page.reload()
    reader.expect_connection()
    reader.served.open_gate()
    reader.expect_answer("The first part, and the second.")
    expect(reader.page.get_by_role("heading", level=1)).to_have_text("What is it?")
    expect(reader.page.locator(".cost")).to_contain_text("6 tokens")
    reader.field.press("Enter")
    expect(reader.turns).to_have_count(2)
    expect(reader.answer).to_have_text("The first part,")
    reader.button("Stop").click()
    expect(reader.standing).to_have_text("Stopped.")
    expect(reader.field).to_be_focused()


def test_what_the_device_wrote_is_marked_corrected_where_it_stands_and_can_be_had_back(ask: Ask) -> None:
    unlikely = "as a bone is, in the sun of a long summer at the sea. "

    async def script(stage: Stage, question: str) -> None:
        stage.commit("It flashes. ")
        stage.link(LinkState.OFFLINE, "nothing has come from it for 0.2 s")
        stage.write("It is white ")
        stage.write(unlikely, likely=False)
        await stage.gate("on")
        stage.link(LinkState.GOOD)
        stage.commit("It is **red** and round.")

    reader = ask(script, "How does it look?")
    expect(reader.page.locator(".answer .provisional:not(.unsure)")).to_have_text("It is white ")
    expect(reader.page.locator(".answer .unsure")).to_have_text(unlikely.strip())
    expect(reader.standing).to_have_text("17 words by this device, not checked yet.")
    expect(reader.notice).to_have_text(
        "The server is away (nothing has come from it for 0.2 s). This device writes on; that text is not checked yet."
    )
    noted = reader.note(".corrected")  # for a moment
    reader.served.open_gate()
    expect(reader.answer).to_have_text("It flashes. It is red and round.")
    expect(reader.provisional).to_have_count(0)
    expect(reader.page.locator(".corrected")).to_have_count(0)
    assert "r" in noted()[0]
    expect(reader.notice).to_be_empty()
    expect(reader.standing).to_have_text("The server has replaced 15 tokens of this device.")
    reader.button("Have this device’s text back").click()
    reader.served.wait_until(lambda: reader.served.requests == ["keep"])


def test_an_answer_that_ended_without_its_server_is_decided_later_by_another_one(ask: Ask) -> None:
    other = "Another model is served at lab.example:50051 now; the conversation waits for SmolLM2."

    async def script(stage: Stage, question: str) -> None:
        stage.commit("It flashes. ")
        stage.link(LinkState.OFFLINE)
        stage.publish(events.ServerChanged("model", other))
        stage.write("It is white.")
        stage.end()
        await stage.gate("on")
        stage.link(LinkState.GOOD)
        stage.publish(events.ExecutionChanged("bf16", exact=False))
        stage.publish(events.Settled((), events.AnswerOutcome.CORRECTED, Finish.END_OF_TEXT, 3, 2, "It is red."))

    reader = ask(script, "How does it look?")
    expect(reader.standing).to_have_text("3 words not checked yet: the server does so when it is back.")
    expect(reader.page.locator(".unverified")).to_have_text("1 to be checked")
    expect(reader.notice).to_have_text(other)
    reader.served.open_gate()
    expect(reader.standing).to_have_text("Corrected by the server: 2 of 3 tokens of this device were right.")
    expect(reader.answer).to_have_text("It flashes. It is red.")
    expect(reader.page.locator(".unverified")).to_be_hidden()
    expect(reader.page.locator(".remark")).to_contain_text("This server computes differently (bf16)")
    expect(reader.notice).to_be_empty()


def test_a_question_that_is_edited_is_asked_again_without_what_came_after_it(serve: Serve, open_page: Open) -> None:
    reader = open_page(serve(echo))
    for number, question in enumerate(["First?", "Second?", "Third?"], 1):
        reader.ask(question)
        reader.expect_end(number)
    turn = reader.edit(1, "Other?")
    reader.expect_answer("You asked: Other?", 2)
    expect(reader.turns.nth(0)).to_contain_text("You asked: First?")
    for _ in range(2):  # as it was seen, and as it is kept
        expect(turn.locator(".version")).to_have_text("2 / 2")
        expect(turn.get_by_role("button", name="The version after")).to_be_disabled()
        turn.get_by_role("button", name="The version before").click()
        expect(turn.locator(".version")).to_have_text("1 / 2")
        expect(turn.locator(".question")).to_have_text("Second?")
        expect(reader.answer).to_have_text("You asked: Second?")
        expect(reader.button("Answer again with another seed")).to_be_hidden()
        assert reader.violations() == []
        turn.get_by_role("button", name="The version after").click()
        expect(reader.answer).to_have_text("You asked: Other?")
        reader.page.reload()


def test_the_device_writes_on_if_the_reader_wants_it(ask: Ask) -> None:
    async def script(stage: Stage, question: str) -> None:
        stage.link(LinkState.OFFLINE)
        stage.tell(events.HeldBack(unread=True))
        await stage.gate("never")

    reader = ask(script, "Anybody?")
    expect(reader.standing).to_contain_text("No server has read this question: it is answered when one is back.")
    reader.button("Write anyway").click()
    reader.field.press("Escape")
    expect(reader.standing).to_have_text("Stopped.")
    assert reader.served.requests == ["standalone", "stop"]


def test_an_answer_that_a_limit_has_cut_goes_on(ask: Ask) -> None:
    async def script(stage: Stage, question: str) -> None:
        if stage.conversation.requests:
            stage.commit(" three")
        else:
            stage.commit("One two")
            stage.end(Finish.MAX_TOKENS)

    reader = ask(script, "Count.")
    expect(reader.standing).to_have_text("It ends here because it has as many tokens as the options allow.")
    reader.button("Continue").click()
    reader.expect_answer("One two three")
    expect(reader.button("Continue")).to_be_hidden()
    assert reader.served.requests == ["continue 2048"]


def test_options_are_those_of_the_next_answers_where_the_model_has_them(serve: Serve, open_page: Open) -> None:
    served = serve(echo)
    served.backend.thinking = ReasoningMarks(("<think>",), ("</think>",), efforts=("none", "high"))
    reader = open_page(served)
    reader.button("Options of answers").click()
    reader.page.get_by_text("More", exact=True).click()
    for label, value in {"Temperature": 0.5, "Top k": 40, "Top p": 5}.items():
        reader.page.get_by_label(label).fill(str(value))
    reader.button("Save").click()
    reader.page.get_by_label("Top p").fill("0.9")  # 5 is refused
    reader.page.get_by_label("Reasoning").select_option("high")
    assert reader.violations() == []
    reader.button("Save").click()
    said = "temperature 0.5, top p 0.9, top k 40, reasoning effort high"
    expect(reader.page.locator("#options-said")).to_have_text(said)
    reader.page.reload()
    reader.expect_connection()
    reader.ask("Why?")
    reader.expect_end()
    served.backend.thinking = None  # another model
    reader.button("New conversation").click()
    reader.expect_connection()
    reader.ask("Why?")
    expect(reader.answer).to_have_text("You asked: Why?")
    options = AnswerOptions(temperature=0.5, top_k=40, top_p=0.9, max_tokens=2048)
    assert served.asked == [("Why?", replace(options, reasoning_effort="high")), ("Why?", options)]


SERVER, DEVICE, PLAIN = Provenance.SERVER, Provenance.DRAFT, Provenance.TARGET


async def mixed(stage: Stage, question: str) -> None:
    """The likeliest text, in Markdown whose syntax is not shown."""
    stage.commit_runs(("1. Red 😀 ", PLAIN, 0.4), ("**wi", SERVER, 0.95), ("ne** &am", DEVICE, 0.83))
    stage.commit_runs(("p; [wh", DEVICE, 0.03), ("ite](https://white.example/) wine", SERVER, 0.6))
    stage.commit_runs(("\n\n```py\nprint", SERVER, 1.0), ("(1)\n```\n", PLAIN, 0.2))
    await stage.gate("on")


def test_an_answer_is_painted_by_its_writers(ask: Ask) -> None:
    reader = ask(mixed, "Which wine?")
    expect(reader.answer.get_by_role("region", name="Code, py")).to_have_text("print(1)")
    expect(reader.answer.locator("[data-paint]")).to_have_count(0)
    plain = reader.answer.inner_text()
    reader.page.get_by_role("radio", name="Writer").check(force=True)

    def check() -> None:
        texts = {"S": ["wi", "ite", " wine", "print"], "D": ["ne", " & ", "wh"], "T": ["Red 😀 ", "(1)"]}
        for kind, stretches in texts.items():
            expect(reader.answer.locator(f'[data-paint="{kind}"]')).to_have_text(stretches)
        expect(reader.answer.locator('[data-paint="D"]').first).to_have_attribute("title", "this device’s draft")
        expect(reader.answer.locator("li strong")).to_have_text("wine")
        assert reader.answer.inner_text() == plain

    check()
    reader.served.open_gate()
    reader.expect_end()
    check()
    reader.page.reload()  # the choice is the browser's, the writers are the daemon's
    check()
    for scheme in ("light", "dark"):
        reader.page.emulate_media(color_scheme=scheme)
        assert reader.violations() == []
    reader.page.get_by_role("radio", name="Chance").check(force=True)
    painted = reader.answer.locator("[data-paint]")
    expect(painted.first).to_have_attribute("title", re.compile("^p = "))
    reader.page.get_by_role("radio", name="None").check(force=True)
    expect(painted).to_have_count(0)


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
    todo = reader.served.backend.open_conversations["c001"].todo
    reader.served.call(lambda: todo.empty() or todo.get_nowait())  # if it came it is lost, as with a daemon
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
