"""Settings of `moa-client`: validated once, filled from command line, environment and file. Imports nothing heavy."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal
from urllib.parse import urlsplit

from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_host_port
from moa_shared.programs.config import SettingsBase, read_toml, setting
from moa_shared.sampling.settings import LEAST_TEMPERATURE

from moa_client.conversation.options import AnswerOptions

SECTION = "client"
NONE = "none"  # as --companion: none, whatever is kept
DEFAULT_MODEL = "default"  # any program's configuration can name it, whatever the server serves
LOCAL_SERVER = "127.0.0.1:50051"  # where moa-server listens by default

OF_ANSWERS = (  # those that the daemon itself does not take
    "temperature",
    "top_k",
    "top_p",
    "seed",
    "max_tokens",
    "reasoning_effort",
    "system",
    "mcp_allow",
    "json_events",
    "thinking",
    "daemon",
)
OF_ENDPOINT = (  # the daemon's own: no conversation depends on them
    "endpoint",
    "endpoint_host",
    "endpoint_port",
    "endpoint_key_file",
    "allowed_origins",
    "aliases",
)
_RETIRED = (
    ("alone", "It is called --standalone now."),
    ("alone_chance", "A companion writes on however likely its text is, and what is less likely looks different."),
    ("alone_tokens", "A companion writes on until the server is back, or the answer ends."),
    ("reconcile", "/keep in a chat, or a button of the page, has this device's text back after a correction."),
    ("mode rounds run_ahead length depth breadth nodes codec dtype copies parts", "Drafts are made as is fastest."),
    ("alone_seconds connect_seconds silence_seconds settle_seconds idle_seconds", "docs/client.md has the times."),
    ("history_dir", "Conversations are in the user's data folder, which XDG_DATA_HOME moves."),
    ("daemon_dir", "The daemon's files are in the user's runtime folder, which XDG_RUNTIME_DIR moves."),
    ("stop", "Ctrl-C stops an answer; a program's request names what ends it (docs/api.md)."),
    ("render", "A terminal shows an answer as it was written; the page shows its Markdown as it is meant."),
    (
        "min_p repeat_penalty repeat_last_n presence_penalty frequency_penalty logit_bias loop_guard thinking_budget "
        "unverified",
        "It is the model's own; a program's request may say otherwise (docs/api.md).",
    ),
    (
        "tls_cert tls_key",
        "A listed server has it: moa-client servers add NAME HOST:PORT --tls-cert FILE --tls-key FILE.",
    ),
    ("cores", "The system's own `taskset` sets the cores of a program."),
    ("max_requests", "Eight answers for programs run at once; further requests wait."),
    ("log_file", "The log is client.log in the user's log folder, which XDG_STATE_HOME moves."),
    ("log_level", "All that there is to say is logged."),
)


def check_address(value: str) -> str:
    """Refuses what is no HOST:PORT (ValueError)."""
    host, separator, port = value.rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"expected HOST:PORT, such as {LOCAL_SERVER}")
    if ":" in host and not is_host_port(value):  # the end of a bare IPv6 address is no port
        raise ValueError("expected HOST:PORT, with an IPv6 address in brackets, such as [::1]:50051")
    return value


def _names_servers(value: str) -> None:
    for part in value.split(",") if value else []:
        name = part.strip()
        if ":" in name:
            check_address(name)
        elif not name or not all(each.isalnum() or each in "._-" for each in name):
            raise ValueError(f"expected HOST:PORT, such as {LOCAL_SERVER}, or a name of `moa-client servers list`")


def _check_temperature(value: float) -> None:
    if 0 < value < LEAST_TEMPERATURE:
        raise ValueError(f"expected 0 (greedy) or {LEAST_TEMPERATURE:g} to 100")


def _name_tools(value: tuple[str, ...]) -> None:
    if any(tool != "all" and not all(tool.partition("/")) for tool in value):
        raise ValueError("expected SERVER/TOOL, such as calculator/add, or all")


def _are_aliases(value: tuple[str, ...]) -> None:
    if not all(all(alias.partition("=")) and not alias.startswith(f"{DEFAULT_MODEL}=") for alias in value):
        raise ValueError("expected NAME=MODEL, such as gpt-4o-mini=qwen3-4b, with another name than default")


def _are_origins(value: tuple[str, ...]) -> None:
    for origin in value:
        parts = urlsplit(origin)
        is_bare = origin == f"{parts.scheme}://{parts.netloc}".lower() and "@" not in parts.netloc
        if parts.scheme not in ("http", "https") or not parts.netloc or not is_bare:
            raise ValueError("expected origins such as https://app.example or http://localhost:3000")


@dataclass(frozen=True, kw_only=True)
class ClientSettings(SettingsBase):
    """How to reach a server, how to draft, and how to sample.

    Each field is an option of `moa-client chat`, a variable MOA_CLIENT_<FIELD> and a key of [client] in the TOML file.
    """

    RETIRED: ClassVar[Mapping[str, str]] = {name: words for names, words in _RETIRED for name in names.split()}

    server: str = setting(
        "",
        "Where moa-server listens, or a name of `moa-client servers`; of several, separated by commas, the best.",
        "HOST:PORT|NAME",
        shown=f"the servers in use, else {LOCAL_SERVER}",
        check=_names_servers,
    )
    tls: bool = setting(
        False, "Encrypt, and check a server's certificate with this system's authorities; for servers not listed."
    )
    tls_ca: Path | None = setting(None, "CA certificates (PEM); implies --tls.", "FILE", shown="none")
    insecure: bool = setting(False, "Talk to a server beyond this device without encryption.")
    model: str = setting(
        "", "The server's model; what is missing is fetched.", "default|ID|PATH", shown="the server's", may_be_path=True
    )
    drafter: str = setting(
        "auto",
        "What drafts on this device. auto: the fastest; default: the server's first; deep: its deep one; lookup: what "
        "the conversation repeats; none: nobody; PATH or ID: a checkpoint here or on the hub.",
        "auto|default|deep|lookup|none|PATH|ID",
        may_be_path=True,
    )
    companion: str = setting(
        "",
        "An ordinary small model of the same vocabulary: it writes while no server answers, and drafts where that is "
        "faster (docs/drafters.md#a-companion). auto: the one that the server offers, fetched once.",
        "auto|none|FILE|FOLDER|ID",
        shown="that of `moa-client companion`, else none",
        may_be_path=True,
    )
    drafting: Literal["auto", "server", "device", "off"] = setting(
        "auto",
        "Who drafts while the server answers. auto: the server while it has time, else this device; off: nobody.",
    )
    standalone: Literal["auto", "always", "never"] = setting(
        "auto",
        "Whether this device writes on when the server is lost. auto: a companion does, a drafter while its text is "
        "likely to be right; never: it waits for the server. A single answer with --offline has its text in any case.",
    )
    fetch_gb: float = setting(
        1.0, "The most that is fetched from a server, for drafter and companion, unless asked.", "GB", ge=0
    )
    offline: bool = setting(False, "Start without the server; /online connects.")
    json_events: bool = setting(False, "Print events as lines of JSON (docs/client.md).", flag="--json")
    thinking: Literal["fold", "show", "off"] = setting(
        "fold", "A model's reasoning: told of in one line, shown before the text, or off: the model is asked for none."
    )
    temperature: float | None = setting(
        None,
        f"0 is greedy; otherwise at least {LEAST_TEMPERATURE:g}.",
        shown="the model's, else 0.7",
        check=_check_temperature,
        ge=0,
        le=100,
    )
    top_k: int | None = setting(
        None, "Sample from the k likeliest tokens; 0: from all.", "K", shown="the model's, else 0", ge=0, lt=1 << 31
    )
    top_p: float | None = setting(
        None, "Sample from the likeliest up to this probability.", "P", shown="the model's, else 0.95", gt=0, le=1
    )
    seed: int | None = setting(
        None, "The same gives the same text, except on bf16.", shown="a new one for each question", ge=0, lt=1 << 64
    )
    # A server promises the memory for as many tokens. /continue goes beyond it.
    max_tokens: int = setting(2048, "The longest answer; 0: as the context allows.", "TOKENS", ge=0, lt=1 << 31)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = setting(
        None, "How much the model reasons, where its chat template can be asked.", shown="the model's own"
    )
    system: str | None = setting(None, "System prompt.", "TEXT", shown="the model's own")
    mcp: Path | None = setting(
        None, "MCP servers whose tools chats may call (docs/tools.md); each call is asked for.", "FILE", shown="none"
    )
    mcp_allow: tuple[str, ...] = setting(
        (), "A tool that is run without asking, or all; repeatable.", "SERVER/TOOL|all", shown="none", check=_name_tools
    )
    # With two threads a level takes 0.54 to 0.65 times as long (3.9 instead of 7.1 ms of the deep drafter's); the
    # others are the user's, and a busy one costs the first.
    threads: int = setting(0, "Threads of the drafter; 0: two on four cores or more, otherwise one.", ge=0, le=64)
    history: bool = setting(True, "Keep conversations on this device (docs/device.md).")
    daemon: bool = setting(True, "Chat through the daemon, which is started where it does not run (docs/device.md).")
    endpoint: bool = setting(True, "The daemon serves the page and the endpoint for programs (docs/api.md).")
    endpoint_host: str = setting("127.0.0.1", "Where they listen; beyond this device only with a key.", "ADDRESS")
    endpoint_port: int = setting(8674, "Their port; 0: any that is free.", "PORT", ge=0, lt=1 << 16)
    endpoint_key_file: Path | None = setting(
        None, "The key that their requests must show.", "FILE", shown="MOA_ENDPOINT_KEY in the environment, or none"
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "Other sites' pages that may use them, such as https://app.example; may be repeated.",
        "ORIGIN",
        shown="none",
        flag="--allowed-origin",
        check=_are_origins,
    )
    aliases: tuple[str, ...] = setting(
        (),
        "Another name for a model of any listed server; repeatable, in the file a table (docs/servers.md).",
        "NAME=MODEL",
        shown="none",
        flag="--alias",
        check=_are_aliases,
    )
    tracing: Literal["off", "otlp"] = setting(
        "off", "Traces of answers, without their text. otlp: to the collector that OTEL_EXPORTER_OTLP_ENDPOINT names."
    )
    cache_dir: Path | None = setting(
        None, "Where models are kept.", "FOLDER", shown="the user's cache folder", variable="MOA_CACHE_DIR"
    )

    # What bench and tests choose, and no user: each is what was measured as the best, or as the paper has it.
    mode: Literal["chain", "tree"] = "tree"  # of drafts
    length: int = 5  # of a chain: longer ones do not pay off while acceptance is low
    breadth: int = 4  # of trees, what paid off best on the default target
    codec: Literal["bf16", "int8", "int4"] = "int4"  # the finest for memory: no loss of acceptance was measured
    dtype: Literal["int8", "float32"] = "int8"  # a quarter of the time of float32 (docs/adr/0009-drafting.md)
    standalone_seconds: float = 30.0  # a tunnel, a lift, a change of the network: most are over in 10 s
    connect_seconds: float = 5.0  # an available server answers within one round trip
    silence_seconds: float = 60.0  # the longest wait for a frame while an answer runs: a long prompt's prefill
    settle_seconds: float = 30.0  # for the same reason; a server restarts from its cache in five
    idle_seconds: float = 300.0  # a server keeps a session that has left for 2 minutes; waking costs one round trip

    @property
    def fetch_bytes(self) -> int:
        return int(1e9 * self.fetch_gb)

    @property
    def options(self) -> AnswerOptions:
        return AnswerOptions(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            max_tokens=self.max_tokens,
            reasoning_effort=self.reasoning_effort,
        )

    @property
    def shared(self) -> dict[str, Any]:
        """Those that a chat and its daemon must have in common, as JSON values."""
        return {name: value for name, value in self.json_values().items() if name not in OF_ANSWERS + OF_ENDPOINT}


def kept_path() -> Path:
    """Of the companion that the user has chosen; where it is not there, a chat offers one, once."""
    import platformdirs

    return platformdirs.user_config_path("moa", appauthor=False) / "companion.toml"


def read_kept() -> str | None:
    """The choice, as --companion names it; empty: none is wished for; None: nobody has chosen."""
    path, hint = kept_path(), "Correct it, or delete the file."
    if (document := read_toml(path, hint)) is None:
        return None
    if not isinstance(companion := document.get("companion"), str):
        raise ConfigError(f"{path} must hold a text `companion`.", hint=hint)
    return companion


def write_kept(companion: str) -> None:
    from moa_shared.programs.atomic import write_private

    path = kept_path()
    try:
        words = json.dumps(companion, ensure_ascii=False)
        write_private(path, f"# Written by `moa-client companion`.\ncompanion = {words}\n".encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}.", hint="") from None


def with_kept(settings: ClientSettings) -> ClientSettings:
    """The same settings, with the companion that is kept where they name none."""
    return replace(settings, companion="" if settings.companion == NONE else settings.companion or read_kept() or "")
