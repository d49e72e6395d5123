"""The target on the server: a verifier over a cache that is written in place, on the kernels or in torch."""

from moa_server.verifier.target import PREFILL_CHUNK_TOKENS, KVCache, Request, Target, TargetOutput

__all__ = ["PREFILL_CHUNK_TOKENS", "KVCache", "Request", "Target", "TargetOutput"]
