import json
import random
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models import ModelFiles, load_tokenizer, resolve
from moa_shared.models.tokenizer import Tokenizer
from moa_shared.sandbox import chat_template
from moa_shared.sandbox.child import text_child
from moa_shared.sandbox.tokenizer_json import JsonTokenizer

from tests.support.family_templates import FAMILY_TEMPLATES
from tests.support.messages import says
from tests.support.tiny_gguf import TOKENS, write_hostile

MESSAGES = [
    {"role": "system", "content": 'Be "brief" <b>'},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello\n"},
    {"role": "user", "content": "  more  "},
]


@pytest.fixture
def files(model_folder: Path, cache: Path) -> ModelFiles:
    return resolve(str(model_folder), cache)


@pytest.fixture
def tokenizer(files: ModelFiles) -> Tokenizer:
    return load_tokenizer(files)


def sample_texts() -> list[str]:
    """Text of many scripts, some of it made up."""
    texts = [
        "",
        "   lead",
        "a  b   c\t\r\n\r\n 1",
        "日本語 123 4567",
        "👩‍👩‍👧 e\u0301 é \u00a0 ﷺ ½ ٣",
        "<|im_start|>user\nhi<|im_end|>",
    ]
    choice = random.Random(0)
    ranges = [(32, 127), (160, 0x3000), (0x4E00, 0x4F00), (0x1F300, 0x1FAFF), (9, 14)]
    return texts + ["".join(chr(choice.randrange(*choice.choice(ranges))) for _ in range(60)) for _ in range(200)]


def test_the_bytes_of_tokens_are_those_of_their_text(default_model_files: ModelFiles) -> None:
    tokenizer = load_tokenizer(default_model_files)
    for text in sample_texts():
        tokens = tokenizer.encode(text)
        assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()
    assert tokenizer.token_bytes(tokenizer.size) == b""


TEMPLATES = [
    "{%- for m in messages %}\n  {%- if loop.index > 2 %}{% break %}{% endif %}\n{{ m.content | tojson }}{%- endfor %}",
    "{{ bos_token }}{% for m in messages %}{% generation %}{{ m['content'] | trim }}{% endgeneration %}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ dict(a=1) | tojson }}{{ tools is none }}{{ strftime_now('%Y') | length }}",
    "{% if add_generation_prompt %}yes{% endif %}{{ messages[-1].content }}\n  {% if true %}\nx\n  {% endif %}\n",
    "{% macro turn(m) %}{{ m.role.upper() }}: {{ m.content }}{% endmacro %}{{ turn(messages[0]) }}|{{ nothing }}",
]


@pytest.mark.torch
@pytest.mark.parametrize("template", [*TEMPLATES, *FAMILY_TEMPLATES.values()])
def test_templates_are_rendered_as_transformers_renders_them(files: ModelFiles, template: str) -> None:
    import transformers

    (files.folder / "chat_template.jinja").write_text(template)
    theirs = transformers.AutoTokenizer.from_pretrained(files.folder)
    ours = load_tokenizer(files).apply_chat_template(MESSAGES, add_generation_prompt=True)
    assert ours == theirs.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=False)


def test_text_is_never_cut_or_filled(files: ModelFiles) -> None:
    path = files.folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    content["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
        "pad_token": "<|endoftext|>",
    }  # fmt: skip
    path.write_text(json.dumps(content))
    tokenizer = load_tokenizer(files)
    assert tokenizer.encode("hi") == [TOKENS.index("hi")]
    assert len(tokenizer.encode("hi" * 9)) == 9


def change(files: ModelFiles, **changes: Any) -> Tokenizer:
    path = files.folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return load_tokenizer(files)


def test_where_a_template_may_be(files: ModelFiles) -> None:
    assert load_tokenizer(files).chat_template is None
    assert change(files, chat_template="one").chat_template == "one"
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "two"}]
    assert change(files, chat_template=named).chat_template == "two"
    assert load_tokenizer(files).with_tools().chat_template == "tools"
    (files.folder / "chat_template.jinja").write_text("three")
    assert load_tokenizer(files).with_tools().chat_template == load_tokenizer(files).chat_template == "three"


