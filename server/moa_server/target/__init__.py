"""The target on the server: a verifier over a cache that is written in place."""

from moa_server.target.adapter import PREFILL_CHUNK_TOKENS, Target, TargetOutput
from moa_server.target.kv_cache import KVCache

__all__ = ["PREFILL_CHUNK_TOKENS", "KVCache", "Target", "TargetOutput"]
