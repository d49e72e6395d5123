"""Valid frames, changed: a field, a length, an order, or the bytes themselves. What both frame fuzzers have in common.

A recipe is (kind of frame, seed). The frame is made from the state of the stream when its turn comes, so that most of
it is right and it gets past the first checks; hypothesis shrinks the list of recipes. MOA_FUZZ_FRAMES sets how many
frames a run has.
"""

import os
import random
from collections.abc import Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

Recipe = tuple[str, int]

SHORT = 2000
FRAMES = int(os.environ.get("MOA_FUZZ_FRAMES", SHORT))
FRAMES_A_STREAM = 20
FUZZ = settings(
    max_examples=max(1, FRAMES // 3),  # of streams: most end with the first frame that is refused
    database=None,
    derandomize=FRAMES == SHORT,  # the suite's run is the same each time, a longer one goes where none has been
    suppress_health_check=list(HealthCheck),
)
FUZZ_SECONDS = 120 + FRAMES // 10  # of a whole run

EDGES = (0, 1, 2, 63, 64, 127, 128, 255, 65_535, 65_536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 64) - 1)
FLOATS = (0.0, -0.0, 1.0, -1.0, 1e-40, 1e300, float("inf"), float("-inf"), float("nan"))
INTEGERS = {  # wire type: bits, signed
    FieldDescriptor.TYPE_UINT32: (32, False),
    FieldDescriptor.TYPE_FIXED32: (32, False),
    FieldDescriptor.TYPE_UINT64: (64, False),
    FieldDescriptor.TYPE_FIXED64: (64, False),
    FieldDescriptor.TYPE_SINT32: (32, True),
    FieldDescriptor.TYPE_ENUM: (32, True),
}


def recipes(kinds: Sequence[str]) -> st.SearchStrategy[list[Recipe]]:
    """What happens on one stream."""
    recipe = st.tuples(st.sampled_from(kinds), st.integers(0, (1 << 32) - 1))
    return st.lists(recipe, min_size=1, max_size=FRAMES_A_STREAM)


def serialised(frame: Message, rng: random.Random) -> bytes:
    """The frame, often changed, as bytes, now and then changed too."""
    for _ in range(rng.choice([0, 0, 0, 0, 1, 1, 2, 4])):
        mutate(frame, rng)
    data = frame.SerializeToString()
    return mutate_bytes(data, rng) if rng.random() < 0.03 else data


def mutate(message: Message, rng: random.Random) -> None:
    """Changes one field, here or further in."""
    fields = [field for field, _ in message.ListFields()]
    if not fields or rng.random() < 0.15:
        fields = [*message.DESCRIPTOR.fields]
    if not fields:
        return
    field = rng.choice(fields)
    if rng.random() < 0.05:
        message.ClearField(field.name)
    elif field.is_repeated:
        _mutate_repeated(getattr(message, field.name), field, rng)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        mutate(inner, rng)
    else:
        setattr(message, field.name, _other(getattr(message, field.name), field, rng))


def _mutate_repeated(values: Any, field: FieldDescriptor, rng: random.Random) -> None:
    how = rng.randrange(5)
    if field.message_type is not None:
        if values and how:
            mutate(rng.choice(values), rng)
        else:
            values.add()
    elif how == 0 and values:
        del values[rng.randrange(len(values)) :]
    elif how == 1:
        values.extend(list(values)[: rng.choice([1, 8, 1000])])
    elif how == 2 and len(values) > 1:
        values[:] = rng.sample(list(values), len(values))
    elif how == 3 and values:
        place = rng.randrange(len(values))
        values[place] = _other(values[place], field, rng)
    else:
        default: Any = {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}.get(field.type, 0)
        values.extend(_other(default, field, rng) for _ in range(rng.choice([1, 3, 300])))


def _other(value: Any, field: FieldDescriptor, rng: random.Random) -> Any:
    if field.type in INTEGERS:
        bits, signed = INTEGERS[field.type]
        near = int(value) + rng.choice([-1, 1, rng.randrange(-100, 100)])
        number = rng.choice([near, rng.choice(EDGES), -rng.choice(EDGES), rng.getrandbits(bits)])
        number %= 1 << bits
        return number - (1 << bits) if signed and number >= 1 << (bits - 1) else number
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return rng.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return not value
    if field.type == FieldDescriptor.TYPE_STRING:
        return rng.choice(["", "x", "\x1b]52;c;aGk=\x07", "\N{GREEK SMALL LETTER ALPHA}" * 300, "x" * 100_000])
    return rng.choice([b"", b"\0", value[:-1], value + b"\0", mutate_bytes(value, rng), bytes(100_000)])


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes some of the bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        place = rng.randrange(len(changed) + 1)
        how = rng.randrange(4)
        if how == 0:
            changed[place:place] = rng.randbytes(rng.choice([1, 2, 10]))
        elif how == 1:
            del changed[place : place + rng.choice([1, 2, 10])]
        elif how == 2 and place < len(changed):
            changed[place] ^= 1 << rng.randrange(8)
        else:
            changed = changed[:place] + changed[rng.randrange(len(changed) + 1) :]
    return bytes(changed)
