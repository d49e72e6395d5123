"""What an Open gets, and what one that is refused leaves alone."""

from typing import cast
from unittest.mock import Mock, create_autospec

import pytest
from moa.v1 import moa_pb2 as pb
from moa_server.access.limits import Caller
from moa_server.engine.live_session import Listener
from moa_server.engine.observer import Resume
from moa_server.service.host import Host
from moa_server.service.stream.handshake import Welcome, open_session
from moa_shared.errors import MismatchError, MoaError, ProtocolError, TokenRangeError, UnavailableError
from moa_shared.protocol.handshake_checks import PROTOCOL_VERSION
from moa_shared.protocol.memory_codec import Codec

from tests.unit.moa_server.service.toy_services import IDENTITY, toy_host

TEXT = [1, 2, 3]
NOTHING_MORE = pb.Open()
NEW_CODEC = cast(pb.Codec, 1000)  # of a client that is newer than this server


@pytest.fixture
def host() -> Host:
    return toy_host()


def listener() -> Mock:
    made: Mock = create_autospec(Listener, instance=True)
    return made


def shake(host: Host, more: pb.Open = NOTHING_MORE, stream: Listener | None = None) -> Welcome:
    message = pb.Open(protocol_version=PROTOCOL_VERSION, identity=IDENTITY, tokens=TEXT)
    message.MergeFrom(more)
    return open_session(host.services, host.lifecycle, Caller("a"), stream or listener(), message)


def test_a_client_that_comes_back_gets_its_session(host: Host) -> None:
    first = shake(host)
    host.services.registry.detach(first.live)
    again = shake(host, pb.Open(resume_token=first.opened.resume_token))
    assert again.live is first.live
    assert again.resume is Resume.READ_AGAIN  # no forward has run, so nothing is cached


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        (pb.Open(memory_from=4), ProtocolError),
        (pb.Open(tokens=[99]), TokenRangeError),
        (pb.Open(codecs=[NEW_CODEC]), MismatchError),
        (pb.Open(identity=pb.Identity(target_id="another", target_fingerprint=b"o" * 32)), MismatchError),
        (pb.Open(ask=pb.Ask(id=1, base=3, prefix_hash=5, tokens=[1])), ProtocolError),
    ],
    ids=[
        "memory beyond the text",
        "tokens of another vocabulary",
        "no codec in common",
        "another target",
        "no question",
    ],
)
def test_an_open_that_is_refused_leaves_the_session_to_its_stream(
    host: Host, more: pb.Open, kind: type[MoaError]
) -> None:
    before = listener()
    first = shake(host, stream=before)
    more.resume_token = first.opened.resume_token
    with pytest.raises(kind):
        shake(host, more)
    before.on_taken_over.assert_not_called()
    assert first.live.stream.listener is before
    assert first.live.session.tokens == TEXT
    assert len(host.services.registry) == 1


def test_a_server_that_goes_away_opens_nothing(host: Host) -> None:
    host.lifecycle.drain()
    with pytest.raises(UnavailableError):
        shake(host)
    assert len(host.services.registry) == 0


def test_of_the_codecs_offered_those_that_are_known_count_in_the_client_s_order(host: Host) -> None:
    welcome = shake(host, pb.Open(codecs=[pb.CODEC_INT4, NEW_CODEC, pb.CODEC_BF16]))
    assert welcome.codecs == (Codec.INT4, Codec.BF16)
    assert welcome.opened.codec == pb.Codec.Value("CODEC_UNSPECIFIED")  # there is no memory to send
    assert welcome.live.stream.feed is None
