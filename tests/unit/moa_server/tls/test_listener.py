"""Certificates that a server refuses to start with, each in words; and what it may listen on without one."""

from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from moa_server.settings import ServerSettings
from moa_server.tls.certificates import CertificateFiles, ServerCertificate, read_certificate
from moa_server.tls.listener import (
    PATIENCE_SECONDS,
    REPORT_SECONDS,
    TlsListener,
    WatchedCertificate,
    files_of,
)
from moa_shared.errors import ConfigError, MoaError
from structlog.testing import capture_logs

from tests.support.certificates import Authority, Pair, put
from tests.support.messages import steady

AUTHORITY = Authority()
GOOD = AUTHORITY.issue(names=("gpu.example", "10.0.0.1"))


def read(folder: Path, pair: Pair = GOOD, client_ca: bytes | None = None) -> ServerCertificate:
    certificate, key = pair.write(folder)
    authorities = None
    if client_ca is not None:
        authorities = folder / "clients.pem"
        put(authorities, client_ca)
    return read_certificate(CertificateFiles(certificate, key, authorities), datetime.now(UTC))


def locked(pair: Pair) -> bytes:
    key = load_pem_private_key(pair.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def test_a_good_certificate(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, AUTHORITY.certificate)
    assert found.names == ("gpu.example", "10.0.0.1")
    assert 19.9 < found.days_left(datetime.now(UTC)) < 20.1
    assert "PRIVATE" not in repr(found)


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
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
    ],
)
def test_certificates_that_are_refused(tmp_path: Path, words: str, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, *arguments)
    assert words in steady(str(caught.value))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    certificate, key = GOOD.write(tmp_path)
    none = tmp_path / "none.pem"

    def check(words: str, *files: Path) -> None:
        with pytest.raises(MoaError) as caught:
            read_certificate(CertificateFiles(*files), datetime.now(UTC))
        assert steady(str(caught.value)) == words

    check("There is no file TMP/none.pem. Check --tls-cert.", none, key)
    check("There is no file TMP/none.pem. Check --tls-key.", certificate, none)
    check("There is no file TMP/none.pem. Check --tls-client-ca.", certificate, key, none)
    check("TMP cannot be read: Is a directory. Check --tls-cert.", tmp_path, key)
    key.chmod(0o640)
    check("Others can read the private key TMP/server.key. Protect it: chmod 600 TMP/server.key", certificate, key)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (ServerSettings(tls_cert=Path("c")), "The certificate has no private key."),
        (ServerSettings(tls_key=Path("k")), "The private key has no certificate."),
        (ServerSettings(tls_client_ca=Path("a")), "Clients show certificates over TLS only"),
        (ServerSettings(host="0.0.0.0"), "On 0.0.0.0, conversations would cross the network without encryption."),
        (ServerSettings(host=""), "On all addresses, conversations would cross the network without encryption."),
    ],
)
def test_settings_that_expose_a_server_or_are_half_of_a_certificate(settings: ServerSettings, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        files_of(settings)


def test_settings_that_expose_nobody() -> None:
    for host in ("localhost", "127.9.9.9", "::1"):
        assert files_of(ServerSettings(host=host)) is None
    assert files_of(ServerSettings(host="0.0.0.0", insecure=True)) is None
    settings = ServerSettings(host="0.0.0.0", tls_cert=Path("c"), tls_key=Path("k"))
    assert files_of(settings) == CertificateFiles(Path("c"), Path("k"))


REFUSED = "certificate not renewed; the former one stays in force"


class Watched(WatchedCertificate):
    """A certificate in a folder, and the time as a test wants it."""

    def __init__(self, folder: Path, days: float = 20.0) -> None:
        self.now = datetime.now(UTC)
        super().__init__(CertificateFiles(*Authority().issue(days=days).write(folder)), lambda: self.now)


def events(entries: list[MutableMapping[str, Any]]) -> list[str]:
    return [str(entry["event"]) for entry in entries]


def test_a_new_pair_is_taken_at_the_next_look_also_if_it_comes_in_two_pieces(tmp_path: Path) -> None:
    certificate = Watched(tmp_path)
    before, renewed = certificate.newest, Authority().issue()
    with capture_logs() as entries:
        assert certificate.look() is None
        put(tmp_path / "server.pem", renewed.certificate)
        assert certificate.look() is None
        assert certificate.newest == before
        put(tmp_path / "server.key", renewed.key)
        found = certificate.look()
        assert found is not None
        assert found.chain == renewed.certificate
        assert certificate.newest == found
        assert certificate.look() is None
    assert events(entries) == ["certificate renewed"]


def test_a_pair_that_stays_wrong_is_logged_once_and_so_is_its_end(tmp_path: Path) -> None:
    certificate = Watched(tmp_path)
    before = certificate.newest
    with capture_logs() as entries:
        (tmp_path / "server.key").unlink()
        for _ in range(5):
            assert certificate.look() is None
            put(tmp_path / "server.pem", before.chain)  # another file, and the same trouble
            assert certificate.look() is None
        assert certificate.newest == before
        put(tmp_path / "server.key", before.key)
        for _ in range(5):
            assert certificate.look() is None
    assert events(entries) == [REFUSED, "certificate files are good again"]


def test_a_reload_says_at_once_what_comes_of_it(tmp_path: Path) -> None:
    certificate = Watched(tmp_path)
    put(tmp_path / "server.pem", b"half")
    with capture_logs() as entries:
        assert certificate.look(at_once=True) is None
        assert certificate.look() is None
    assert events(entries) == [REFUSED]
    Authority().issue().write(tmp_path)
    assert certificate.look(at_once=True) is not None


def test_an_end_that_is_near_is_logged_once_a_day(tmp_path: Path) -> None:
    certificate = Watched(tmp_path, days=15)
    with capture_logs() as entries:
        for _ in range(32):
            certificate.look()
            certificate.now += timedelta(hours=12)
    assert events(entries) == ["certificate ends soon"] * 14 + ["certificate has expired"]


def test_connections_that_come_to_nothing_are_reported_once_a_minute(tmp_path: Path) -> None:
    now = 0.0
    listener = TlsListener(CertificateFiles(*Authority().issue().write(tmp_path)), lambda: now)
    with capture_logs() as entries:
        listener.credentials()
        for second in range(int(3 * REPORT_SECONDS)):
            listener._fetch()  # as gRPC does: one handshake a second that comes to nothing,
            listener._fetch()
            listener.look(second + 1)  # and one with a call
            now = float(second)
    reports = [entry for entry in entries if entry["event"] == "connections without a call"]
    assert len(reports) == 3
    assert sum(entry["count"] for entry in reports) > 2 * REPORT_SECONDS - PATIENCE_SECONDS
