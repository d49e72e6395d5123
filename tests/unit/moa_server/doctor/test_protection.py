"""What a server's certificate, or the want of one, means."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from inline_snapshot import snapshot
from moa_server.access.authentication import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, KeyEntry
from moa_server.doctor.examination import check_keys, check_tls, judge_keys, judge_tls
from moa_server.settings import ServerSettings
from moa_server.setup.folder import SetupFolder
from moa_server.setup.setting_up import add_device, set_up
from moa_server.tls.listener import ServerCertificate
from moa_shared.errors import ConfigError
from moa_shared.programs.machine import Check, check_line

from tests.support.messages import raises

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CERTIFICATE = ServerCertificate(b"", b"", None, ("gpu.example", "192.0.2.7"), NOW + timedelta(days=100))

OLD = KeyEntry("old", "0" * 64, expires=NOW)


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (judge_tls(None, "127.0.0.1", NOW), snapshot("  ok    TLS          not used: nothing leaves this machine\n")),
        (
            judge_tls(None, "0.0.0.0", NOW),
            snapshot("""\
  warn  TLS          not used: others on the way can read and change conversations
                     Make a certificate: moa-server setup HOST.
"""),
        ),
        (
            judge_tls(CERTIFICATE, "0.0.0.0", NOW),
            snapshot("  ok    TLS          gpu.example, 192.0.2.7: valid for 100 more days, its key fits\n"),
        ),
        (
            judge_tls(replace(CERTIFICATE, client_authorities=b"x"), "0.0.0.0", NOW + timedelta(days=90)),
            snapshot("""\
  warn  TLS          gpu.example, 192.0.2.7: valid for 10 more days, its key fits; clients need certificates
                     Renew it: moa-server setup --renew, or as it was made.
"""),
        ),
        (
            judge_keys(None, "127.0.0.1", NOW),
            snapshot("  ok    keys         not wanted: only this machine reaches the server\n"),
        ),
        (
            judge_keys(None, "0.0.0.0", NOW),
            snapshot("""\
  warn  keys         not wanted: whoever reaches the server may use it
                     Make one: moa-server keys add NAME, and serve with --keys-file FILE.
"""),
        ),
        (
            judge_keys(KeyBook(), "0.0.0.0", NOW),
            snapshot("""\
  warn  keys         0 that can be used
                     Nobody gets in. Make one: moa-server keys add NAME.
"""),
        ),
        (
            judge_keys(KeyBook.of([OLD]), "0.0.0.0", NOW),
            snapshot("""\
  warn  keys         0 that can be used; expired: old
                     Nobody gets in. Make one: moa-server keys add NAME.
"""),
        ),
        (
            judge_keys(KeyBook.of([OLD, KeyEntry("new", "1" * 64)]), "0.0.0.0", NOW),
            snapshot("  ok    keys         1 that can be used; expired: old\n"),
        ),
    ],
)
def test_judgements(check: Check, message: str) -> None:
    assert check_line(check) == message


def test_what_setup_makes_is_well(tmp_path: Path) -> None:
    folder = SetupFolder(tmp_path / "server")
    set_up(folder, ["gpu.example"], 50051, lambda file: "", NOW)
    settings = ServerSettings(host="0.0.0.0", tls_cert=folder.certificate, tls_key=folder.key)
    assert check_tls(settings, NOW).state == "ok"
    folder.key.write_bytes(folder.authority_key.read_bytes())
    with raises(
        ConfigError,
        snapshot(
            "The private key TMP/server/server.key.pem does not belong to the certificate TMP/server/server.pem. Name the key that the certificate was made for; the server's certificate comes first in its file."
        ),
    ):
        check_tls(settings, NOW)
    with raises(
        ConfigError,
        snapshot(
            "On 0.0.0.0, conversations would cross the network without encryption. Give the server a certificate (moa-server setup makes one; --tls-cert FILE --tls-key FILE name one); or have it listen on this machine only (--host 127.0.0.1), behind a proxy or a tunnel; or accept with --insecure that others on the way read and change them."
        ),
    ):
        check_tls(ServerSettings(host="0.0.0.0"), NOW)


def test_keys_are_read_as_the_server_reads_them(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    key = add_device(file, "device", NOW)
    assert check_keys(ServerSettings(), {}, NOW).message == snapshot("not wanted: only this machine reaches the server")
    assert check_keys(ServerSettings(keys_file=file), {}, NOW).message == snapshot("1 that can be used")
    assert check_keys(ServerSettings(keys_file=file), {KEYS_VARIABLE: f"other {key}"}, NOW).message == snapshot(
        "2 that can be used"
    )
    file.chmod(0o644)
    with raises(
        ConfigError, snapshot("Others may read the file of keys TMP/keys.toml. Protect it: chmod 600 TMP/keys.toml")
    ):
        check_keys(ServerSettings(keys_file=file), {}, NOW)
