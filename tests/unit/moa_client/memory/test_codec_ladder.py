"""The codec ladder on links of given width: it comes to the best codec that fits, and does not flicker."""

from __future__ import annotations

import pytest
from moa_client.memory.plan import CodecLadder
from moa_shared.protocol.memory_codec import Codec

BYTES = {Codec.BF16: 768, Codec.INT8: 388, Codec.INT4: 216}
STEP_MS = 50.0


def run(ladder: CodecLadder, link_bytes_per_s: float, seconds: float, start_ms: float = 0.0) -> list[Codec]:
    """A token a step over a link; the codec after each."""
    waiting = 0.0  # tokens without their rows; the server codes them when they go
    codecs = []
    for step in range(int(seconds * 1e3 / STEP_MS)):
        size = BYTES[ladder.codec]
        waiting += 1
        carried = min(waiting, link_bytes_per_s * STEP_MS / 1e3 / size)
        waiting -= carried
        ladder.on_memory(int(carried * size))
        ladder.on_verdict(start_ms + step * STEP_MS, 1, int(waiting))
        codecs.append(ladder.codec)
    return codecs


def ladder(*codecs: Codec) -> CodecLadder:
    return CodecLadder(codecs or tuple(Codec), BYTES.__getitem__)


@pytest.mark.parametrize(
    ("link", "codec"), [(1e6, Codec.BF16), (20 * 500.0, Codec.INT8), (20 * 250.0, Codec.INT4), (1000.0, Codec.INT4)]
)
def test_it_finds_what_the_link_carries(link: float, codec: Codec) -> None:
    codecs = run(ladder(), link, 120)
    assert sum(other is codec for other in codecs) > 0.6 * len(codecs)


def test_attempts_grow_rarer() -> None:
    codecs = run(ladder(), 20 * 250.0, 300)
    changes = [place for place in range(1, len(codecs)) if codecs[place] is not codecs[place - 1]]
    first, last = changes[: len(changes) // 2], changes[len(changes) // 2 :]
    assert 4 <= len(changes) < 30
    assert last[-1] - last[0] > 2 * (first[-1] - first[0])


def test_it_climbs_again_when_the_link_recovers() -> None:
    one = ladder()
    assert run(one, 20 * 250.0, 10)[-1] is Codec.INT4
    assert run(one, 1e6, 60, 10_000.0)[-1] is Codec.BF16


def test_a_single_codec_stays() -> None:
    assert set(run(ladder(Codec.INT4), 1000.0, 20)) == {Codec.INT4}
