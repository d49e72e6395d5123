from __future__ import annotations

import torch
from moa_server.target.torch_cache import TorchCache

LAYERS, KV_HEADS, HEAD_DIM = 2, 3, 4
ROW_BYTES = LAYERS * KV_HEADS * 2 * HEAD_DIM * 4


def make_cache(capacity: int) -> TorchCache:
    return TorchCache(LAYERS, KV_HEADS, HEAD_DIM, dtype=torch.float32, first_rows=capacity)


def write(cache: TorchCache, depths: list[int]) -> int:
    """Writes rows; where the buffer lies."""
    cache.begin(len(depths))
    rows = torch.zeros(1, KV_HEADS, len(depths), HEAD_DIM)
    where = [cache.update(rows, rows, layer)[0].data_ptr() for layer in range(LAYERS)]
    cache.end(depths)
    return where[0]


def test_keeping_a_path_does_not_move_the_buffer() -> None:
    cache = make_cache(16)
    where = write(cache, [0, 1, 2])
    write(cache, [0, 1, 1, 2])
    cache.keep([0, 2, 3])
    assert write(cache, [0]) == where


def test_a_long_buffer_grows_by_steps() -> None:
    cache = make_cache(3000)
    assert cache.nbytes == 0
    cache.reserve(1)
    cache.reserve(3001)
    assert cache.nbytes == (3000 + 1024) * ROW_BYTES
    cache.reserve(9000)
    assert cache.nbytes == 9000 * ROW_BYTES


def test_the_buffer_grows_by_doubling() -> None:
    cache = make_cache(4)
    cache.reserve(1)
    assert cache.nbytes == 4 * ROW_BYTES
    write(cache, list(range(5)))
    assert cache.nbytes == 8 * ROW_BYTES
    write(cache, list(range(20)))
    assert cache.nbytes == 25 * ROW_BYTES


def test_memory_is_given_back_and_what_is_held_stays_within_what_was_announced() -> None:
    cache = make_cache(4)
    for rows in (1, 4, 5, 9, 3000):
        write(cache, list(range(rows - cache.length)))
        assert cache.nbytes <= cache.most_nbytes(rows)
    cache.release()
    assert (cache.nbytes, cache.length) == (0, 0)
    write(cache, [0])
