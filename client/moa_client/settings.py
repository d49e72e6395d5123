"""Settings of `moa-client`: one model, validated once, filled from command line, environment and file."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from moa_shared.programs.config import SettingsBase
from moa_shared.programs.cores import parse_cores
from moa_shared.protocol.finish_rule import AnswerSettings
from moa_shared.sampling.coupling import LEAST_TEMPERATURE, Sampling
from pydantic import Field, field_validator

SECTION = "client"


class ClientSettings(SettingsBase):
    """How to reach a server, how to draft, and how to sample.

    Each field is a flag of `moa-client chat`, a variable MOA_CLIENT_<FIELD> and a key of [client] in the TOML file.
    """

    server: str = "127.0.0.1:50051"
    model: str = ""  # empty: the server's, from the cache or fetched from it
    drafter: str = "auto"  # the fastest here of those whose memory the server gives
    mode: Literal["chain", "tree"] = "tree"
    drafting: Literal["streamed", "rounds"] = "streamed"
    run_ahead: bool = True  # the server steps on when no draft has come
    reconcile: Literal["verify", "keep"] = "verify"
    parts: Literal["packed", "bf16"] = "packed"  # of the target, as fetched: docs/adr/0014-gguf-as-it-is.md
    offline: bool = False
    json_events: bool = False
    length: int = Field(5, ge=1, le=64)  # of a chain; longer ones do not pay off while acceptance is low
    depth: int = Field(4, ge=1, le=16)  # with breadth and nodes: the tree that paid off best on the default target
    breadth: int = Field(4, ge=1, le=64)
    nodes: int = Field(16, ge=1, le=512)
    temperature: float = Field(0.0, ge=0, le=100)
    top_k: int = Field(0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int = Field(0, ge=0, lt=1 << 64)
    max_tokens: int = Field(512, ge=0, lt=1 << 31)  # 0: as the context allows
    stop: tuple[str, ...] = ()
    system: str | None = None
    codec: Literal["bf16", "int8", "int4"] = "int4"  # no loss of acceptance was measured
    # a fifth to a quarter of the time of float32 a draft step (docs/adr/0009-drafting.md)
    dtype: Literal["int8", "float32"] = "int8"
    copies: bool = True  # trees of 24 nodes accept a third more with copies from the conversation
    # 0: two if this process has four cores or more, else one. With two a level takes 0.54 to 0.65 times as long
    # (3.9 instead of 7.1 ms of the deep drafter's); the others are the user's, and a busy one costs the first.
    threads: int = Field(0, ge=0, le=64)
    cores: str = ""  # that this process is bound to, such as 0,2-3; empty: any
    connect_seconds: float = Field(5.0, gt=0)  # an available server answers within one round trip
    silence_seconds: float = Field(
        60.0, gt=0
    )  # the longest wait for a frame while an answer runs: a long prompt's prefill
    settle_seconds: float = Field(10.0, ge=0)  # of a single answer: a server restarts from its cache in five
    cache_dir: Path | None = None

    @field_validator("server")
    @classmethod
    def _has_a_port(cls, value: str) -> str:
        host, separator, port = value.rpartition(":")
        if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError("expected HOST:PORT, such as 127.0.0.1:50051")
        return value

    @field_validator("cores")
    @classmethod
    def _is_a_list_of_cores(cls, value: str) -> str:
        parse_cores(value)
        return value

    @field_validator("temperature")
    @classmethod
    def _is_no_division_by_nearly_nothing(cls, value: float) -> float:
        if 0 < value < LEAST_TEMPERATURE:
            raise ValueError(f"expected 0 (greedy) or {LEAST_TEMPERATURE:g} to 100")
        return value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if any(not 0 < len(stop) <= 64 for stop in value) or len(value) > 16:
            raise ValueError("expected at most 16 stop strings of 1 to 64 characters")
        return value

    @property
    def answer(self) -> AnswerSettings:
        """The settings of an answer."""
        sampling = Sampling(self.temperature, self.top_k, self.top_p, self.seed)
        return AnswerSettings(sampling, self.max_tokens, self.stop)
