"""Settings of `moa-server serve`: one model, validated once; the command line, environment and file all fill it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moa_shared.programs.config import SettingsBase, setting
from moa_shared.programs.cores import parse_cores
from pydantic import field_validator

SECTION = "server"
# Of the 3 % that an answer may lose to plain streaming where no draft is ever right, memory takes one at most; frames
# that are read and written take the rest.
MEMORY_SHARE = 0.005
LEAST_FRAME_BYTES = 1 << 16
CONTEXT_TOKEN_BYTES = 16  # a token of the text (5 at most), one of a draft (5) and its parent (5)


class ServerSettings(SettingsBase):
    """What a server serves, where, and how much of it.

    Each field is an option of `moa-server serve`, a variable MOA_SERVER_<FIELD> and a key of [server] in the TOML file.
    """

    model: str = setting("default", "What to serve: 'default', a hub id, a local folder or a .gguf file.", flag="MODEL")
    # loopback: the stream is not encrypted, so exposing it is the operator's decision
    host: str = setting("127.0.0.1", "Address to listen on. The stream is not encrypted.", "ADDRESS")
    # gRPC's customary port
    port: int = setting(50051, "Port to listen on; 0: any free one.", "PORT", ge=0, le=65535)
    execution: Literal["auto", "int8", "float32", "bf16"] = setting(
        "auto",
        "The arithmetic that decides the text. int8: exact, and fast on CPUs; float32: the reference; bf16: for GPUs; "
        "auto: int8 where the kernels run.",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto",
        "Where torch computes the levels float32 and bf16. auto: bf16 on CUDA where torch sees it, else the CPU.",
    )
    threads: int = setting(0, "Threads of the target; 0: one per core that the program may use.", ge=0, le=64)
    cores: str = setting("", "Cores that the program may use, such as 0,2-3.", "LIST", shown="any")
    context_length: int = setting(0, "Tokens of one conversation; 0: what the target was trained for.", "TOKENS", ge=0)
    # with only their text: 0.5 MB at 8,192 tokens
    max_sessions: int = setting(1024, "Sessions held, detached ones included.", ge=1, le=1_000_000)
    max_streams: int = setting(256, "Conversations that may be open at once.", ge=1, le=100_000)
    kv_bytes: int = setting(
        0, "Keys and values of all sessions together; 0: three quarters of the free memory.", "BYTES", ge=0
    )
    # one client, as a fast first token shows that somebody has sent the same text
    share_prefixes: Literal["off", "client", "all"] = setting(
        "client",
        "Who shares the keys and values of text that begins alike: the conversations of one client, those of all, or "
        "none. A fast first token shows that somebody has sent the same text.",
    )
    frame_bytes: int = setting(
        0, "The longest message accepted; 0: as long as an Open with a whole context.", "BYTES", ge=0, le=1 << 28
    )
    # holds the paper's tree of 62
    draft_nodes: int = setting(64, "The most draft nodes of one verification.", ge=1, le=4096)
    choose_nodes: bool = setting(
        True, "Verify only the draft nodes that are worth their time, not all that have arrived."
    )
    # keeps other sessions' wait near 0.3 s on one core
    prefill_chunk: int = setting(256, "Tokens of a prompt that are read in one step.", "TOKENS", ge=1, le=65536)
    # a client acknowledges every 16
    # and at 150 tokens a second, 45 more are on their way over a round trip of 300 ms
    run_ahead_tokens: int = setting(128, "How far to step beyond what a client has acknowledged.", "TOKENS", ge=16)
    # 0.1 s of a 20 Mbit/s link
    credit_bytes: int = setting(
        256 * 1024, "Memory in flight to a client that does not name its own credit.", "BYTES", ge=4096
    )
    drafter: str = setting("default", "The drafter whose memory is served.", "default|deep|none|PATH")
    drafting: Literal["auto", "server", "device", "off"] = setting(
        "auto",
        "Who drafts. server: this server, while that pays; device: the clients' devices; auto: both; off: nobody.",
    )
    memory_share: float = setting(
        MEMORY_SHARE,
        "Share of an answer's time that sending memory may take even if drafts save none; 1: every row is sent, for "
        "devices that are often offline.",
        "SHARE",
        ge=0,
        le=1,
    )
    # 30 kB each
    max_connections: int = setting(1000, "Connections held; more are refused.", ge=1, le=1_000_000)
    # an answer then takes all of its max_tokens
    allow_ignore_end_of_text: bool = setting(False, "Let clients ask for answers that continue after end-of-text.")
    # a lift, a tunnel, a change of network
    detached_seconds: float = setting(120.0, "How long a session waits for its client to return.", "SECONDS", ge=0)
    open_seconds: float = setting(10.0, "How long a new stream may take to send its Open.", "SECONDS", gt=0)
    write_seconds: float = setting(
        30.0, "A client that reads almost nothing for this long is detached.", "SECONDS", gt=0
    )
    # 600 tokens of the default target
    grace_seconds: float = setting(30.0, "How long running answers may continue after SIGTERM.", "SECONDS", ge=0)
    # a hundred times a slice of a prompt on one core
    hang_seconds: float = setting(
        30.0, "A forward that takes longer turns the server's health to NOT_SERVING.", "SECONDS", gt=0
    )
    log_format: Literal["auto", "json", "plain"] = setting(
        "auto", "Format of the log on standard error; auto: plain on a terminal, otherwise json."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least important events to log.")
    cache_dir: Path | None = setting(
        None, "Where models are kept.", "FOLDER", shown="the user's cache folder", variable="MOA_CACHE_DIR"
    )
    ready_file: Path | None = setting(None, "Written with HOST:PORT once the server is ready.", "FILE", shown="none")

    @property
    def drafts_here(self) -> bool:
        """Whether the server may draft."""
        return self.drafting in ("server", "auto")

    @property
    def takes_drafts(self) -> bool:
        """Whether the drafts of devices count."""
        return self.drafting in ("device", "auto")

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
