"""What a server's certificate, or the want of one, means."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.access.keys import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, KeyEntry
from moa_server.doctor.examination import check_keys, check_tls, judge_keys, judge_tls
from moa_server.setting_up import SetupFolder, add_key, set_up
from moa_server.settings import ServerSettings
from moa_server.tls.certificates import ServerCertificate
from moa_shared.errors import ConfigError
from moa_shared.programs.machine import Check

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFICATE = ServerCertificate(b"", b"", None, ("gpu.example", "192.0.2.7"), NOW + timedelta(days=100))
OF_CLIENTS = replace(CERTIFICATE, client_authorities=b"x")
OLD = KeyEntry("old", "0" * 64, expires=NOW)


@pytest.mark.parametrize(
    ("check", "state", "message", "hint"),
    [
        (judge_tls(None, "127.0.0.1", NOW), "ok", "not used: nothing leaves this machine", ""),
        (judge_tls(None, "0.0.0.0", NOW), "warn", "others on the way can read", "moa-server setup HOST"),
        (judge_tls(CERTIFICATE, "0.0.0.0", NOW), "ok", "gpu.example, 192.0.2.7: valid for 100 more days", ""),
        (judge_tls(OF_CLIENTS, "0.0.0.0", NOW + timedelta(days=90)), "warn", "clients need certificates", "--renew"),
        (judge_keys(None, "127.0.0.1", NOW), "ok", "not wanted: only this machine reaches the server", ""),
        (judge_keys(None, "0.0.0.0", NOW), "warn", "whoever reaches the server may use it", "--keys-file FILE"),
        (judge_keys(KeyBook(), "0.0.0.0", NOW), "warn", "0 that can be used", "Nobody gets in"),
        (judge_keys(KeyBook.of([OLD]), "0.0.0.0", NOW), "warn", "0 that can be used; expired: old", "Nobody gets in"),
        (
            judge_keys(KeyBook.of([OLD, KeyEntry("new", "1" * 64)]), "", NOW),
            "ok",
            "1 that can be used; expired: old",
            "",
        ),
    ],
)
def test_judgements(check: Check, state: str, message: str, hint: str) -> None:
    assert check.state == state
    assert message in check.message
    assert hint in check.hint
    assert bool(check.hint) is bool(hint)


def test_what_setup_makes_is_well(tmp_path: Path) -> None:
    folder = SetupFolder(tmp_path / "server")
    set_up(folder, ["gpu.example"], 50051, NOW)
    settings = ServerSettings(host="0.0.0.0", tls_cert=folder.server.certificate, tls_key=folder.server.key)
    assert check_tls(settings, NOW).state == "ok"
    folder.server.key.write_bytes(folder.authority.key.read_bytes())
    with pytest.raises(ConfigError, match="pem does not belong to the certificate"):
        check_tls(settings, NOW)
    with pytest.raises(ConfigError, match="conversations would cross the network without"):
        check_tls(ServerSettings(host="0.0.0.0"), NOW)


def test_keys_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = add_key(file, "device", NOW)
    assert check_keys(ServerSettings(), {}, NOW).message == snapshot("not wanted: only this machine reaches the server")
    assert check_keys(ServerSettings(keys_file=file), {}, NOW).message == snapshot("1 that can be used")
    assert check_keys(ServerSettings(keys_file=file), {KEYS_VARIABLE: f"other {key}"}, NOW).message == snapshot(
        "2 that can be used"
    )
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="Others may read the file of keys"):
        check_keys(ServerSettings(keys_file=file), {}, NOW)
