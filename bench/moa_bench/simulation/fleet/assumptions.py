"""What the plan of a fleet assumes: every number that the simulation takes in, and where it comes from. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from moa_bench.simulation.crowd import GpuCosts

# Qwen3-14B in bf16 on an A100 80 GB: see crowd_suite.py.
GPU = GpuCosts(weights_ms=18.1, context_ms=0.2, row_ms=0.19, launch_ms=2.0, drafter_ms=3.5, drafter_row_ms=0.16)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """A fleet.

    Args:
        clients: with a conversation each; `under_way`: share of them that have an answer written at any time.
        replicas: a GPU each.
        least_tokens, most_tokens: of a conversation, uniform.
        rtt_ms: of a client; each replica's differs by up to `rtt_spread` of it.
        handshake_round_trips: of TCP and TLS.
        named: replicas that a client knows besides its own.
        call_ms: of a server's event loop for a call; `handshake_ms`: for a connection.
        retry_s: that an attempt may take; `held_s`: that a server keeps a session whose client is away.
        kv_token_bytes: keys and values of a token; `kv_bytes`: room for them.
        costs: of a forward; `most_read`: tokens of prompts in one.
    """

    clients: int = 10_000
    under_way: float = 0.25
    replicas: int = 100
    least_tokens: int = 200
    most_tokens: int = 3800
    rtt_ms: float = 60.0
    rtt_spread: float = 0.2
    handshake_round_trips: int = 2
    named: int = 8
    call_ms: float = 2.0
    handshake_ms: float = 2.0
    retry_s: float = 1.5
    held_s: float = 120.0
    kv_token_bytes: int = 164_000
    kv_bytes: float = 42e9
    costs: GpuCosts = GPU
    most_read: int = 256

    @property
    def answers(self) -> int:
        """Under way at a replica, usually."""
        return round(self.under_way * self.clients / self.replicas)

    @property
    def sessions(self) -> int:
        """Of a replica, usually."""
        return round(self.clients / self.replicas)

    def slice_tokens(self, answers: int) -> int:
        """Tokens of a prompt that are read beside so many answers: what doubles the forward's time."""
        plain_ms = self.costs.forward_ms(0, answers)
        read = self.most_read
        while read > 16 and self.costs.forward_ms(read, answers) > 2 * plain_ms:
            read -= 1
        return read


def rows(plan: FleetPlan) -> list[list[str]]:
    """Each assumption: what, how much, whence."""
    costs = plan.costs
    return [
        ["clients", f"{plan.clients:,}", "the aim"],
        ["replicas, a GPU each", f"{plan.replicas}", "the aim"],
        ["clients with an answer under way", f"{plan.under_way:.0%}", "assumed: people read, think and type"],
        ["tokens of a conversation", f"{plan.least_tokens:,} to {plan.most_tokens:,}, uniform", "assumed"],
        ["those who are lost have an answer under way", "all", "the worst case"],
        ["round trip", f"{plan.rtt_ms:g} ms, ±{plan.rtt_spread:.0%} by replica", "assumed: 4G"],
        ["round trips of TCP and TLS 1.3", f"{plan.handshake_round_trips}", "the protocols"],
        ["replicas that a client knows besides its own", f"{plan.named}", "`MOST_SUCCESSORS`"],
        ["a loss is noticed after", "4 round trips of silence, at least 150 ms", "`LinkMonitor`"],
        ["waits between attempts", "up to 0.05 s, then 0.05 to 0.2 s, doubled to 3 s", "`Backoff`, the real one"],
        ["an attempt that meets no network ends after", f"{plan.retry_s:g} s", "`RETRY_SECONDS`"],
        ["a call at a server's loop", f"{plan.call_ms:g} ms", "`--peer-requests-per-minute`, on one core"],
        ["a TLS handshake there", f"{plan.handshake_ms:g} ms", "assumed"],
        ["a session is held for", f"{plan.held_s:g} s", "`--detached-seconds`"],
        [
            "a forward",
            f"{costs.launch_ms:g} ms and the longer of {costs.weights_ms:g} ms + {costs.context_ms:g} ms an answer and "
            f"{costs.row_ms:g} ms a row",
            "Qwen3-14B, bf16, A100 80 GB, by data sheets (`moa-bench crowd`)",
        ],
        ["tokens of a prompt in a forward", f"what doubles its time, at most {plan.most_read}", "`Schedule`"],
        ["keys and values of a token", f"{plan.kv_token_bytes // 1000} KB", "Qwen3-14B: 40 layers, 8 heads of 128"],
        ["room for them", f"{plan.kv_bytes / 1e9:.0f} GB", "nine tenths of 80 GB without the weights"],
    ]  # fmt: skip
