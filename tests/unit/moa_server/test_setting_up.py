"""A server's folder: what TLS makes of its certificates, who may read it, and what is never overwritten."""

import errno
import os
import ssl
import stat
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import Mock

import pytest
from cryptography import x509
from moa_server import setting_up
from moa_server.setting_up import SetupFolder, renew, set_up
from moa_server.tls import AUTHORITY_DAYS, SERVER_DAYS, names_in, parse_certificates
from moa_shared.errors import ConfigError, NotFoundError

NOW = datetime.now(UTC)
HOSTS = ["gpu.example", "192.0.2.7", "2001:db8::1"]


@pytest.fixture
def folder(tmp_path: Path) -> SetupFolder:
    made = SetupFolder(tmp_path / "server")
    before = os.umask(0)  # who cares for nothing is protected too
    set_up(made, HOSTS, 50051, NOW)
    os.umask(before)
    return made


def read(path: Path) -> x509.Certificate:
    return parse_certificates(path.read_bytes(), path)[0]


def handshake(folder: SetupFolder, host: str, authority: Path | None = None) -> str:
    """Why a client that knows the server as `host` refuses it; empty: it does not."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.load_verify_locations(authority or folder.authority.certificate)
    client_context.verify_flags |= ssl.VERIFY_X509_STRICT
    server_context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_context.load_cert_chain(folder.server.certificate, folder.server.key)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server, server_hostname=host)
    server = server_context.wrap_bio(to_server, to_client, server_side=True)
    for end in 4 * (client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    client.getpeercert()
    return ""


def test_the_server_is_known_by_each_of_its_names_and_nobody_else_is_taken_for_it(
    folder: SetupFolder, tmp_path: Path
) -> None:
    assert {handshake(folder, host) for host in HOSTS} == {""}
    assert "Hostname mismatch" in handshake(folder, "other.example")
    other = SetupFolder(tmp_path / "other")
    set_up(other, HOSTS, 50051, NOW)
    assert handshake(folder, "gpu.example", other.authority.certificate) != ""
    authority, server = read(folder.authority.certificate), read(folder.server.certificate)
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert authority.not_valid_after_utc - NOW > timedelta(AUTHORITY_DAYS - 1)
    assert timedelta(SERVER_DAYS - 1) < server.not_valid_after_utc - NOW <= timedelta(SERVER_DAYS)
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_only_its_owner_may_read_it(folder: SetupFolder) -> None:
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    made = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir() if path.name[0] != "."}
    pairs = [folder.authority.certificate, folder.authority.key, folder.server.certificate, folder.server.key]
    assert made == {path.name: 0o600 for path in (*pairs, folder.keys, folder.settings)}
    assert tomllib.loads(folder.settings.read_text())["server"] == {
        "host": "::", "port": 50051, "metrics_port": 9464, "keys_file": str(folder.keys),
        "tls_cert": str(folder.server.certificate), "tls_key": str(folder.server.key),
    }  # fmt: skip


def test_who_names_only_loopback_is_not_listened_to_beyond_it(tmp_path: Path) -> None:
    for hosts, listens in ((["127.0.0.1"], "127.0.0.1"), (["[::1]"], "::1"), (["localhost", "::1"], "localhost")):
        set_up(folder := SetupFolder(tmp_path / listens), hosts, 50051, NOW)
        assert f'host = "{listens}"\n' in folder.settings.read_text()
    set_up(folder := SetupFolder(tmp_path / "any"), ["127.0.0.1", "gpu.example"], 50051, NOW)
    assert 'host = "0.0.0.0"\n' in folder.settings.read_text()


def test_what_is_there_is_not_overwritten_and_half_a_folder_is_not_made(
    folder: SetupFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in folder.path.parent.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="server holds a server's files already"):
        set_up(folder, HOSTS, 50051, NOW)
    assert {path: path.read_bytes() for path in folder.path.parent.rglob("*") if path.is_file()} == before
    monkeypatch.setattr(setting_up, "add_key", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(ConfigError, match="other cannot be written: No space left on device"):
        set_up(SetupFolder(tmp_path / "other"), HOSTS, 50051, NOW)
    assert list(tmp_path.iterdir()) == [folder.path]


def test_a_renewed_certificate_is_of_the_same_authority_and_key(folder: SetupFolder) -> None:
    before = {path: path.read_bytes() for path in folder.path.iterdir()}
    until = read(folder.server.certificate).not_valid_after_utc
    assert renew(folder, [], NOW + timedelta(minutes=30)) == tuple(HOSTS)
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert changed == ["server.pem"]
    assert handshake(folder, "gpu.example") == ""
    assert read(folder.server.certificate).not_valid_after_utc == until + timedelta(minutes=30)
    assert stat.S_IMODE(folder.server.certificate.stat().st_mode) == 0o600
    renew(folder, ["new.example"], NOW)
    assert names_in(read(folder.server.certificate)) == ("new.example",)


def test_what_cannot_be_renewed(folder: SetupFolder, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="Name the folder with --folder, or make one"):
        renew(SetupFolder(tmp_path / "none"), [], NOW)
    folder.server.key.write_text("half")
    with pytest.raises(ConfigError, match="pem does not hold a private key in PEM"):
        renew(folder, [], NOW)


def test_what_is_no_name(tmp_path: Path) -> None:
    for host in ("gpu example", "gpu.example:50051", "", "-a.example", "a..b", "ü.example", "a" * 64):
        with pytest.raises(ConfigError, match="is no name of a host"):
            set_up(SetupFolder(tmp_path / "server"), [host], 50051, NOW)
    assert not list(tmp_path.iterdir())
