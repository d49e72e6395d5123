from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_shared.errors import ModelSourceError
from moa_shared.models.tokenizer import trial
from moa_shared.models.tokenizer.tokenizer_hash import hash_tokenizer
from moa_shared.models.tokenizer.trial import accept_tokenizer
from moa_shared.sandbox.child import TextChild

from tests.support.hostile_tokenizers import write_hostile
from tests.support.messages import raises


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
    with raises(
        ModelSourceError,
        snapshot(
            "The tokenizer or the chat template in . cannot be used: it takes more than 1 s. The files are damaged or hostile: use another model or server."
        ),
    ):
        accept_tokenizer(Path(), cache)


def test_a_template_that_refuses_the_trial_is_accepted(tmp_path: Path, cache: Path, tried: list[Path]) -> None:
    write_hostile(tmp_path, "none")
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('Roles must alternate.') }}")
    accept_tokenizer(tmp_path, cache)
    assert tried
