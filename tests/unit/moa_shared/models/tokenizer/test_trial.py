import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moa_shared.errors import ModelSourceError
from moa_shared.models.tokenizer import trial
from moa_shared.models.tokenizer.trial import accept_tokenizer, hash_tokenizer
from moa_shared.sandbox.child import TextChild

from tests.support.messages import says
from tests.support.tiny_gguf import write_hostile


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that were tried in a child."""
    folders: list[Path] = []

    class Counted(TextChild):
        def try_files(self, folder: Path) -> None:
            folders.append(folder)
            super().try_files(folder)

    monkeypatch.setattr(trial, "TextChild", Counted)
    monkeypatch.setattr(trial, "SECONDS", 1)
    monkeypatch.setattr(trial, "_passed", set())
    return folders


def forget() -> None:
    """As another process that begins."""
    trial._passed.clear()


def test_files_are_tried_once(tmp_path: Path, cache: Path, tried: list[Path]) -> None:
    write_hostile(tmp_path, "none")
    for _ in range(2):
        assert accept_tokenizer(tmp_path, cache) == hash_tokenizer(tmp_path, cache)
        forget()
    assert tried == [tmp_path]
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    for _ in range(2):
        accept_tokenizer(tmp_path, cache)
        forget()
    assert tried == [tmp_path, tmp_path]


@pytest.mark.parametrize("kind", ["prefix", "normaliser", "decoder"])
def test_a_tokenizer_that_fails_is_refused_each_time(tmp_path: Path, cache: Path, tried: list[Path], kind: str) -> None:
    write_hostile(tmp_path, kind)
    for _ in range(2):
        with pytest.raises(ModelSourceError, match=r"The tokenizer or the chat template in .* cannot be used"):
            accept_tokenizer(tmp_path, cache)
    assert len(tried) == 2


def test_a_template_that_takes_too_long_is_refused(
    tmp_path: Path, cache: Path, tried: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_hostile(tmp_path, "none")
    (tmp_path / "chat_template.jinja").write_text("{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3)
    monkeypatch.chdir(tmp_path)
    with says(ModelSourceError, "The tokenizer or the chat template in . cannot be used: it takes more than 1 s"):
        accept_tokenizer(Path(), cache)


def test_a_template_that_refuses_the_trial_is_accepted(tmp_path: Path, cache: Path, tried: list[Path]) -> None:
    write_hostile(tmp_path, "none")
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('Roles must alternate.') }}")
    accept_tokenizer(tmp_path, cache)
    assert tried


Edit = Callable[[dict[str, Any]], object]


def edited(folder: Path, edit: Edit) -> None:
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text("utf-8"))
    edit(content)
    path.write_text(json.dumps(content, indent=3), "utf-8")


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update(version="2.0", something_new=None),
        lambda content: content["model"].update(dropout=None, ignore_merges=False),
        lambda content: content["pre_tokenizer"].update(new_option=False),
        lambda content: content["model"].update(merges=[" ".join(pair) for pair in content["model"]["merges"]]),
        lambda content: content["added_tokens"].reverse(),
    ],
)
def test_another_spelling_of_the_same_tokenizer(model_folder: Path, cache: Path, edit: Edit) -> None:
    first = hash_tokenizer(model_folder, cache)
    edited(model_folder, edit)
    assert hash_tokenizer(model_folder, cache) == first


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content["model"]["vocab"].update(new=999),
        lambda content: content["model"]["merges"].pop(),
        lambda content: content["model"].update(ignore_merges=True),
        lambda content: content["added_tokens"].pop(),
        lambda content: content["pre_tokenizer"].update(use_regex=False),
        lambda content: content.update(normalizer={"type": "Lowercase"}),
    ],
)
def test_another_tokenizer(model_folder: Path, cache: Path, edit: Edit) -> None:
    first = hash_tokenizer(model_folder, cache)
    edited(model_folder, edit)
    assert hash_tokenizer(model_folder, cache) != first
