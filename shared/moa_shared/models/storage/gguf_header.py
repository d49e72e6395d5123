"""The header of a GGUF file: metadata and the table of tensors, as llama.cpp writes them (versions 2 and 3).

Our own reader, because the `gguf` package takes five seconds and 150 MB for a vocabulary of 49,152. Invariant: tensors
lie within their file, one after the other, and none is empty.
"""

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from moa_shared.errors import ModelSourceError
from moa_shared.models.storage.tensors import BF16, BLOCKS, F16, F32, I32, TensorFormat

Value = TypeVar("Value")
DAMAGED = "The file is truncated or corrupt: fetch it again."
_ANOTHER_KIND = "Use the same model as a folder of safetensors or a hub id."
_OF_ALL_FAMILIES = ("general.", "tokenizer.", "split.")
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_NO_TOKEN = (-1, (1 << 32) - 1, (1 << 64) - 1)  # -1, also where it was written without a sign
# ggml's numbers of the formats that can be read: ours, and those that the gguf package turns into float32.
_OURS = {2: "q4_0", 3: "q4_1", 6: "q5_0", 7: "q5_1", 8: "q8_0", 10: "q2_k", 11: "q3_k", 12: "q4_k", 13: "q5_k"}
_OURS |= {14: "q6_k", 20: "iq4_nl", 23: "iq4_xs", 39: "mxfp4"}
_OF_PACKAGE = {16: ("iq2_xxs", 66), 17: ("iq2_xs", 74), 18: ("iq3_xxs", 98), 19: ("iq1_s", 50), 21: ("iq3_s", 110)}
_OF_PACKAGE |= {22: ("iq2_s", 82), 29: ("iq1_m", 56), 34: ("tq1_0", 54), 35: ("tq2_0", 66)}
_FORMATS = {0: F32, 1: F16, 26: I32, 30: BF16} | {number: BLOCKS[name] for number, name in _OURS.items()}
_FORMATS |= {number: TensorFormat(name, 256, size) for number, (name, size) in _OF_PACKAGE.items()}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where a tensor lies: `offset` and `size` in bytes of the file `path`; `shape` is [outputs, inputs]."""

    stored: TensorFormat
    shape: tuple[int, ...]
    offset: int
    size: int
    path: Path


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """A file's metadata, perhaps without arrays, and tensors; `size`: of the header in bytes, without padding.

    Keys may lack the architecture that they begin with. What is not there is None, what is of another type an error.
    """

    path: Path
    metadata: Mapping[str, object]
    tensors: Mapping[str, TensorEntry]
    size: int = 0

    @property
    def architecture(self) -> str:
        return self.text("general.architecture") or ""

    def full(self, key: str) -> str:
        own = "" if key.startswith(_OF_ALL_FAMILIES) else f"{self.architecture}."
        return own + key.removeprefix(own)

    def said(self, key: str) -> object:
        return self.metadata.get(self.full(key))

    def text(self, key: str) -> str | None:
        return self._get(key, str)

    def integer(self, key: str) -> int | None:
        """An integer of the metadata, or the one of all layers."""
        value = self.said(key)
        if not isinstance(value, list):
            return self._get(key, int)
        if len(set(value)) != 1 or type(value[0]) is not int:
            what = f"says {self.full(key)} = {str(value)[:40]}: its layers differ, which moa does not compute of the"
            raise self.wrong(f"{what} family {self.architecture!r}", hint="Choose a model whose layers are alike.")
        return int(value[0])

    def token_id(self, name: str) -> int | None:
        """The id of a special token; None where there is none, which files say by -1 too."""
        key = f"tokenizer.ggml.{name}_token_id"
        value, tokens = self.integer(key), self.values("tokenizer.ggml.tokens")
        if value in _NO_TOKEN:
            return None
        if value is not None and tokens and not 0 <= value < len(tokens):
            raise self.wrong(f"says {key} = {value}, but has {len(tokens)} tokens")
        return value

    def flag(self, key: str) -> bool | None:
        return self._get(key, bool)

    def real(self, key: str) -> float | None:
        value = self._get(key, (float, int))
        return None if value is None else float(value)

    def positive(self, key: str) -> float | None:
        """A number by its shortest decimal; None where it is 0, too."""
        value = self.real(key)
        if value is not None and not 0 <= value < math.inf:
            raise self.wrong(f"says {self.full(key)} = {value}, expected a number above 0")
        return float(f"{value:.7g}") if value else None

    def values(self, key: str) -> list[Any]:
        return list(self._get(key, list) or ())

    def required(self, key: str) -> int:
        value = self.integer(key)
        if value is None:
            raise self.wrong(f"does not set {self.full(key)}", hint="Use a GGUF file of a whole model.")
        return value

    def wrong(self, what: str, hint: str = DAMAGED) -> ModelSourceError:
        return ModelSourceError(f"The GGUF file {self.path} {what}.", hint=hint)

    def unread(self, what: str) -> ModelSourceError:
        return self.wrong(f"{what}, which moa does not read from GGUF", _ANOTHER_KIND)

    def _get(self, key: str, kind: type[Value] | tuple[type[Value], ...]) -> Value | None:
        key = self.full(key)
        value = self.metadata.get(key)
        if value is not None and (not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool)):
            expected = kind.__name__ if isinstance(kind, type) else "a number"
            raise self.wrong(f"says {key} = {str(value)[:40]!r}, expected {expected}")
        return value


def read_header(path: Path, *, arrays: bool = True, file_bytes: int = 0) -> GgufHeader:
    """Read metadata and tensor table; `arrays`: those of texts (the vocabulary) too, which take most of the time.

    `file_bytes`: of the whole file, where `path` is only its beginning.
    """
    try:
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ModelSourceError(f"{path} is not a GGUF file.", hint=DAMAGED)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Parser(data, arrays, file_bytes or len(data)).parse(path)
    except struct.error as error:
        raise ModelSourceError(f"The GGUF file {path} ends within its header.", hint=DAMAGED) from error
    except (ValueError, OverflowError, OSError) as error:
        raise ModelSourceError(f"The GGUF file {path} cannot be read ({error}).", hint=DAMAGED) from error


class _Parser:
    def __init__(self, data: mmap.mmap, arrays: bool, file_bytes: int) -> None:
        self._data, self._arrays, self._file_bytes, self._at = data, arrays, file_bytes, 4

    def parse(self, path: Path) -> GgufHeader:
        (version,) = self._take("I")
        if version not in (2, 3):
            raise ValueError(f"version {version}, expected 2 or 3")
        tensor_count, value_count = self._take("QQ")
        metadata, table = self._table(value_count, self._value), self._table(tensor_count, self._tensor)
        alignment, size = metadata.get("general.alignment", 32), self._at
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"an alignment of {alignment}")
        start, tensors, expected = -(-size // alignment) * alignment, {}, 0
        for name, (stored, shape, offset) in table.items():
            nbytes, at = math.prod(shape[:-1]) * stored.row_bytes(shape[-1]), start + offset
            if offset != expected:
                raise ValueError(f"{name} begins at byte {at}, expected {start + expected}")
            if at + nbytes > self._file_bytes:
                raise ValueError(f"{name} ends at byte {at + nbytes} of {self._file_bytes}")
            tensors[name] = TensorEntry(stored, shape, at, nbytes, path)
            expected += -(-nbytes // alignment) * alignment
        return GgufHeader(path, {k: v for k, v in metadata.items() if v is not None}, tensors, size)

    def _table(self, count: int, read: Callable[[], Value]) -> dict[str, Value]:
        found: dict[str, Value] = {}
        for _ in range(count):
            name = self._string()
            if name in found:
                raise ValueError(f"{name} twice")
            found[name] = read()
        return found

    def _tensor(self) -> tuple[TensorFormat, tuple[int, ...], int]:
        (dimensions,) = self._take("I")
        if not 0 < dimensions <= 4:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        shape = tuple(reversed(self._take(f"{dimensions}Q")))  # the fastest one comes first in the file
        if 0 in shape:
            raise ValueError(f"a tensor of the shape {list(shape)}")
        number, offset = self._take("IQ")
        if number not in _FORMATS:
            raise ValueError(f"a tensor in ggml's format {number}, which is not known")
        return _FORMATS[number], shape, offset

    def _value(self) -> object:
        (kind,) = self._take("I")
        if kind == _ARRAY:
            return self._array()
        return self._string() if kind == _STRING else self._scalars(kind, 1)[0]

    def _array(self) -> list[object] | None:
        kind, count = self._take("IQ")
        if kind != _STRING:
            values = self._scalars(kind, count)
            return list(values) if self._arrays or count <= 1024 else None  # one for each layer, say
        if self._arrays:
            return [self._string() for _ in range(count)]
        data, at, length_of = self._data, self._at, struct.Struct("<Q").unpack_from
        for _ in range(count):
            at += 8 + length_of(data, at)[0]
        self._at = at
        return None

    def _scalars(self, kind: int, count: int) -> tuple[int, ...]:
        if kind not in _SCALARS:
            raise ValueError(f"a value of type {kind}")
        return self._take(f"{count}{_SCALARS[kind]}")

    def _string(self) -> str:
        (length,) = self._take("Q")
        end = self._at + length
        if end > len(self._data):
            raise ValueError(f"a string of {length} bytes")
        text = self._data[self._at : end].decode("utf-8")
        self._at = end
        return text

    def _take(self, code: str) -> tuple[int, ...]:
        values = struct.unpack_from("<" + code, self._data, self._at)
        self._at += struct.calcsize("<" + code)
        return values
