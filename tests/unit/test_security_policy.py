"""SECURITY.md against the programs: the options that it names exist, and do what it says by default."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from moa_client.link.security import Security
from moa_client.settings import ClientSettings
from moa_server.access.keys import Gate, changing
from moa_server.settings import ServerSettings
from moa_server.tls import files_of
from moa_shared.errors import AuthenticationError, ConfigError
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.config import settings_of

TEXT = (Path(__file__).resolve().parents[2] / "SECURITY.md").read_text("utf-8")
SERVER = {about.flag_of() for about in settings_of(ServerSettings).values()}
CLIENT = {about.flag_of() for about in settings_of(ClientSettings).values()}
PROTECTING = re.compile(r"--(tls|insecure|keys|metrics-(port|host))\b.*")
BEYOND = "192.0.2.7:50051"


def test_every_option_that_it_names_exists_and_each_that_protects_is_named() -> None:
    named = set(re.findall(r"`(--[\w-]+)`", TEXT))
    assert named <= SERVER | CLIENT
    protecting = {flag for flag in SERVER if PROTECTING.match(flag)} | {"--tls", "--tls-ca"}
    assert protecting <= named


def test_a_server_beyond_its_machine_needs_a_certificate_or_insecure() -> None:
    usual = ServerSettings()
    assert is_loopback(usual.host)
    assert is_loopback(usual.metrics_host)
    assert not usual.insecure
    exposed = replace(usual, host="0.0.0.0")
    with pytest.raises(ConfigError, match="without encryption"):
        files_of(exposed)
    assert files_of(replace(exposed, insecure=True)) is None


def test_a_client_sends_nothing_beyond_its_machine_without_encryption() -> None:
    assert not ClientSettings().insecure
    for refused in (Security(), Security(insecure=True, key="key")):
        with pytest.raises(ConfigError, match="without encryption"):
            refused.check(BEYOND)
    Security(insecure=True).check(BEYOND)
    Security(tls=True, key="key").check(BEYOND)


def test_a_server_asks_for_keys_where_it_has_a_file_of_them(tmp_path: Path) -> None:
    assert ServerSettings().keys_file is None
    assert not Gate(None).wants_keys
    with changing(tmp_path / "keys.toml"):
        pass
    with pytest.raises(AuthenticationError):
        Gate(tmp_path / "keys.toml").admit([], "ipv4:192.0.2.8:1")
