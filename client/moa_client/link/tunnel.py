"""Connections without gRPC, on the way that gRPC would take: by the proxy that the environment names, if any."""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64encode

from moa_shared.programs.addresses import host_of
from moa_shared.programs.proxies import Proxy

from moa_client.link.security import Security

_MOST_HEAD = 16 << 10  # bytes of a proxy's answer


class TunnelError(OSError):
    """A proxy does not connect; the text says why."""


async def open_connection(
    address: str, security: Security, tls: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to HOST:PORT; the caller sets how long to wait.

    Args:
        tls: None: without.

    Raises:
        TunnelError: the proxy refuses.
        OSError: there is no connection to the server or to the proxy, or TLS fails.
    """
    host, port = host_of(address), int(address.rpartition(":")[2])
    name = (security.server_name or host) if tls is not None else None
    if (proxy := security.proxy(address)) is None:
        return await asyncio.open_connection(host, port, ssl=tls, server_hostname=name)
    tunnel = await _open_tunnel(proxy, address)
    try:
        return await asyncio.open_connection(sock=tunnel, ssl=tls, server_hostname=name)
    except BaseException:
        tunnel.close()
        raise


async def _open_tunnel(proxy: Proxy, address: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    family, kind, _, _, where = (await loop.getaddrinfo(proxy.host, proxy.port, type=socket.SOCK_STREAM))[0]
    tunnel = socket.socket(family, kind)
    try:
        tunnel.setblocking(False)
        await loop.sock_connect(tunnel, where)
        login = f"Proxy-Authorization: Basic {b64encode(proxy.login.encode()).decode()}\r\n" if proxy.login else ""
        await loop.sock_sendall(tunnel, f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{login}\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):  # byte by byte: what follows is the server's
            byte = await loop.sock_recv(tunnel, 1)
            if not byte or len(head) > _MOST_HEAD:
                raise TunnelError(f"{proxy}, closes the connection")
            head += byte
        status = head.split(b" ", 2)[1:2]
        if status != [b"200"]:
            raise TunnelError(f"{proxy}, answers {status[0].decode('latin-1') if status else 'in no HTTP'}")
    except BaseException:
        tunnel.close()
        raise
    return tunnel
