"""What gRPC and the system say of a failure, in words for people."""

import grpc
import grpc.aio
import pytest
from moa_shared.errors import InternalError
from moa_shared.protocol.handshake_checks import (
    CLOSED,
    CLOSES,
    ENDED,
    EXPIRED,
    FAILED,
    LOST,
    NO_ANSWER,
    NO_NAME_SERVER,
    NO_ROUTE,
    NO_TLS,
    NO_TLS_CONNECTION,
    NONE_BEHIND,
    NOT_GRPC,
    NOT_YET,
    OTHER_NAME,
    OTHER_SERVICE,
    REFUSED,
    RESET,
    SILENT,
    UNKNOWN_AUTHORITY,
    UNKNOWN_NAME,
    WENT_SILENT,
    call_reason,
    error_from_rpc,
    tls_reason,
)

from tests.support.messages import GRPC_WORDS

ATTEMPT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"{ATTEMPT}Failed to connect to remote host: Connection refused", REFUSED),
        (
            "errors resolving x:1: [field:hostname lookup error:address lookup failed: Domain name not found]",
            UNKNOWN_NAME,
        ),
        ("DNS resolution failed for x:1: Timeout while contacting DNS servers", NO_NAME_SERVER),
        (f"{ATTEMPT}connect failed: addr: ipv4:127.0.0.1:1 error: Network is unreachable", NO_ROUTE),
        (f"{ATTEMPT}Failed to connect to remote host: getsockopt(SO_ERROR): No route to host", NO_ROUTE),
        (f"{ATTEMPT}connection attempt timed out before receiving SETTINGS frame", SILENT),
        (f"{ATTEMPT}Failed to connect to remote host: connect() timed out", NO_ANSWER),
        (f"{ATTEMPT}tcp handshaker shutdown", NO_ANSWER),
        (f"{ATTEMPT}Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 80)", NOT_GRPC),
        ("Received http2 header with status: 502", NOT_GRPC),
        (f"{ATTEMPT}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: something new", NO_TLS_CONNECTION),
        (f"{ATTEMPT}recvmsg:Connection reset by peer (104)", CLOSES),
        (f"{ATTEMPT}Socket closed", CLOSES),
        ("recvmsg:Connection reset by peer (104)", RESET),
        ("Stream removed (Socket closed)", CLOSED),
        ("sendmsg:Broken pipe (32)", CLOSED),
        ("GOAWAY received; Error code: 11; Debug Text: too_many_pings", CLOSED),
        ("keepalive watchdog timeout", WENT_SILENT),
        ("ping timeout", WENT_SILENT),
        ("something that gRPC has never said before", LOST),
        ("", LOST),
    ],
)
def test_a_connection(words: str, reason: str) -> None:
    assert call_reason(grpc.StatusCode.UNAVAILABLE, words) == reason


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (grpc.StatusCode.DEADLINE_EXCEEDED, NO_ANSWER),
        (grpc.StatusCode.UNIMPLEMENTED, OTHER_SERVICE),
        (grpc.StatusCode.CANCELLED, ENDED),
        (grpc.StatusCode.UNKNOWN, FAILED),
        (grpc.StatusCode.INTERNAL, FAILED),
    ],
)
def test_a_status(status: grpc.StatusCode, reason: str) -> None:
    assert call_reason(status, "") == reason


@pytest.mark.parametrize("status", [each for each in grpc.StatusCode if each is not grpc.StatusCode.OK])
@pytest.mark.parametrize("words", [f"{ATTEMPT}strange", "CLIENT: Received message larger than max (9 vs. 8)", "", None])
def test_no_error_repeats_the_words_of_grpc_or_has_none(status: grpc.StatusCode, words: str | None) -> None:
    metadata = grpc.aio.Metadata()
    error = error_from_rpc(grpc.aio.AioRpcError(status, metadata, metadata, words, None))
    assert not GRPC_WORDS.search(str(error))
    assert len(error.message) > len("The server cannot be reached: .")
    assert not isinstance(error, InternalError)  # no defect of moa


HANDSHAKE = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", EXPIRED),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK", NOT_YET),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK", UNKNOWN_AUTHORITY),
        (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: something new: OK", UNKNOWN_AUTHORITY),
        (f"{HANDSHAKE}WRONG_VERSION_NUMBER: Invalid certificate verification context: OK", NO_TLS),
        (
            "Custom verification check failed with error: UNAUTHENTICATED: Hostname Verification Check failed.",
            OTHER_NAME,
        ),
        ("IP address mismatch, certificate is not valid for '127.0.0.1'", OTHER_NAME),
        ("self-signed certificate in certificate chain", UNKNOWN_AUTHORITY),
        ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", None),
        ("no healthy upstream", NONE_BEHIND),
        (
            "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote "
            "connection failure, transport failure reason: TLS_error:|268435581:SSL routines:OPENSSL_internal:"
            "CERTIFICATE_VERIFY_FAILED:TLS_error_end",
            NONE_BEHIND,
        ),
        ("", None),
    ],
)
def test_the_reason(words: str, reason: object) -> None:
    assert tls_reason(words) is reason
