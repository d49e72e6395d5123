"""Certificates that a server refuses to start with, each in words; and a server's folder, with those that setup makes."""

import errno
import os
import ssl
import stat
import tomllib
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from moa_server import setting_up, tls
from moa_server.setting_up import SetupFolder, renew, set_up
from moa_server.settings import ServerSettings
from moa_shared.errors import ConfigError, MoaError, NotFoundError
from structlog.testing import capture_logs

from tests.support.certificates import Authority, Pair, put
from tests.support.messages import raises, steady

AUTHORITY, CERT, KEY = Authority(), Path("c"), Path("k")
GOOD = AUTHORITY.issue(names=("gpu.example", "10.0.0.1"))


def read(folder: Path, pair: Pair = GOOD, client_ca: bytes | None = None) -> tls.ServerCertificate:
    authorities = folder / "clients.pem" if client_ca is not None else None
    if authorities is not None and client_ca is not None:
        put(authorities, client_ca)
    return tls.read_certificate(tls.CertificateFiles(*pair.write(folder), authorities), datetime.now(UTC))


def locked(pair: Pair) -> bytes:
    key = load_pem_private_key(pair.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def test_a_good_certificate(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, AUTHORITY.certificate)
    assert (found.names, round(found.days_left(datetime.now(UTC)))) == (("gpu.example", "10.0.0.1"), 20)
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize(("words", "arguments"), [
    ("server.pem does not hold certificates in PEM, or not whole ones.", (Pair(b"", GOOD.key),)),
    ("server.pem does not hold certificates in PEM", (Pair(GOOD.certificate[:300], GOOD.key),)),
    ("server.key does not hold a private key in PEM", (Pair(GOOD.certificate, GOOD.key[:100]),)),
    ("server.key does not belong to the certificate", (Pair(GOOD.certificate, AUTHORITY.issue().key),)),
    ("server.key has a passphrase, which nobody could type", (Pair(GOOD.certificate, locked(GOOD)),)),
    ("cannot use the kind of the private key", (AUTHORITY.issue(key=ec.generate_private_key(ec.SECP521R1())),)),
    ("clients.pem does not hold certificates in PEM", (GOOD, b"nothing")),
    ("has expired on 20", (AUTHORITY.issue(days=-1),)),
    ("is valid only from 20", (AUTHORITY.issue(starts=1),)),
    ("No authority in TMP/clients.pem is valid any longer", (GOOD, Authority(days=-1).certificate)),
])  # fmt: skip
def test_certificates_that_are_refused(tmp_path: Path, words: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, *arguments)
    assert words in steady(str(caught.value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    certificate, key = GOOD.write(tmp_path)
    none = tmp_path / "none.pem"

    def check(words: str, *files: Path) -> None:
        with raises(MoaError, words):
            tls.read_certificate(tls.CertificateFiles(*files), datetime.now(UTC))

    check("There is no file TMP/none.pem. Check --tls-cert.", none, key)
    check("There is no file TMP/none.pem. Check --tls-key.", certificate, none)
    check("There is no file TMP/none.pem. Check --tls-client-ca.", certificate, key, none)
    check("TMP cannot be read: Is a directory. Check --tls-cert.", tmp_path, key)
    key.chmod(0o640)
    check("Others can read the private key TMP/server.key. Protect it: chmod 600 TMP/server.key", certificate, key)


def test_settings_that_expose_a_server_or_are_half_of_a_certificate() -> None:
    for settings, words in (
        (ServerSettings(tls_cert=CERT), "The certificate has no private key."),
        (ServerSettings(tls_key=KEY), "The private key has no certificate."),
        (ServerSettings(tls_client_ca=CERT), "Clients show certificates over TLS only"),
        (ServerSettings(host="0.0.0.0"), "On 0.0.0.0, conversations would cross the network without encryption."),
        (ServerSettings(host=""), "On all addresses, conversations would cross the network without encryption."),
    ):
        with pytest.raises(ConfigError, match=words):
            tls.files_of(settings)


def test_settings_that_expose_nobody() -> None:
    for host in ("localhost", "127.9.9.9", "::1"):
        assert tls.files_of(ServerSettings(host=host)) is None
    assert tls.files_of(ServerSettings(host="0.0.0.0", insecure=True)) is None
    assert tls.files_of(ServerSettings(host="0.0.0.0", tls_cert=CERT, tls_key=KEY)) == tls.CertificateFiles(CERT, KEY)


REFUSED = "certificate not renewed; the former one stays in force"


class Watched(tls.TlsListener):
    """A certificate in a folder, and the time as a test wants it."""

    def __init__(self, folder: Path, days: float = 20.0) -> None:
        self.now = datetime.now(UTC)
        super().__init__(tls.CertificateFiles(*Authority().issue(days=days).write(folder)), lambda: self.now)


def events(entries: list[MutableMapping[str, Any]]) -> list[str]:
    return [str(entry["event"]) for entry in entries]


def test_a_new_pair_is_taken_at_the_next_look_also_if_it_comes_in_two_pieces(tmp_path: Path) -> None:
    listener = Watched(tmp_path)
    before, renewed = listener.certificate, Authority().issue()
    with capture_logs() as entries:
        listener.refresh()
        put(tmp_path / "server.pem", renewed.certificate)
        listener.refresh()
        assert listener.certificate == before
        assert listener._fetch() is None
        put(tmp_path / "server.key", renewed.key)
        listener.refresh()
        assert listener.certificate.chain == renewed.certificate
        assert listener._fetch() is not None
        listener.refresh()
        assert listener._fetch() is None
    assert events(entries) == ["certificate renewed"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_pair_that_stays_wrong_is_logged_once_and_so_is_its_end(tmp_path: Path, at_once: bool) -> None:
    listener = Watched(tmp_path)
    before = listener.certificate
    with capture_logs() as entries:
        (tmp_path / "server.key").unlink()
        listener.refresh(at_once=at_once)
        assert events(entries) == [REFUSED] * at_once
        for _ in range(5):
            listener.refresh()
            put(tmp_path / "server.pem", before.chain)  # another file, and the same trouble
            listener.refresh()
        assert listener.certificate == before
        put(tmp_path / "server.key", before.key)
        for _ in range(5):
            listener.refresh()
    assert events(entries) == [REFUSED, "certificate files are good again"]


def test_an_end_that_is_near_is_logged_once_a_day(tmp_path: Path) -> None:
    listener = Watched(tmp_path, days=15)
    with capture_logs() as entries:
        for _ in range(32):
            listener.refresh()
            listener.now += timedelta(hours=12)
    assert events(entries) == ["certificate ends soon"] * 14 + ["certificate has expired"]


NOW = datetime.now(UTC)
HOSTS = ["gpu.example", "192.0.2.7", "2001:db8::1"]


@pytest.fixture
def folder(tmp_path: Path) -> SetupFolder:
    made = SetupFolder(tmp_path / "server")
    before = os.umask(0)  # who cares for nothing is protected too
    set_up(made, HOSTS, 50051, NOW)
    os.umask(before)
    return made


def read_of_setting_up(path: Path) -> x509.Certificate:
    return tls.parse_certificates(path.read_bytes(), path)[0]


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
    authority, server = read_of_setting_up(folder.authority.certificate), read_of_setting_up(folder.server.certificate)
    limits = authority.extensions.get_extension_for_class(x509.BasicConstraints)
    assert (limits.critical, limits.value.ca, limits.value.path_length) == (True, True, 0)
    assert authority.not_valid_after_utc - NOW > timedelta(tls.AUTHORITY_DAYS - 1)
    assert timedelta(tls.SERVER_DAYS - 1) < server.not_valid_after_utc - NOW <= timedelta(tls.SERVER_DAYS)
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
    until = read_of_setting_up(folder.server.certificate).not_valid_after_utc
    assert renew(folder, [], NOW + timedelta(minutes=30)) == tuple(HOSTS)
    changed = [path.name for path, content in before.items() if path.read_bytes() != content]
    assert (changed, handshake(folder, "gpu.example")) == (["server.pem"], "")
    assert read_of_setting_up(folder.server.certificate).not_valid_after_utc == until + timedelta(minutes=30)
    assert stat.S_IMODE(folder.server.certificate.stat().st_mode) == 0o600
    renew(folder, ["new.example"], NOW)
    assert tls.names_in(read_of_setting_up(folder.server.certificate)) == ("new.example",)


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
