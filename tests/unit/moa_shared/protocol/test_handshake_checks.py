import grpc
import grpc.aio
import pytest
from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MismatchError, OverloadedError, error_from_code
from moa_shared.protocol.handshake_checks import (
    CODE_KEY,
    RETRY_AFTER_KEY,
    check_identity,
    check_protocol,
    error_from_rpc,
    error_status,
)

SERVER = pb.Identity(
    target_id="smollm2",
    target_fingerprint=b"t" * 32,
    tokenizer_hash=b"k" * 32,
    drafter_fingerprint=b"d" * 32,
    execution=b"e" * 32,
)
DRAFTERS = [pb.Drafter(name="small", fingerprint=b"d" * 32), pb.Drafter(name="deep", fingerprint=b"D" * 32)]


def test_any_drafter_that_is_served_passes_and_any_execution() -> None:
    client = pb.Identity()
    client.CopyFrom(SERVER)
    client.drafter_fingerprint = b"D" * 32
    client.execution = b"x" * 32
    check_identity(SERVER, client, DRAFTERS)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("target_fingerprint", "The target model does not match: the server has smollm2"),
        ("tokenizer_hash", "The tokenizer does not match: the server has"),
        ("drafter_fingerprint", "The drafter does not match: the server has 646464646464,"),
    ],
)
def test_a_refusal_says_which_expected_and_got(field: str, message: str) -> None:
    client = pb.Identity()
    client.CopyFrom(SERVER)
    setattr(client, field, b"x" * 32)
    with pytest.raises(MismatchError, match=message) as caught:
        check_identity(SERVER, client, DRAFTERS)
    assert caught.value.hint


def test_versions_must_be_equal() -> None:
    check_protocol(1, 1)
    with pytest.raises(MismatchError, match="The protocol version does not match: the server has 2, the client has 1"):
        check_protocol(2, 1)


def test_errors_survive_the_wire() -> None:
    status, message, metadata = error_status(OverloadedError("Full.", hint="Wait 3 s."))
    entries = dict(metadata)
    assert status.name == "RESOURCE_EXHAUSTED"
    assert message == "Full."
    assert entries == {
        "moa-error-code": "overloaded",
        "moa-error-hint-bin": b"Wait 3 s.",
        "moa-retry-after-ms": "2000",
    }
    assert isinstance(error_from_code("overloaded", message, "Wait 3 s."), OverloadedError)


def test_a_refusal_for_lack_of_room_says_when_to_try_again() -> None:
    error = OverloadedError("Full.")
    error.retry_after_ms = 700
    assert dict(error_status(error)[2])[RETRY_AFTER_KEY] == "700"
    for told, understood in ((b"7", 2000), ("", 2000), ("-5", 2000), ("700", 700), ("9" * 9, 60_000), ("9" * 99, 2000)):
        metadata = grpc.aio.Metadata((CODE_KEY, "overloaded"), (RETRY_AFTER_KEY, told))
        failed = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), metadata, "Full.", None)
        reported = error_from_rpc(failed)
        assert isinstance(reported, OverloadedError)
        assert reported.retry_after_ms == understood
