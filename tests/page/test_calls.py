"""Calls of tools on the page: asked for, decided by keyboard, and shown again after a reload."""

from __future__ import annotations

from moa_client.conversation.answer_text import Update
from moa_client.conversation.events import CallsLeft, CallWanted, ToolsChanged
from moa_client.tools.tool import ToolCall
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.stage import Stage

PARIS = ToolCall("call_1", "get_weather", '{"city": "Paris"}')
ROME = ToolCall("call_2", "get_weather", '{"city": "Rome"}')


async def looks(stage: Stage, question: str) -> None:
    await stage.commit("Let me look.")
    stage.end(calls=1)
    await stage.call(PARIS, "weather", "sunny, 21 degrees", gate="called")
    await stage.commit("And Rome?")
    stage.end(calls=1)
    await stage.call(ROME, "weather", "", gate="called")
    await stage.commit("It is sunny in Paris.")
    stage.end()


def test_a_call_waits_for_its_reader(serve: Serve, open_page: Open) -> None:
    served = serve(looks)
    reader = open_page(served)
    reader.ask("Is it sunny?")
    call = reader.page.locator(".call")
    expect(call).to_contain_text("get_weather of weather")
    expect(call.get_by_role("group", name="Arguments of get_weather")).to_have_text('{\n  "city": "Paris"\n}')
    assert reader.violations() == []
    reader.page.reload()  # it is shown again
    expect(call).to_contain_text("The model wants to call this tool. May it?")
    expect(reader.button("Stop")).to_be_visible()
    reader.button("Always").focus()
    reader.page.keyboard.press("Shift+Tab")
    reader.page.keyboard.press("Enter")
    expect(call).to_contain_text("It runs …")
    served.open_gate("called")
    first, second = call.nth(0), call.nth(1)
    first.get_by_text("Result, 17 characters").press("Enter")
    expect(first.locator(".call-result pre")).to_have_text("sunny, 21 degrees")
    second.get_by_role("button", name="Deny").click()
    expect(second).to_contain_text("You did not allow this call.")
    served.open_gate("called")
    expect(reader.answer).to_have_text("It is sunny in Paris.")
    reader.expect_end(3)
    expect(reader.page.locator(".question:visible")).to_have_text(["Is it sunny?"])
    reader.page.reload()
    expect(first).to_contain_text("Result, 17 characters")
    expect(reader.page.locator(".call-buttons:visible")).to_have_count(0)


def test_calls_that_were_left_go_on(serve: Serve, open_page: Open) -> None:
    async def script(stage: Stage, question: str) -> None:
        conversation = stage.conversation
        if not conversation.requests:
            conversation.publish(Update(ToolsChanged("The server files does not start.")))
            await stage.commit("Let me look.")
            stage.end(calls=1)
            conversation.publish(Update(CallWanted("call_1", "find", "{", "files"), stage.number))
            conversation.publish(Update(CallsLeft("The model has called tools 8 times in a row."), stage.number))
        else:
            await stage.call(PARIS, "weather", "sunny", gate="called")
            stage.end()

    served = serve(script)
    reader = open_page(served)
    reader.ask("Is it sunny?")
    expect(reader.standing).to_have_text("The model has called tools 8 times in a row.")
    expect(reader.page.locator(".remark")).to_have_text(["The server files does not start."])
    expect(reader.page.locator(".call")).to_have_count(0)
    reader.button("Continue").click()
    reader.button("Allow").click()
    served.open_gate("called")
    expect(reader.page.locator(".call")).to_contain_text("Result, 5 characters")
