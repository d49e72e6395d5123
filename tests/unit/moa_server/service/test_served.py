"""Whose forms are compiled when: known ones at once, new ones in turns."""

import asyncio
import threading
from typing import Any, cast

import pytest
from moa_server.service.services import MOST_OF_ONE, Forms
from moa_shared.constraints.compiler import ConstraintCompiler
from moa_shared.errors import OverloadedError
from moa_shared.sampling.settings import Constraint, choice_of


class Compiler(ConstraintCompiler):
    """Writes down what it compiles, while the test lets it; forms are their own names."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.gate = threading.Event()

    def known(self, constraint: Constraint) -> Any:
        return constraint.choices[0] if constraint.choices[0].startswith("known") else None

    def begin(self, constraint: Constraint) -> Any:
        assert self.gate.wait(60)
        self.order.append(constraint.choices[0])
        return constraint.choices[0]


async def test_callers_take_turns_and_nobody_waits_for_a_form_that_is_kept() -> None:
    compiler = Compiler()
    forms = Forms(compiler)

    def ask(name: str, owner: str) -> asyncio.Task[str]:
        return asyncio.create_task(cast(Any, forms.begin(choice_of([name]), owner)))

    floods = [ask(f"flood {number}", "flood") for number in range(MOST_OF_ONE)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await ask("one too many", "flood")
    others = [ask(f"other {number}", "other") for number in range(2)]
    assert await ask("known", "flood") == "known"
    for each in floods[:2]:  # one's call ends while its form is compiled, and one's while it waits
        each.cancel()
    await asyncio.wait(floods[:2])
    compiler.gate.set()
    assert await asyncio.gather(*others, *floods[2:4]) == ["other 0", "other 1", "flood 2", "flood 3"]
    assert compiler.order[:5] == ["flood 0", "other 0", "flood 2", "other 1", "flood 3"]
    await asyncio.gather(*floods[4:])
