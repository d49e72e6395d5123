"""Options of the gRPC server: what connections and messages may cost. Pure."""

from __future__ import annotations

from moa_server.settings import ServerSettings

IDLE_MS = 60_000  # of a connection without a call; a client in a conversation has one


def channel_options(frame_bytes: int, settings: ServerSettings) -> list[tuple[str, int]]:
    """Options of the gRPC server; docs/architecture.md, "gRPC settings", says why."""
    age = [
        ("grpc.max_connection_age_ms", round(1e3 * settings.connection_age_seconds)),
        ("grpc.max_connection_age_grace_ms", round(1e3 * settings.connection_age_grace_seconds)),
    ]
    return [
        *(age if settings.connection_age_seconds else []),
        ("grpc.max_receive_message_length", 2 * frame_bytes),  # above frame_bytes we refuse with our own message
        ("grpc.max_send_message_length", 2 * frame_bytes),
        ("grpc.compression_enabled_algorithms_bitset", 1),  # identity only: 1 kB of gzip holds a million tokens
        ("grpc.max_metadata_size", settings.metadata_bytes),
        ("grpc.absolute_max_metadata_size", 2 * settings.metadata_bytes),
        ("grpc.max_concurrent_streams", settings.streams_per_connection),
        ("grpc.max_allowed_incoming_connections", settings.max_connections),
        ("grpc.max_connection_idle_ms", IDLE_MS),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.http2.write_buffer_size", 16384),
        ("grpc.http2.bdp_probe", 0),  # its pings took as long as all frames of a client that never stops sending
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a lottery
    ]
