"""What templates and a tokenizer.json may do, and that whatever fails in the child is an error like others."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.programs.machine import Life
from moa_shared.sandbox.chat_template import is_known, render
from moa_shared.sandbox.child import MOST_IDLE, ChildError, TextChild, kill_if_stuck
from moa_shared.sandbox.tokenizer_json import BYTE_LEVEL, JsonTokenizer, spell_bytes, token_bytes

from tests.support.tiny_gguf import write_hostile

MESSAGES = [{"role": "user", "content": "Hi \ud800 日本語"}]
TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}{{ add_generation_prompt }}"
SPECIAL = {"bos_token": "<s>"}


@pytest.fixture
def child() -> Iterator[TextChild]:
    child = TextChild(1)
    yield child
    child.close()


def shown(child: TextChild, template: str, **arguments: Any) -> str:
    given = {"template": template, "special": SPECIAL, "messages": MESSAGES, "arguments": arguments}
    text: str = child.ask("moa_shared.sandbox.chat_template:render", **given, add_generation_prompt=True)
    return text


def process_of(child: TextChild) -> int:
    assert child._process is not None
    return child._process.pid


def test_a_child_renders_what_this_process_would(child: TextChild) -> None:
    assert shown(child, TEMPLATE) == render(TEMPLATE, SPECIAL, MESSAGES, add_generation_prompt=True, arguments={})
    first = process_of(child)
    assert shown(child, "{{ tools[0].name }}", tools=[{"name": "now"}]) == "now"
    assert (shown(child, "{{ messages | length }}{{ tools }}"), process_of(child)) == ("1None", first)


@pytest.mark.parametrize(("template", "why"), [
    ("{{ raise_exception('no system role') }}", "^no system role$"),
    ("{{ raise_exception('x' * 10000) }}", "^x{500}$"),
    ("{{ 'a'.center(10 ** 10) }}", "it takes too much memory"),
    ("{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3, "it takes more than 1 s"),
    (
        "{% set n = namespace(s='a') %}{% for a in range(27) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}",
        "much|more than 1 s",  # a busy machine reaches the latter first
    ),
])  # fmt: skip
def test_what_a_template_does_to_the_child_is_told(child: TextChild, template: str, why: str) -> None:
    with pytest.raises(ChildError, match=why):
        shown(child, template)
    assert shown(child, "ok") == "ok"


def test_a_child_that_was_ended_is_started_again(child: TextChild) -> None:
    child.start()
    first = process_of(child)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert shown(child, "ok") == "ok"
    assert process_of(child) != first


def test_a_child_that_stops_is_not_waited_for_longer(child: TextChild, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moa_shared.sandbox.child.MOST_IDLE", 3)
    child.start()
    os.kill(process_of(child), signal.SIGSTOP)
    with pytest.raises(ChildError, match="it takes more than 1 s, or hangs"):
        shown(child, "ok")


WAITS, COMPUTED, IDLE = Life(False, 0.0), Life(False, 9.0), Life(True, 0.0)


@pytest.mark.parametrize(("looks", "kills"), [
    ([WAITS] * 100 * MOST_IDLE, 0),  # of a machine that is too busy for it
    ([*[IDLE] * (MOST_IDLE - 1), WAITS] * 5, 0),
    ([IDLE] * MOST_IDLE, 1),
    ([None] * MOST_IDLE, 1),  # a system that does not say
    ([COMPUTED], 1),
], ids=["busy", "pauses", "hangs", "unknown", "computes"])  # fmt: skip
def test_a_busy_machine_is_told_from_a_child_that_hangs(looks: list[Life | None], kills: int) -> None:
    left, killed = iter([WAITS, *looks]), list[int]()
    process = SimpleNamespace(pid=1, kill=lambda: killed.append(1))
    ends = iter([False] * len(looks))
    kill_if_stuck(cast(Any, process), 2, lambda _: next(ends, True), lambda _: next(left))
    assert len(killed) == kills


def test_a_request_that_was_interrupted_leaves_no_reply_behind(
    child: TextChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    assert shown(child, "one") == "one"
    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr("moa_shared.sandbox.child.Connection.recv_bytes", interrupt)
        shown(child, "two")
    assert shown(child, "three") == "three"


@pytest.mark.parametrize(("kind", "why"), [
    ("prefix", "byte index 1 is out of bounds|its process has ended"),  # a panic
    ("normaliser", "Cannot parse precompiled_charsmap"),
    ("decoder", "moa does not read its decoder Replace"),
])  # fmt: skip
def test_a_hostile_tokenizer_ends_no_more_than_the_child(child: TextChild, tmp_path: Path, kind: str, why: str) -> None:
    write_hostile(tmp_path, kind)
    with pytest.raises(ChildError, match=why):
        child.ask("moa_shared.sandbox.chat_template:try_files", folder=str(tmp_path))


def shown_of_chat_template(template: str) -> str:
    return render(template, {}, [{"role": "user", "content": "Hi"}], add_generation_prompt=True, arguments={})


@pytest.mark.parametrize("expression", [
    "3 ** (10 ** 9)", "messages | length ** (10 ** 9)", "'a' * 10 ** 9", "(10 ** 1000) * (10 ** 1000)",
    "range(0, -(10 ** 30), -1) | list", "''.__class__.__mro__", "messages.append(1)",
    "1 }}{% set ns = namespace() %}{% set ns._x = 1 %}{{ 1",
])  # fmt: skip
def test_what_would_fill_the_memory_or_reach_out_of_a_template_is_refused(expression: str) -> None:
    with pytest.raises(jinja2.TemplateError, match=r"must not|OverflowError|not safe|unsafe|cannot|access"):
        shown_of_chat_template("{{ " + expression + " }}")


def test_the_default_models_template_is_known(tokenizer: Tokenizer) -> None:
    template = tokenizer.chat_template or ""
    assert is_known(template)
    assert not is_known(template + " ")


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
ADDED = [{**FLAGS, "id": 300, "content": "<|end|>", "special": True}]
ADDED += [{**FLAGS, "id": 301, "content": "<x y>", "special": True, "normalized": True}]


def described(**changes: Any) -> dict[str, Any]:
    vocabulary = {piece: number for number, piece in enumerate([*map(chr, range(32, 127)), "▁", "ab", "é"])}
    model = {"type": "BPE", "unk_token": None, "vocab": vocabulary, "merges": [["a", "b"]]}
    return {
        "version": "1.0", "added_tokens": ADDED, "normalizer": SPACES, "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, "model": model, **changes,
    }  # fmt: skip


def read(**changes: Any) -> JsonTokenizer:
    return JsonTokenizer(json.dumps(described(**changes)))


def in_turn(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(steps)}


def split(pattern: dict[str, str], behaviour: str = "Isolated") -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": behaviour, "invert": False}


@pytest.mark.parametrize(("change", "why"), [
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}}, "out of vocabulary"),
    ({"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}, "."),
    ({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 0.1}}, "byte pairs with a dropout"),
    ({"normalizer": {"type": "Nothing"}}, "."), ({"pre_tokenizer": split({"Regex": "("})}, "."),
    ({"pre_tokenizer": split({"String": "a"}, "Sideways")}, "."), ({"decoder": {"type": "CTC"}}, "its decoder CTC"),
    ({"decoder": {"type": "Replace", "pattern": {"Regex": "a*"}, "content": ""}}, "its decoder Replace"),
    ({"decoder": []}, "."),
    ({"decoder": {"type": "Sequence", "decoders": [DOUBLES] * 3}}, "more than 4 times as long"),
    ({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 17}}, "its decoder has 17 steps"),
    ({"added_tokens": [{"id": 9, "content": "a" * 1025}]}, "a token of 1,025 characters"),
])  # fmt: skip
def test_what_is_not_read_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises((AttributeError, KeyError, TypeError, ValueError), match=why):
        read(**change)


@pytest.mark.parametrize("change", [
    {"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 5}},
    {"normalizer": {"type": "Prepend", "prepend": "a" * 16}}, {"pre_tokenizer": in_turn(*[BYTES] * 3)},
    {"normalizer": {"type": "Sequence", "normalizers": [SPACES] * 17}}, {"normalizer": {"type": "Lowercase"}},
    {"pre_tokenizer": split({"Regex": r"\p{L}+"})},
    {"model": {"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 0}},
])  # fmt: skip
def test_what_may_take_long_is_not_bounded(change: dict[str, Any]) -> None:
    assert read().is_bounded
    assert not read(**change).is_bounded


def test_a_decoder_of_bytes_adds_no_space() -> None:
    """As the files of GPT-2, Llama 3 and SmolLM2 have it."""
    tokenizer = read(decoder=BYTES | {"add_prefix_space": True})
    assert tokenizer.decode([tokenizer.vocabulary[piece] for piece in ("ab", "a")]) == "aba"


def test_what_the_package_raises_is_an_error_like_others() -> None:
    strip = {"type": "Strip", "content": "a", "start": 0, "stop": 9}
    with pytest.raises(ValueError, match="index out of bounds"):  # a panic of the package
        read(decoder=strip).decode([read().vocabulary["a"]])
    with pytest.raises(ValueError, match="too small"):
        read().decode([-1])
    assert read().decode([9999]) == ""


@given(st.lists(st.sampled_from(["<|end|>", "<x y>", "<", "ab", " ", "x y>", "<|end|>>"])).map("".join))
def test_what_is_guarded_has_no_special_tokens(text: str) -> None:
    tokenizer = Tokenizer(_READ)
    special = set(tokenizer.special_tokens.values())
    ids = tokenizer.encode(tokenizer.as_letters(text), is_guarded=True)
    assert not special.intersection(ids)
    assert tokenizer.decode(ids) == text
    assert special.intersection(tokenizer.encode(f"<|end|>{tokenizer.as_letters(text)}", is_guarded=True))


_READ = read()


@pytest.mark.parametrize(("piece", "text", "expected"), [
    ("Ġhi", " hi", b" hi"), ("Ã", "�", b"\xc3"), ("<0x0A>", "\n", b"\n"), ("<0xC3>", "�", b"\xc3"),
    ("<0x41>", "<0x41>", b"<0x41>"), ("▁hi", "hi", b" hi"), ("▁", "", b" "), ("�", "�", "�".encode()),
])  # fmt: skip
def test_the_bytes_of_a_token(piece: str, text: str, expected: bytes) -> None:
    assert token_bytes(piece, text) == expected


def test_the_alphabet_of_bytes() -> None:
    assert (len(BYTE_LEVEL), [BYTE_LEVEL[each] for each in spell_bytes("é ")]) == (256, list("é ".encode()))
