"""Serves the page and the endpoint inside the daemon."""

from __future__ import annotations

import logging
import secrets
from contextlib import AsyncExitStack

from moa_shared.errors import ConfigError
from moa_shared.programs.addresses import is_loopback

from moa_client.daemon.hub import Hub
from moa_client.daemon.page_backend import DaemonPage
from moa_client.endpoint.endpoint import EndpointSettings
from moa_client.endpoint.health import Health, health_route
from moa_client.endpoint.host_source import HostSource
from moa_client.endpoint.routes import endpoint_routes
from moa_client.page.routes import page_routes
from moa_client.settings import ClientSettings
from moa_client.web.access import Access
from moa_client.web.app import make_app
from moa_client.web.closing import Closing
from moa_client.web.key import read_key
from moa_client.web.peer_user import tells_users
from moa_client.web.runner import bind, serve

log = logging.getLogger(__name__)


async def serve_web_surfaces(settings: ClientSettings, hub: Hub, stack: AsyncExitStack) -> None:
    """Listens, unless the settings say not to; the hub's status says where, or why not.

    A port that another program has does not keep the daemon from serving chats.

    Args:
        stack: closes it.
    """
    if not settings.endpoint:
        return
    key = read_key(settings.endpoint_key_file)
    host = settings.endpoint_host
    if not key and not is_loopback(host):
        raise ConfigError(
            f"Everybody who reaches {host} could use the endpoint.",
            hint="Give --endpoint-key-file, or leave --endpoint-host at 127.0.0.1.",
        )
    is_made_here = not key and not tells_users()
    if is_made_here:  # other users of the device would not be told apart: only this one can read the daemon's status
        key = secrets.token_urlsafe()
    try:
        listener = bind(host, settings.endpoint_port)
    except ConfigError as error:
        hub.web_error = str(error)
        log.warning("no page and no endpoint: %s", error)
        return
    closing = Closing()
    limits = EndpointSettings(settings.settle_seconds)
    routes = [
        *endpoint_routes(HostSource(hub.host), limits, closing, hub.store),
        health_route(Health(hub.status, hub.link.check)),
        *page_routes(DaemonPage(hub)),
    ]
    access = Access(host, listener.getsockname()[1], settings.allowed_origins, key)
    server = await serve(make_app(routes, access), listener, closing, access)
    stack.push_async_callback(server.close)
    hub.url = f"{server.url}/#key={key}" if is_made_here else server.url
    log.warning("page and endpoint at %s", server.url)
