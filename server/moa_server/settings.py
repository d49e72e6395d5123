"""Settings of `moa-server serve`: one model, validated once; the command line, environment and file all fill it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moa_shared.programs.config import SettingsBase
from moa_shared.programs.cores import parse_cores
from pydantic import Field, field_validator

SECTION = "server"
# Of the 3 % that an answer may lose to plain streaming where no draft is ever right, memory takes one at most; frames
# that are read and written take the rest.
MEMORY_SHARE = 0.005
LEAST_FRAME_BYTES = 1 << 16
CONTEXT_TOKEN_BYTES = 16  # a token of the text (5 at most), one of a draft (5) and its parent (5)


class ServerSettings(SettingsBase):
    """What a server serves, where, and how much of it.

    Each field is a flag of `moa-server serve`, a variable MOA_SERVER_<FIELD> and a key of [server] in the TOML file.
    """

    model: str = "default"
    host: str = "127.0.0.1"  # loopback: the stream is not encrypted, so exposing it is the operator's decision
    port: int = Field(50051, ge=0, le=65535)  # gRPC's customary port; 0: any free one
    execution: Literal["auto", "int8", "float32", "bf16"] = "auto"  # int8 where the kernels run
    threads: int = Field(0, ge=0, le=64)  # 0: as many as this process has cores
    cores: str = ""  # that this process runs on, such as 0,2-3; empty: any
    context_length: int = Field(0, ge=0)  # 0: what the target was trained for
    max_sessions: int = Field(1024, ge=1, le=1_000_000)  # with only their text: 0.5 MB at 8,192 tokens
    max_streams: int = Field(256, ge=1, le=100_000)  # open at once
    kv_bytes: int = Field(0, ge=0)  # of keys and values of all sessions; 0: three quarters of what is free
    frame_bytes: int = Field(0, ge=0, le=1 << 28)  # 0: enough for an Open with a whole context
    draft_nodes: int = Field(64, ge=1, le=4096)  # holds the paper's tree of 62
    choose_nodes: bool = True  # verify those draft nodes that are worth their time; off: all that have arrived
    prefill_chunk: int = Field(256, ge=1, le=65536)  # keeps other sessions' wait near 0.3 s on one core
    run_ahead_tokens: int = Field(64, ge=16)  # beyond what the client has acknowledged, which it does every 16
    credit_bytes: int = Field(256 * 1024, ge=4096)  # of memory in flight: 0.1 s of a 20 Mbit/s link
    drafter: str = "default"
    memory_share: float = Field(MEMORY_SHARE, ge=0, le=1)  # 1 if devices are often offline: they then hold every row
    max_connections: int = Field(1000, ge=1, le=1_000_000)  # 30 kB each; more are not accepted
    allow_ignore_end_of_text: bool = False  # for measurements: an answer then takes all of its max_tokens
    detached_seconds: float = Field(120.0, ge=0)  # a lift, a tunnel, a change of network
    open_seconds: float = Field(10.0, gt=0)  # from a stream's start to its Open
    write_seconds: float = Field(30.0, gt=0)  # a client that takes in nothing for this long is detached
    grace_seconds: float = Field(30.0, ge=0)  # from SIGTERM on, for running answers: 600 tokens of the default target
    hang_seconds: float = Field(30.0, gt=0)  # of one forward: a hundred times a slice of a prompt on one core
    log_format: Literal["auto", "json", "plain"] = "auto"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    cache_dir: Path | None = None
    ready_file: Path | None = None

    def most_frame_bytes(self, context_tokens: int) -> int:
        """The longest message accepted by a server with this context length."""
        return self.frame_bytes or max(LEAST_FRAME_BYTES, CONTEXT_TOKEN_BYTES * context_tokens)

    @field_validator("frame_bytes")
    @classmethod
    def _holds_a_question(cls, value: int) -> int:
        if 0 < value < 4096:
            raise ValueError("a message of less than 4096 bytes holds no question")
        return value

    @field_validator("cores")
    @classmethod
    def _is_a_list_of_cores(cls, value: str) -> str:
        parse_cores(value)
        return value
