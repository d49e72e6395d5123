"""Answers painted by who wrote them, and by how likely they were."""

from __future__ import annotations

from moa_client.conversation.text_runs import Provenance
from playwright.sync_api import Locator, expect

from tests.page.conftest import Open, Serve
from tests.page.reader import Reader
from tests.page.stage import Stage

SERVER, DEVICE, COPY, PLAIN = Provenance.SERVER, Provenance.DRAFT, Provenance.COPY, Provenance.TARGET


async def mixed(stage: Stage, question: str) -> None:
    """The likeliest text, in Markdown whose syntax is not shown."""
    stage.commit_runs(("1. Red 😀 ", PLAIN, 0.4), ("**wi", SERVER, 0.95), ("ne** &am", DEVICE, 0.83))
    stage.commit_runs(("p; [wh", DEVICE, 0.03), ("ite](https://white.example/) wine", COPY, 0.6))
    stage.commit_runs(("\n\n```py\nprint", SERVER, 1.0), ("(1)\n```\n", PLAIN, 0.2))
    await stage.gate("end")
    stage.end()


def painted(reader: Reader, kind: str) -> Locator:
    return reader.answer.locator(f'[data-paint="{kind}"]')


def test_an_answer_is_painted_by_its_writers(serve: Serve, open_page: Open) -> None:
    served = serve(mixed)
    reader = open_page(served)
    reader.ask("Which wine?")
    expect(reader.answer.get_by_role("region", name="Code, py")).to_have_text("print(1)")
    expect(reader.answer.locator("[data-paint]")).to_have_count(0)
    plain = reader.answer.inner_text()
    reader.page.get_by_role("radio", name="Writer").check(force=True)

    def check() -> None:
        expect(painted(reader, "S")).to_have_text(["wi", "print"])
        expect(painted(reader, "D")).to_have_text(["ne", " & ", "wh"])
        expect(painted(reader, "C")).to_have_text(["ite", " wine"])
        expect(painted(reader, "T")).to_have_text(["Red 😀 ", "(1)"])
        expect(painted(reader, "D").first).to_have_attribute("title", "this device’s draft")
        expect(reader.answer.locator("li strong")).to_have_text("wine")
        assert reader.answer.inner_text() == plain

    check()
    served.open_gate("end")
    reader.expect_end()
    check()
    reader.page.reload()  # the choice is the browser's, the writers are the daemon's
    check()
    for scheme in ("light", "dark"):
        reader.page.emulate_media(color_scheme=scheme)
        assert reader.violations() == []
    reader.page.get_by_role("radio", name="None").check(force=True)
    expect(reader.answer.locator("[data-paint]")).to_have_count(0)
