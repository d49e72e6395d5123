"""Compares the whole text of an error with a snapshot, so that `make words` accepts new words.

What differs from run to run and from machine to machine is replaced by a word: see `steady`.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

E = TypeVar("E", bound=BaseException)

VARYING = (
    (re.compile(r"(?:/[\w.+-]+)*/pytest-of-[^/\s]+/pytest-\d+(?:/popen-gw\d+)?/[\w-]+"), "TMP"),
    (re.compile(r"\b(127\.0\.0\.\d+):(?!50051\b)\d+"), r"\1:PORT"),
    (re.compile(r"\b(?=\d*[a-f])[0-9a-f]{12,}\b"), "DIGEST"),
    (re.compile(re.escape(sys.executable)), "PYTHON"),
    (re.compile(re.escape(str(Path(__file__).parents[2]))), "CHECKOUT"),
)
# What only gRPC says, and no message for people may have.
GRPC_WORDS = re.compile(
    r"ipv[46]:|last error|failed to connect|StatusCode|\b[A-Z]+_[A-Z_]+\b|\bUNKNOWN\b|\bUNAVAILABLE\b|recvmsg|"
    r"SETTINGS|GOAWAY|RST_STREAM|Stream removed|Socket closed|watchdog|handshaker|\bSSL|\[field|larger than max \("
)


def steady(text: str) -> str:
    """The text with a word in capitals for each temporary folder of pytest, port of 127.0.0.1, digest and the like."""
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


@contextmanager
def raises(kind: type[E], message: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Like `pytest.raises`; `message` is the error's whole text, as `steady` shows it."""
    with pytest.raises(kind) as caught:
        yield caught
    assert steady(str(caught.value)) == message


@contextmanager
def says(kind: type[E], words: str) -> Iterator[pytest.ExceptionInfo[E]]:
    """Like `raises`, for a part of the text."""
    with pytest.raises(kind) as caught:
        yield caught
    assert words in steady(str(caught.value))
