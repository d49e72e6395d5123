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
from moa_server.tls import CertificateFiles, ServerCertificate, TlsListener, files_of, read_certificate
from moa_shared.errors import ConfigError, MoaError
from structlog.testing import capture_logs

from tests.support.certificates import Authority, Pair, put
from tests.support.messages import raises, steady

AUTHORITY, CERT, KEY = Authority(), Path("c"), Path("k")
GOOD = AUTHORITY.issue(names=("gpu.example", "10.0.0.1"))


def read(folder: Path, pair: Pair = GOOD, client_ca: bytes | None = None) -> ServerCertificate:
    authorities = folder / "clients.pem" if client_ca is not None else None
    if authorities is not None and client_ca is not None:
        put(authorities, client_ca)
    return read_certificate(CertificateFiles(*pair.write(folder), authorities), datetime.now(UTC))


def locked(pair: Pair) -> bytes:
    key = load_pem_private_key(pair.key, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def test_a_good_certificate(tmp_path: Path) -> None:
    found = read(tmp_path, GOOD, AUTHORITY.certificate)
    assert (found.names, round(found.days_left(datetime.now(UTC)))) == (("gpu.example", "10.0.0.1"), 20)
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
        with raises(MoaError, words):
            read_certificate(CertificateFiles(*files), datetime.now(UTC))

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
            files_of(settings)


def test_settings_that_expose_nobody() -> None:
    for host in ("localhost", "127.9.9.9", "::1"):
        assert files_of(ServerSettings(host=host)) is None
    assert files_of(ServerSettings(host="0.0.0.0", insecure=True)) is None
    assert files_of(ServerSettings(host="0.0.0.0", tls_cert=CERT, tls_key=KEY)) == CertificateFiles(CERT, KEY)


REFUSED = "certificate not renewed; the former one stays in force"


class Watched(TlsListener):
    """A certificate in a folder, and the time as a test wants it."""

    def __init__(self, folder: Path, days: float = 20.0) -> None:
        self.now = datetime.now(UTC)
        super().__init__(CertificateFiles(*Authority().issue(days=days).write(folder)), lambda: self.now)


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
