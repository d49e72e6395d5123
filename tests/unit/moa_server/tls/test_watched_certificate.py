"""Certificates that are renewed while a server runs: what is in force, and what the log says and how often."""

from __future__ import annotations

from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from moa_server.tls.files import CertificateFiles
from moa_server.tls.listener import PATIENCE_SECONDS, REPORT_SECONDS, TlsListener, WatchedCertificate
from structlog.testing import capture_logs

from tests.support.certificates import Authority, put

REFUSED = "certificate not renewed; the former one stays in force"


class Clock:
    """The time, as a test wants it."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC)

    def __call__(self) -> datetime:
        return self.now


def events(entries: list[MutableMapping[str, Any]]) -> list[str]:
    return [str(entry["event"]) for entry in entries]


def watched(folder: Path, days: float = 20.0) -> tuple[WatchedCertificate, Clock]:
    clock = Clock()
    return WatchedCertificate(CertificateFiles(*Authority().issue(days=days).write(folder)), clock), clock


def test_a_new_pair_is_taken_at_the_next_look(tmp_path: Path) -> None:
    certificate, _ = watched(tmp_path)
    assert certificate.look() is None
    renewed = Authority().issue()
    renewed.write(tmp_path)
    with capture_logs() as entries:
        found = certificate.look()
        assert found is not None
        assert found.chain == renewed.certificate
        assert certificate.newest == found
        assert certificate.look() is None
    assert events(entries) == ["certificate renewed"]


def test_a_pair_that_comes_in_two_pieces_is_no_trouble(tmp_path: Path) -> None:
    certificate, _ = watched(tmp_path)
    before, renewed = certificate.newest, Authority().issue()
    with capture_logs() as entries:
        put(tmp_path / "server.pem", renewed.certificate)
        assert certificate.look() is None
        assert certificate.newest == before
        put(tmp_path / "server.key", renewed.key)
        assert certificate.look() is not None
    assert events(entries) == ["certificate renewed"]


def test_a_pair_that_stays_wrong_is_logged_once_and_so_is_its_end(tmp_path: Path) -> None:
    certificate, _ = watched(tmp_path)
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


def test_a_key_that_is_protected_after_all_is_taken(tmp_path: Path) -> None:
    certificate, _ = watched(tmp_path)
    renewed = Authority().issue()
    renewed.write(tmp_path)
    (tmp_path / "server.key").chmod(0o644)
    assert certificate.look() is None
    (tmp_path / "server.key").chmod(0o600)
    found = certificate.look()
    assert found is not None
    assert found.chain == renewed.certificate


def test_a_reload_says_at_once_what_comes_of_it(tmp_path: Path) -> None:
    certificate, _ = watched(tmp_path)
    put(tmp_path / "server.pem", b"half")
    with capture_logs() as entries:
        assert certificate.reload() is None
        assert certificate.look() is None
    assert events(entries) == [REFUSED]
    Authority().issue().write(tmp_path)
    assert certificate.reload() is not None


def test_an_end_that_is_near_is_logged_once_a_day(tmp_path: Path) -> None:
    certificate, clock = watched(tmp_path, days=15)
    with capture_logs() as entries:
        for _ in range(32):
            certificate.look()
            clock.now += timedelta(hours=12)
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


def test_calls_on_all_connections_are_no_news(tmp_path: Path) -> None:
    listener = TlsListener(CertificateFiles(*Authority().issue().write(tmp_path)), lambda: 0.0)
    with capture_logs() as entries:
        for connections in range(100):
            listener._fetch()
            listener.look(connections)  # each call comes a second after its handshake
    assert entries == []
