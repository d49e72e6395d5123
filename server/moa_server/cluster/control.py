"""Brings a fleet up on a Ray cluster, says how it is, and takes it down.

State: none of its own; Ray holds it all.
"""

import hashlib
import json
import re
import time
from dataclasses import dataclass, replace
from typing import Any

import ray
from moa_shared.errors import ConfigError, NotFoundError, UnavailableError
from moa_shared.programs.addresses import is_loopback
from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy
from ray.serve.exceptions import RayServeException

from moa_server.access.keys import Gate, text_of
from moa_server.cluster.rules import NAMESPACE, Coordinator, Report
from moa_server.settings import ServerSettings
from moa_server.tls import files_of

NOT_STARTED = "NOT_STARTED"


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """How a fleet is deployed. `surge`: whether an update starts a new replica before it ends an old one."""

    name: str
    least: int
    most: int
    cpus: float
    gpus: float
    upscale_seconds: float
    downscale_seconds: float
    surge: bool


def up(fleet: FleetSettings, settings: ServerSettings) -> list[Report]:
    """Deploys, or updates what is deployed; returns once the replicas serve."""
    files_of(settings)  # an error now, rather than in each replica
    nodes = [node for node in ray.nodes() if node["Alive"]]
    if is_loopback(settings.host) and len(nodes) > 1:
        hint = "Give --host 0.0.0.0 with --tls-cert and --tls-key, or with --insecure."
        raise ConfigError(f"Nobody reaches replicas of {len(nodes)} machines at {settings.host}.", hint=hint)
    gate = Gate.of(settings.keys_file)
    keys = text_of(gate.book) if gate.wants_keys else ""  # as hashes
    sent = replace(settings, keys_file=None, ready_file=None, metrics_port=None, peers="", advertise="")
    actor: Any = ray.remote(Coordinator)
    actor.options(
        name=fleet.name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
    ).remote(time.monotonic)
    serve.start(proxy_location="Disabled")  # clients speak to the replicas themselves
    cores = min(float(node["Resources"].get("CPU", 1.0)) for node in nodes)
    application = _deployment(fleet, sent, keys).bind(
        sent, fleet.name, max(1, round(fleet.cpus)), min(1.0, fleet.cpus / cores) if fleet.cpus else 1.0
    )
    try:
        serve.run(application, name=fleet.name, route_prefix=None)
    except (RuntimeError, RayServeException) as error:
        found = serve.status().applications.get(fleet.name)
        told = [each.message for each in found.deployments.values()] if found is not None else []
        reason = _reason("\n".join([str(error), *told]))
        raise UnavailableError(f"The replicas do not start. {reason}", hint="") from None
    return reports(fleet.name)


def reports(name: str) -> list[Report]:
    try:
        coordinator: Any = ray.get_actor(name, NAMESPACE)
    except ValueError:
        hint = "Start one with moa-server cluster up."
        raise NotFoundError(f"There is no fleet {name} on this Ray cluster.", hint=hint) from None
    found: list[Report] = ray.get(coordinator.reports.remote())
    return found


def state_of(name: str) -> str:
    """How Serve finds the fleet, in its words: RUNNING, DEPLOYING, UNHEALTHY ..."""
    application = serve.status().applications.get(name)
    return application.status.value if application is not None else NOT_STARTED


def down(name: str) -> None:
    """Drains and removes a fleet; with the last one Serve's own actors end, for which a node would wait that is told to
    end.
    """
    reports(name)
    serve.delete(name, _blocking=False)  # which waits for a minute, or not at all
    while state_of(name) != NOT_STARTED:  # Ray ends what has not ended in its time
        time.sleep(0.2)
    ray.kill(ray.get_actor(name, NAMESPACE))
    if not serve.status().applications:
        serve.shutdown()


def _deployment(fleet: FleetSettings, settings: ServerSettings, keys: str) -> Any:
    from moa_server.cluster.replica import Replica  # a whole server, which only `up` needs

    options: dict[str, Any] = {"num_replicas": fleet.least}
    if fleet.most > fleet.least:
        options = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=fleet.least,
                max_replicas=fleet.most,
                upscale_delay_s=fleet.upscale_seconds,
                downscale_delay_s=fleet.downscale_seconds,
                metrics_interval_s=2.0,
                look_back_period_s=10.0,  # over which the mean of a replica's loads is taken
                policy=AutoscalingPolicy(policy_function="moa_server.cluster.rules:policy"),
            )
        }
    deployment: Any = serve.deployment(
        name="replica",
        ray_actor_options={"num_cpus": fleet.cpus, "num_gpus": fleet.gpus},
        user_config={"keys": keys},
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=settings.grace_seconds + 10.0,
        health_check_period_s=2.0,  # three bad answers, and another replica is started
        max_constructor_retry_count=1,  # what does not start now does not start a minute later
        max_surge_percent=1 if fleet.surge else 0,  # rounded up to one replica
        **options,
    )(Replica)
    # Where this changes replicas must be replaced; with other keys, or another number of them, they stay.
    values = json.dumps([settings.json_values(), fleet.cpus, fleet.gpus], sort_keys=True)
    return deployment.options(version=hashlib.sha256(values.encode()).hexdigest()[:16], _internal=True)


def _reason(text: str) -> str:
    """Our own error in what Ray says, else its last line."""
    if found := re.findall(r"moa_shared\.errors\.\w+: (.+)", text):
        return str(found[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
