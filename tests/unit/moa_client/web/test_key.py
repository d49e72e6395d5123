from __future__ import annotations

from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_client.web.access import read_key
from moa_shared.errors import ConfigError, NotFoundError

from tests.support.messages import raises

KEY = "0123456789abcdef.-"


def key_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "key"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_the_file_counts_before_the_environment(tmp_path: Path) -> None:
    path = key_file(tmp_path, f"{KEY}\n")
    assert read_key(path, {"MOA_ENDPOINT_KEY": "another-one-0123456789"}) == KEY
    assert read_key(None, {"MOA_ENDPOINT_KEY": KEY}) == KEY
    assert read_key(None, {}) == ""


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    with raises(ConfigError, snapshot("Others can read the key file TMP/key. Protect it: chmod 600 TMP/key")):
        read_key(key_file(tmp_path, KEY, 0o640))


def test_a_file_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_key(tmp_path / "none")


@pytest.mark.parametrize("text", ["short", "", f"{KEY};", f'"{KEY}"', f"{KEY}=", f"{KEY},"])
def test_what_could_not_be_sent_or_guessed_is_refused(text: str) -> None:
    with raises(
        ConfigError,
        snapshot("MOA_ENDPOINT_KEY has no key of at least 16 letters, digits and ._~+- Make one: openssl rand -hex 32"),
    ):
        read_key(None, {"MOA_ENDPOINT_KEY": text})
