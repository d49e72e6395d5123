"""What both ends check of each other, errors on the wire, and what gRPC and the system say of a failure."""

import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import InternalError, MismatchError, OverloadedError
from moa_shared.protocol.handshake_checks import (
    CODE_KEY,
    RETRY_AFTER_KEY,
    call_reason,
    check_identity,
    check_protocol,
    error_from_rpc,
    error_status,
    tls_reason,
)

from tests.support.messages import GRPC_WORDS

SERVER = {"target_id": "smollm2", "target_fingerprint": b"t" * 32, "tokenizer_hash": b"k" * 32, "execution": b"e" * 32}
DRAFTERS = [pb.Drafter(name="small", fingerprint=b"d" * 32), pb.Drafter(name="deep", fingerprint=b"D" * 32)]


def checked(**client: bytes) -> None:
    server = pb.Identity(**SERVER, drafter_fingerprint=b"d" * 32)  # type: ignore[arg-type]
    check_identity(server, pb.Identity(**{**SERVER, **client}), DRAFTERS)  # type: ignore[arg-type]


@pytest.mark.parametrize(("field", "message"), [
    ("target_fingerprint", "The target model does not match: the server has smollm2"),
    ("tokenizer_hash", "The tokenizer does not match: the server has"),
    ("drafter_fingerprint", "The drafter does not match: the server has 646464646464,"),
])  # fmt: skip
def test_ends_that_differ_say_in_what(field: str, message: str) -> None:
    checked(drafter_fingerprint=b"D" * 32, execution=b"x" * 32)  # any drafter that is served, and any execution
    with pytest.raises(MismatchError, match=message) as caught:
        checked(**{field: b"x" * 32})
    assert caught.value.hint
    check_protocol(1, 1)
    with pytest.raises(MismatchError, match="The protocol version does not match: the server has 2, the client has 1"):
        check_protocol(2, 1)


def test_a_refusal_for_lack_of_room_survives_the_wire_and_says_when_to_try_again() -> None:
    error = OverloadedError("Full.", hint="Wait 3 s.")
    error.retry_after_ms = 700
    status, message, metadata = error_status(error)
    entries = {CODE_KEY: "overloaded", "moa-error-hint-bin": b"Wait 3 s.", RETRY_AFTER_KEY: "700"}
    assert (status, message, dict(metadata)) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "Full.", entries)
    for told, understood in ((b"7", 2000), ("", 2000), ("-5", 2000), ("700", 700), ("9" * 9, 60_000), ("9" * 99, 2000)):
        trailing = grpc.aio.Metadata((CODE_KEY, "overloaded"), (RETRY_AFTER_KEY, told))
        reported = error_from_rpc(grpc.aio.AioRpcError(status, grpc.aio.Metadata(), trailing, "Full.", None))
        assert isinstance(reported, OverloadedError)
        assert reported.retry_after_ms == understood


ATTEMPT = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: "
REASONS = f"""
{ATTEMPT}Failed to connect to remote host: Connection refused -> the connection was refused
errors resolving x:1: [field:hostname lookup error:address lookup failed: Domain name not found] -> the name is not known
DNS resolution failed for x:1: Timeout while contacting DNS servers -> no name server answers
{ATTEMPT}connect failed: addr: ipv4:127.0.0.1:1 error: Network is unreachable -> no network of this device leads there
{ATTEMPT}Failed to connect to remote host: getsockopt(SO_ERROR): No route to host -> no network of this device leads there
{ATTEMPT}connection attempt timed out before receiving SETTINGS frame -> a connection was accepted, but nothing came over it
{ATTEMPT}Failed to connect to remote host: connect() timed out -> nothing answered in time
{ATTEMPT}tcp handshaker shutdown -> nothing answered in time
{ATTEMPT}Failed parsing HTTP/2 (Expected SETTINGS frame, got frame type 80) -> what listens there does not speak gRPC
Received http2 header with status: 502 -> what listens there does not speak gRPC
{ATTEMPT}Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: something new -> TLS could not be set up
{ATTEMPT}recvmsg:Connection reset by peer (104) -> what listens there closes the connection
{ATTEMPT}Socket closed -> what listens there closes the connection
recvmsg:Connection reset by peer (104) -> the connection was closed
Stream removed (Socket closed) -> the connection was closed
sendmsg:Broken pipe (32) -> the connection was closed
GOAWAY received; Error code: 11; Debug Text: too_many_pings -> the connection was closed
keepalive watchdog timeout -> nothing has come over the connection for too long
ping timeout -> nothing has come over the connection for too long
something that gRPC has never said before -> the connection could not be made, or was lost
"""


def test_why_a_server_cannot_be_reached() -> None:
    for line in REASONS.strip().splitlines():
        words, reason = line.split(" -> ")
        assert call_reason(grpc.StatusCode.UNAVAILABLE, words).startswith(reason), words
    told = call_reason(grpc.StatusCode.UNAVAILABLE, f"{ATTEMPT}Socket closed", has_answered=True)
    assert told == "the connection was closed; the server may have ended"


@pytest.mark.parametrize(("status", "reason"), [
    ("DEADLINE_EXCEEDED", "nothing answered in time"),
    ("UNIMPLEMENTED", "what listens there is another gRPC service"),
    ("CANCELLED", "the connection could not be made, or was lost"),
    ("UNKNOWN", "what answers there is no moa server, or does not work"),
])  # fmt: skip
def test_a_status_without_words(status: str, reason: str) -> None:
    assert call_reason(grpc.StatusCode[status], "") == reason


@pytest.mark.parametrize("status", [each for each in grpc.StatusCode if each is not grpc.StatusCode.OK])
@pytest.mark.parametrize("words", [f"{ATTEMPT}strange", "CLIENT: Received message larger than max (9 vs. 8)", "", None])
def test_no_error_repeats_the_words_of_grpc_or_has_none(status: grpc.StatusCode, words: str | None) -> None:
    metadata = grpc.aio.Metadata()
    error = error_from_rpc(grpc.aio.AioRpcError(status, metadata, metadata, words, None))
    assert not GRPC_WORDS.search(str(error))
    assert len(error.message) > len("The server cannot be reached: .")
    assert not isinstance(error, InternalError)  # no defect of moa


HANDSHAKE = "Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1000007d:SSL routines:OPENSSL_internal:"


@pytest.mark.parametrize(("words", "reason"), [
    (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "its certificate has expired"),
    (f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: certificate is not yet valid: OK", "its certificate is not valid yet"),
    (
        f"{HANDSHAKE}CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate: OK",
        "nobody whom this device",
    ),
    (f"{HANDSHAKE}WRONG_VERSION_NUMBER: Invalid certificate verification context: OK", "does not speak TLS"),
    ("UNAUTHENTICATED: Hostname Verification Check failed.", "its certificate is for another name"),
    ("IP address mismatch, certificate is not valid for '127.0.0.1'", "its certificate is for another name"),
    ("self-signed certificate in certificate chain", "nobody whom this device trusts"),
    ("no healthy upstream", "the proxy there reaches no server behind it"),
    (
        "upstream connect error or disconnect/reset before headers. retried and the latest reset reason: remote "
        "connection failure, transport failure reason: TLS_error:|268435581:SSL routines:OPENSSL_internal:"
        "CERTIFICATE_VERIFY_FAILED:TLS_error_end",
        "the proxy there reaches no server behind it",
    ),
    ("failed to connect to all addresses; last error: UNAVAILABLE: Socket closed", None),
])  # fmt: skip
def test_why_tls_fails(words: str, reason: str | None) -> None:
    found = tls_reason(words)
    assert found is None if reason is None else found is not None and reason in found.why
