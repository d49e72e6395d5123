"""Settings of `moa-server serve`: validated once, filled from command line, environment and file."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from moa_shared.programs.config import SettingsBase, setting

from moa_server.addresses import parse_advertised, parse_peers

SECTION = "server"
SETTINGS_NAME = "server.toml"
METRICS_PORT = 9464  # that setup writes; customary for OpenTelemetry's metrics, and free on most machines
# Of the 3 % that an answer may lose to plain streaming where no draft is ever right, memory takes one at most; frames
# that are read and written take the rest.
MEMORY_SHARE = 0.005
LEAST_FRAME_BYTES = 1 << 16
SYSTEM_FILE = Path("/etc/moa/server.toml")  # of deploy/systemd/moa-server.service
CONTEXT_TOKEN_BYTES = 16  # a token of the text (5 at most), one of a draft (5) and its parent (5)


def usual_folder() -> Path:
    """Where `moa-server setup` puts a server's files unless the operator says otherwise."""
    import platformdirs

    return platformdirs.user_config_path("moa", appauthor=False) / "server"


@dataclass(frozen=True, kw_only=True)
class ServerSettings(SettingsBase):
    """What a server serves, where, and how much of it.

    Each field is an option of `moa-server serve`, a variable MOA_SERVER_<FIELD> and a key of [server] in the TOML file.
    """

    RETIRED: ClassVar[Mapping[str, str]] = {
        "tensor_parallel": "As many processes share the target as torchrun has started.",
        **dict.fromkeys(("choose_nodes", "draft_nodes"), "Of a draft's nodes those that pay are verified."),
        **dict.fromkeys(("run_ahead_tokens", "credit_bytes", "memory_share"), "The server follows what it measures."),
        "prefill_chunk": "A step reads so much of a prompt that other answers wait little.",
        "frame_bytes": "A message is as long as a question with a whole context may be.",
        "max_sessions": "It holds 1,024; --max-streams limits those with a stream, and a key those of its user.",
        **dict.fromkeys(
            ("connection_age_seconds", "connection_age_grace_seconds", "idle_seconds"),
            "A connection is replaced after an hour, and a conversation without questions ends its stream after 900 s.",
        ),
        **dict.fromkeys(
            ("streams_per_connection", "metadata_bytes"), "A connection has at most 100 calls of 8 KiB each."
        ),
        "open_seconds": "A stream may wait for its Open until 64 younger ones do.",
        "write_seconds": "A client that reads almost nothing ends after 30 s.",
        "cores": "taskset -c LIST moa-server ... keeps it on some cores.",
        "hang_seconds": "A forward hangs that is stuck for 30 s.",
        "reflection": "grpcurl takes proto/moa/v1/moa.proto.",
        "repack_cache": "Packed weights are kept in the cache, where it can be written.",
    }
    FILE_WORDS: ClassVar[str] = (
        f"the one that MOA_CONFIG names, else what `moa-server setup` has made here, else {SYSTEM_FILE}"
    )

    @classmethod
    def usual_file(cls) -> Path | None:
        files = (usual_folder() / SETTINGS_NAME, SYSTEM_FILE)
        return next((path for path in files if os.path.isfile(path)), None)  # False where it may not be looked at

    model: str = setting(
        "default",
        "'default', a hub id, a folder, a .gguf file, a name that `moa-server models` shows (--all: or fetches).",
        flag="MODEL",
    )
    host: str = setting("127.0.0.1", "Where to listen; beyond this machine with TLS, or --insecure.", "ADDRESS")
    port: int = setting(50051, "Port to listen on; 0: any free one.", "PORT", ge=0, le=65535)  # gRPC's customary one
    tls_cert: Path | None = setting(
        None, "Certificate, with those between it and its authority, in PEM; read again when it changes.", "FILE",
        shown="none",
    )  # fmt: skip
    tls_key: Path | None = setting(None, "Its private key; others must not be able to read it.", "FILE", shown="none")
    tls_client_ca: Path | None = setting(None, "Accept only clients of these authorities.", "FILE", shown="none")
    insecure: bool = setting(False, "Listen beyond this machine without encryption.")
    execution: Literal["auto", "int8", "float32", "bf16"] = setting(
        "auto",
        "The arithmetic that decides the text. int8: exact, and fast on CPUs; float32: the reference; bf16: for GPUs; "
        "auto: int8 where the kernels run.",
    )
    weights: Literal["q8", "q4"] = setting(
        "q8",
        "What weights in F16, BF16 and F32 become on the level int8. q8: 8 bits; q4: 4 bits with a minimum, which take "
        "little more than half the memory and time, and are less exact; the head stays at 8.",
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "Where torch computes float32 and bf16. auto: bf16 on CUDA where torch sees it, else the CPU."
    )
    threads: int = setting(0, "Threads of the target; 0: one per core that the program may use.", ge=0, le=64)
    context_length: int = setting(0, "Tokens of one conversation; 0: what the target was trained for.", "TOKENS", ge=0)
    max_streams: int = setting(256, "Conversations that may be open at once.", ge=1, le=100_000)
    kv_bytes: int = setting(0, "Keys and values of all sessions; 0: 3/4 of the free memory.", "BYTES", ge=0)
    kv: Literal["f16", "q8"] = setting(
        "f16",
        "How keys and values are kept on the level int8. q8: 8 bits with a scale for each head and position, half the "
        "bytes, so twice the conversations; another text than with f16, and as exact.",
    )
    memory_check: bool = setting(True, "Refuse a model that the free memory does not hold, before it is loaded.")
    share_prefixes: Literal["off", "client", "all"] = setting(
        "client", "Who shares keys and values of text that begins alike: the conversations of one client, or all. A "
        "fast first token shows that somebody has sent the same text.",
    )  # fmt: skip
    drafter: str = setting(
        "auto", "Whose memory is served; auto: those that come with moa, else the best one on this machine, where a "
        "MODEL of the catalogue has it fetched; mtp: the model's own multi-token-prediction head.",
        "auto|default|deep|mtp|none|PATH|ID",
    )  # fmt: skip
    companion: str = setting(
        "", "A small model of the same vocabulary that devices may fetch, to write with while the link is cut.",
        "none|NAME|FILE|FOLDER|ID", shown="that of the catalogue for MODEL, else none",
    )  # fmt: skip
    drafting: Literal["auto", "server", "device", "off"] = setting(
        "auto", "Who drafts. server: this server, while that pays; device: clients' devices; auto: both; off: nobody."
    )
    # a key's own limits go before these two
    requests_per_minute: int = setting(
        0, "Calls and questions of one client in a minute; 0: any number.", "REQUESTS", ge=0, le=1_000_000
    )
    tokens_per_minute: int = setting(
        0, "Tokens that one client may have read and written in a minute; 0: any number.", "TOKENS", ge=0, le=1 << 30
    )
    # a tenth of a core, at 2 ms each, refused or not; all the chats of an office make fewer
    peer_requests_per_minute: int = setting(
        3000, "Calls from one address in a minute, of each key, and of all that have none; 0: any number.", "CALLS",
        ge=0, le=10_000_000,
    )  # fmt: skip
    keys_file: Path | None = setting(
        None, "API keys (moa-server keys); without them everybody who reaches the port may call.", "FILE", shown="none"
    )
    # 30 kB each
    max_connections: int = setting(1000, "Connections held; more are refused.", ge=1, le=1_000_000)
    # an answer then takes all of its max_tokens
    allow_ignore_end_of_text: bool = setting(False, "Let clients ask for answers that continue after end-of-text.")
    # a lift, a tunnel, a change of network
    detached_seconds: float = setting(120.0, "How long a session waits for its client to return.", "SECONDS", ge=0)
    # 600 tokens of the default target
    grace_seconds: float = setting(30.0, "How long running answers may continue after SIGTERM.", "SECONDS", ge=0)
    peers: str = setting(
        "", "Where clients may go on when this server, which is left out, is full or gone; or a name in DNS of all.",
        "HOST:PORT,...|dns:NAME:PORT", shown="none", check=parse_peers,
    )  # fmt: skip
    advertise: str = setting(
        "", "Where clients reach this server itself, without a proxy: so it knows itself among --peers.", "HOST:PORT",
        shown="where it listens", check=parse_advertised,
    )  # fmt: skip
    tracing: Literal["off", "otlp"] = setting(
        "off", "Traces of answers, without their text. otlp: to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."
    )
    metrics_port: int | None = setting(
        None, "Port for metrics (/metrics) and health (/livez, /readyz, /startupz); 0: any free one.", "PORT",
        shown="none", ge=0, le=65535,
    )  # fmt: skip
    metrics_host: str = setting("127.0.0.1", "Address for it. Whoever reaches it reads, without a key.", "ADDRESS")
    log_format: Literal["auto", "json", "plain"] = setting(
        "auto", "Format of the log on standard error; auto: plain on a terminal, otherwise json."
    )
    log_level: Literal["debug", "info", "warning", "error"] = setting("info", "The least important events to log.")
    cache_dir: Path | None = setting(
        None, "Where models are kept.", "FOLDER", shown="the user's cache folder", variable="MOA_CACHE_DIR"
    )
    ready_file: Path | None = setting(None, "Written with HOST:PORT once the server is ready.", "FILE", shown="none")

    # Not settings, but arguments for tests and measurements.
    max_sessions: int = 1024  # held, detached ones included; with only their text 0.5 MB each at 8,192 tokens
    frame_bytes: int = 0  # the longest message accepted; 0: as long as an Open with a whole context
    draft_nodes: int = 64  # of one verification: holds the paper's tree of 62
    choose_nodes: bool = True  # verify only the nodes that are worth their time, not all that have arrived
    prefill_chunk: int = 256  # tokens of a prompt in one step: keeps other sessions' wait near 0.3 s on one core
    # How far to step beyond what a client has acknowledged: it acknowledges every 16, and at 150 tokens a second 45
    # more are on their way over a round trip of 300 ms.
    run_ahead_tokens: int = 128
    credit_bytes: int = 256 * 1024  # in flight to a client that names no credit of its own: 0.1 s of a 20 Mbit/s link
    memory_share: float = MEMORY_SHARE  # of an answer's time, even if drafts save none; 1: every row is sent
    # A load balancer spreads clients again when they come back, which costs each a round trip.
    connection_age_seconds: float = 3600.0
    connection_age_grace_seconds: float = 60.0  # for conversations over a connection that has reached its age
    idle_seconds: float = 900.0  # that a conversation without questions keeps its stream: a daemon leaves after 300
    streams_per_connection: int = 100  # calls at once: a chat has one, a daemon one for each conversation
    metadata_bytes: int = 8192  # of one call: ours need 300
    write_seconds: float = 30.0  # of a client that reads almost nothing, until it is detached
    hang_seconds: float = 30.0  # of a forward, with no processor or of one: a hundred times a slice of a prompt

    @property
    def drafts_here(self) -> bool:
        return self.drafting in ("server", "auto")

    @property
    def takes_drafts(self) -> bool:
        return self.drafting in ("device", "auto")

    @property
    def thins_memory(self) -> bool:
        return self.memory_share < 1

    def most_frame_bytes(self, context_tokens: int) -> int:
        return self.frame_bytes or max(LEAST_FRAME_BYTES, CONTEXT_TOKEN_BYTES * context_tokens)