def test_a_raw_text_begins_with_bos_where_the_configuration_says_so(files: ModelFiles) -> None:
    ids = change(files).encode("hi")
    for given, expected in (
        ({"bos_token": "<|im_start|>", "add_bos_token": True}, [1, *ids]),
        ({"bos_token": "<|im_start|>", "add_bos_token": False}, ids),
        ({"bos_token": "<|im_start|>", "add_bos_token": None}, ids),
        ({"bos_token": None, "add_bos_token": True}, ids),
    ):
        tokenizer = change(files, **given)
        assert tokenizer.with_bos(tokenizer.encode("hi")) == expected
        assert tokenizer.with_bos(tokenizer.encode("<|im_start|>hi")) == [1, *ids]
        assert tokenizer.encode("hi") == ids


def test_tokenizer_json_may_add_bos_itself(files: ModelFiles) -> None:
    path = files.folder / "tokenizer.json"
    content = json.loads(path.read_text())
    bos = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
    content["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }  # fmt: skip
    path.write_text(json.dumps(content))
    for said, added in ((None, [1]), (True, [1]), (False, [])):
        tokenizer = change(files, bos_token="<|im_start|>", add_bos_token=said)
        assert tokenizer.with_bos(tokenizer.encode("hi")) == added + tokenizer.encode("hi")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", '{"model": {"type": "BPE"}}'),
        ("tokenizer_config.json", "{"),
        ("tokenizer_config.json", "[]"),
        ("tokenizer_config.json", "[" * 100_000),
        ("tokenizer_config.json", '{"eos_token": {}}'),
    ],
)
def test_a_damaged_tokenizer(files: ModelFiles, name: str, text: str) -> None:
    (files.folder / name).write_text(text)
    with pytest.raises(ModelSourceError, match=r"The tokenizer of tiny-llama in .* cannot be read"):
        load_tokenizer(files)


def test_a_text_without_tokens_is_an_error() -> None:
    model = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "u"}
    tokenizer = Tokenizer(JsonTokenizer(json.dumps({"version": "1.0", "added_tokens": [], "model": model})))
    assert tokenizer.encode("a") == [0]
    with says(ModelSourceError, "The target's tokenizer has failed: WordLevel error: Missing [UNK] token from"):
        tokenizer.encode("b")


def test_text_is_encoded_in_a_child_where_the_expressions_are_not_known(
    files: ModelFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hostile(files.folder, "none")
    plain = load_tokenizer(files)
    write_hostile(files.folder, "backtracks")
    slow = load_tokenizer(files)
    encoded: list[str] = []
    child = text_child()
    ask = child.ask

    def counted(function: str, **given: Any) -> Any:
        encoded.append(given["text"])
        return ask(function, **given)

    monkeypatch.setattr(child, "ask", counted)
    assert plain.encode("hi")
    assert not encoded
    assert slow.encode("hi")
    with pytest.raises(ModelSourceError, match="The target's tokenizer has failed"):
        slow.encode("a" * 40 + "b")
    assert encoded == ["hi", "a" * 40 + "b"]


def test_only_a_template_that_is_not_known_is_rendered_in_a_child(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = text_child()
    started: list[bool] = []
    monkeypatch.setattr(child, "start", lambda: started.append(True))
    monkeypatch.setattr(child, "ask", lambda *_, **__: "the child's")
    tokenizer.prepare()
    assert not started
    tokenizer.chat_template = "{{ messages[0].role }}"
    tokenizer.prepare()
    assert started
    assert tokenizer.apply_chat_template(MESSAGES) == "the child's"
    monkeypatch.setattr(chat_template, "is_known", lambda template: True)
    assert tokenizer.apply_chat_template(MESSAGES) == "system"
