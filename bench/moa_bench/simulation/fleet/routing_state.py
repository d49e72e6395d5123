"""What clients and servers hold so that a conversation finds its way, in bytes of the protocol's fields. Pure.

No table says where a conversation is: its client knows, and every replica can go on with its text.
"""

from __future__ import annotations

from dataclasses import dataclass

from moa_bench.simulation.fleet.assumptions import FleetPlan

ADDRESS_BYTES = 32  # HOST:PORT, such as replica-17.moa.example.com:50051
TOKEN_BYTES = 16  # a resume token
TOKEN_ID_BYTES = 3  # of a text, as protobuf packs it
KEY_BYTES = 32  # of whom a session is


@dataclass(frozen=True, slots=True)
class RoutingState:
    """Bytes.

    Args:
        client: addresses, and the resume token of each replica where the conversation was.
        client_text: the conversation's own text, with which any replica can go on.
        server: its other replicas, and of each session the token and its owner.
        table: that a router would hold which knows where each conversation is.
    """

    client: int
    client_text: int
    server: int
    table: int


def routing_state(plan: FleetPlan) -> RoutingState:
    """Of one client, one server, and of a central table, which there is none of."""
    text = (plan.least_tokens + plan.most_tokens) // 2
    session = TOKEN_BYTES + KEY_BYTES
    return RoutingState(
        (plan.named + 1) * (ADDRESS_BYTES + TOKEN_BYTES),
        text * TOKEN_ID_BYTES,
        plan.named * ADDRESS_BYTES + plan.sessions * session,
        plan.clients * (session + ADDRESS_BYTES),
    )
