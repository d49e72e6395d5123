"""The host's model as the endpoint sees it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import cast

from moa_client.device.loading import Device
from moa_client.endpoint.host_source import HostModel
from moa_client.host.host import Host
from moa_client.tools.turns import TemplateInput
from moa_shared.sampling.settings import NOTHING_SAID

from tests.support.scripted_engine import PlainTokenizer


class BeginningTokenizer(PlainTokenizer):
    """Raw texts begin with token 1."""

    def with_bos(self, ids: list[int]) -> list[int]:
        return [1, *ids]


def model_of(tokenizer: object) -> HostModel:
    """A host's model with this tokenizer."""
    device = SimpleNamespace(
        files=SimpleNamespace(target_id="tiny", config={"vocab_size": 300}),
        context_tokens=64,
        tokenizer=tokenizer,
        sampling=NOTHING_SAID,
        fingerprint="fp",
        end_of_text=frozenset({ord("z")}),
    )
    device.spelled = partial(Device.spelled, cast(Device, device))
    return HostModel(cast(Host, SimpleNamespace(device=device)))


def test_a_raw_text_begins_as_the_models_texts_do_and_a_chat_as_its_template_has_it() -> None:
    model = model_of(BeginningTokenizer())
    assert model.encode("hi") == [1, ord("h"), ord("i")]
    assert model.render(TemplateInput([{"role": "user", "content": "hi"}]))[0] == ord("[")


def test_special_tokens_are_spelled_but_for_those_that_end_an_answer() -> None:
    model = model_of(SimpleNamespace(decode=lambda tokens: "".join(map(chr, tokens))))
    assert model.spelled([ord("a"), ord("b"), ord("z")]) == "ab"
