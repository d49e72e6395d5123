"""What child.py runs: reads requests from standard input, a socket, and answers each; limits itself first.

State: the tokenizer that was loaded last. The process may be ended at any moment, by its limits too.
"""

import json
import math
import resource
import signal
import sys
import time
from contextlib import suppress
from functools import lru_cache
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jinja2

from moa_shared.errors import ConfigError
from moa_shared.sampling.settings import Constraint, ConstraintKind
from moa_shared.sandbox.chat_template import render
from moa_shared.sandbox.child import MOST_REPLY
from moa_shared.sandbox.tokenizer_json import JsonTokenizer, read_bos, read_special, read_templates, read_tokenizer

MEMORY_BYTES = 1 << 30  # of address space; the largest vocabularies served take a third of it while they are read
MOST_MESSAGE = 500  # characters of an error, which may be the template's own
TRIAL_IDS = 1000
TRIAL_TEXTS = (
    "Hi", "def f(x):\n    return x + 1\n\n\n", "a" * 200 + "b", " " * 200 + "x", "\t\r\n" * 50, "1234567890" * 20,
    "<|im_start|>user\n'll we?", "日本語 e\u0301 é ﷺ ½ 👩‍👩‍👧", "\ufeff\u00a0\u2028\x00\x1b[0m", "!?.,;" * 40,
)  # fmt: skip
TRIAL_CONVERSATION = tuple(
    {"role": role, "content": f"What is {role}?"} for role in ("system", "user", "assistant", "user")
)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    channel = Connection(sys.stdin.fileno())
    with suppress(EOFError):
        while True:
            _limit(resource.RLIMIT_CPU, math.ceil(time.process_time()) + int(json.loads(channel.recv_bytes())))
            channel.send_bytes(_reply(channel.recv_bytes()))


def _limit(what: int, most: int) -> None:
    hard = resource.getrlimit(what)[1]
    with suppress(OSError, ValueError):  # a service manager may forbid it; the other end has a limit of time too
        resource.setrlimit(what, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _reply(body: bytes) -> bytes:
    try:
        reply = json.dumps({"result": _do(json.loads(body))}).encode()
        if len(reply) <= MOST_REPLY:
            return reply
        error = "it gives too much text"
    except MemoryError:
        error = "it takes too much memory"
    except Exception as failure:  # noqa: BLE001 (whatever a hostile file or template leads to)
        error = str(failure) or type(failure).__name__
    return json.dumps({"error": error[:MOST_MESSAGE]}).encode()


def _do(request: dict[str, Any]) -> object:
    match request.pop("do"):
        case "render":
            return render(**request)
        case "encode":
            folder = Path(request["folder"])
            tokenizer = _tokenizer(folder, (folder / "tokenizer.json").stat().st_mtime_ns)
            return tokenizer.encode(request["text"], is_guarded=request["is_guarded"])
        case "constrain":
            from moa_shared.constraints.constrained_text import try_constraint  # where the library is installed

            try:
                try_constraint(Constraint(ConstraintKind(request["kind"]), request["text"]))
            except ConfigError as refusal:
                return {"message": refusal.message, "hint": refusal.hint}
            return None
        case _:
            _try(Path(request["folder"]))
            return None


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, changed: int) -> JsonTokenizer:
    return read_tokenizer(folder)


def _try(folder: Path) -> None:
    described = read_tokenizer(folder)
    special = read_special(folder)
    read_bos(folder, described, special)
    for text in TRIAL_TEXTS:
        described.decode(described.encode(text), skip_special_tokens=True)
    described.decode(range(TRIAL_IDS))
    conversations = (TRIAL_CONVERSATION, TRIAL_CONVERSATION[1:], TRIAL_CONVERSATION[1:2])
    for template, messages in product(read_templates(folder).values(), conversations):
        with suppress(jinja2.TemplateError):  # such as a template that knows no system prompt
            render(template, special, messages, add_generation_prompt=True, arguments={})
