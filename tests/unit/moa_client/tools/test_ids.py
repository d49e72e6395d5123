from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from moa_client.tools.ids import call_id, mistral_id


@given(st.text(), st.integers(0, 200))
def test_ids_have_the_form_of_openai(answer: str, index: int) -> None:
    assert re.fullmatch(r"call_[a-zA-Z0-9]{24}", call_id(answer, index))
    assert re.fullmatch(r"[a-zA-Z0-9]{9}", mistral_id(call_id(answer, index)))


def test_the_same_call_has_the_same_id_and_others_have_others() -> None:
    assert call_id("chatcmpl-1", 0) == call_id("chatcmpl-1", 0) == "call_Fos7dp74GPYN27s0GFrbLPQd"
    assert len({call_id(answer, index) for answer in ("a", "b", "a/1") for index in range(20)}) == 60


def test_an_id_of_mistral_stays() -> None:
    assert mistral_id("VvvODy9mT") == "VvvODy9mT"
    assert mistral_id("VvvODy9m-") != "VvvODy9m-"
