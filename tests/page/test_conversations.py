"""Several conversations, in a browser: the list, their addresses, and what can be done with one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.page.conftest import Open, Serve
from tests.page.fake_backend import FakeBackend
from tests.page.served import ServedPage
from tests.page.stage import Stage

TIDES = [("Why are there two tides?", "The *Moon* pulls."), ("And spring tides?", "The Sun too.")]


async def answer(stage: Stage, question: str) -> None:
    await stage.commit("An answer ")
    await stage.gate("end")
    await stage.commit("to the end.")
    stage.end()


@pytest.fixture
def served(serve: Serve) -> ServedPage:
    served = serve(answer)
    served.call(lambda: fill(served.backend))
    return served


def fill(backend: FakeBackend) -> None:
    backend.remember("tides", "Two tides", TIDES, 24 * 3600)
    backend.remember("ash", "", [("What is the Latin name of the ash?", "Fraxinus.")], 30 * 24 * 3600)


def test_a_new_conversation_joins_the_list_when_it_has_a_question(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    expect(reader.conversations).to_have_text(["Two tides", "What is the Latin name of the ash?"])
    expect(reader.page.locator(".day")).to_have_text(["Yesterday", re.compile(r"^[A-Z][a-z]+ \d{4}$")])
    reader.ask("What is new?")
    expect(reader.page.locator(".day").first).to_have_text("Today")
    expect(reader.conversations).to_have_text(["What is new?", "Two tides", "What is the Latin name of the ash?"])
    expect(reader.page.locator("[aria-current=page]")).to_contain_text("What is new?")
    served.open_gate("end")
    reader.expect_end()
    assert reader.page.url.endswith("/?c=c003")


def test_going_to_another_conversation_and_back(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served, "/?c=tides")
    expect(reader.turns).to_have_count(2)
    reader.field.fill("not asked yet")
    reader.conversations.nth(1).click()
    expect(reader.answer).to_have_text("Fraxinus.")
    expect(reader.field).to_have_value("")
    assert reader.page.title() == "What is the Latin name of the ash? – moa"
    reader.page.go_back()
    expect(reader.answer).to_have_text("The Sun too.")
    expect(reader.field).to_have_value("not asked yet")


def test_reload_in_the_middle_of_an_answer(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    reader.ask("What is new?")
    expect(reader.answer).to_have_text("An answer")
    reader.field.fill("the next one")
    reader.page.reload()
    expect(reader.answer).to_have_text("An answer")
    expect(reader.field).to_have_value("the next one")
    expect(reader.button("Stop")).to_be_visible()
    served.open_gate("end")
    expect(reader.answer).to_have_text("An answer to the end.")
    reader.expect_end()


def test_search(served: ServedPage, open_page: Open) -> None:
    reader = open_page(served)
    reader.page.keyboard.press("Control+k")
    search = reader.page.get_by_role("searchbox", name="Search conversations")
    expect(search).to_be_focused()
    search.fill("fraxinus")
    expect(reader.conversations).to_have_text(["What is the Latin name of the ash?"])
    expect(reader.page.locator("#found")).to_have_text("1 found")
    search.press("ArrowDown")
    reader.page.keyboard.press("Enter")
    expect(reader.answer).to_have_text("Fraxinus.")
    search.fill("nowhere")
    expect(reader.page.locator("#found")).to_have_text("Nothing found.")
    search.press("Escape")
    expect(reader.conversations).to_have_count(2)
    expect(reader.field).to_be_focused()


@pytest.mark.parametrize("address", ["/?c=tides", "/"], ids=["open", "not open"])
def test_delete_after_confirmation(served: ServedPage, open_page: Open, address: str) -> None:
    reader = open_page(served, address)
    manage = reader.button("Rename, export or delete Two tides")
    manage.click()
    reader.button("Delete …").click()
    expect(reader.page.get_by_role("alertdialog")).to_contain_text(
        "“Two tides” will be deleted from this device for good."
    )
    reader.button("Cancel").click()
    expect(reader.conversations).to_have_count(2)
    manage.click()
    reader.button("Delete …").click()
    reader.page.get_by_role("alertdialog").get_by_role("button", name="Delete").click()
    expect(reader.conversations).to_have_text(["What is the Latin name of the ash?"])
    expect(reader.turns).to_have_count(0)
    assert "tides" not in served.call(lambda: list(served.backend.open_conversations))


def test_export(served: ServedPage, open_page: Open, tmp_path: Path) -> None:
    reader = open_page(served)
    for form, name in (("Markdown", "conversation-tides.md"), ("JSON", "conversation-tides.json")):
        reader.button("Rename, export or delete Two tides").click()
        with reader.page.expect_download() as download:
            reader.button(f"Export as {form}").click()
        assert download.value.suggested_filename == name
        download.value.save_as(tmp_path / name)
    assert (tmp_path / "conversation-tides.md").read_text("utf-8").startswith("# Two tides\n")
    assert json.loads((tmp_path / "conversation-tides.json").read_text("utf-8"))["id"] == "tides"
