"""Why servers of a fleet are left out, in words for people. Each sentence names its server."""

from __future__ import annotations

from collections.abc import Sequence

from moa.v1 import moa_pb2 as pb
from moa_shared.errors import MoaError, UnavailableError

from moa_client.link.server import Server, computes_alike, serves


def refusal(servers: Sequence[Server], needs: pb.Identity | None = None) -> MoaError:
    """Why none of the servers can be had.

    Args:
        needs: the model that they should have; None: the reason is not that they have another.
    """
    errors = [each.error for each in servers if each.error is not None]
    others = [] if needs is None else _of_other_models(servers, needs)
    if others:
        return UnavailableError(" ".join([*(error.message for error in errors), *others]))
    if len(errors) == 1 or (errors and not any(isinstance(error, UnavailableError) for error in errors)):
        return errors[0]
    return UnavailableError(" ".join(error.message for error in errors) or "No server has answered in time.")


def _of_other_models(servers: Sequence[Server], needs: pb.Identity) -> list[str]:
    return [
        f"{each.label} serves {each.served.identity.target_id}, not {needs.target_id}."
        for each in servers
        if each.error is None and each.served is not None and not serves(each.served, needs)
    ]


def silent(servers: Sequence[Server]) -> list[str]:
    """The servers that do not answer."""
    return [f"{each.label} is left out for now: {each.error.message}" for each in servers if each.error is not None]


def odd(servers: Sequence[Server], needs: pb.Identity) -> list[str]:
    """The servers that answer, and whose text would be another one."""
    lines = []
    described = [each.served for each in servers if each.served is not None]
    executions = {served.identity.execution: served.execution for served in described}
    before = executions.get(needs.execution)
    for each in servers:
        if each.error is not None or each.served is None:
            continue
        served = each.served
        if not serves(served, needs):
            lines.append(f"{each.label} is left out: it serves {served.identity.target_id}, not {needs.target_id}.")
        elif not computes_alike(served, needs):
            lines.append(f"{each.label} is the last resort: it computes at {_differs(served.execution, before)}.")
    return lines


def _differs(now: pb.Execution, before: pb.Execution | None) -> str:
    """In what an execution differs from the one before; None: that is not known."""
    if before is None:
        return f"{now.level}, not as the conversation's server did"
    if now.level != before.level:
        return f"{now.level}, not {before.level}"
    return f"{now.level} ({now.details}), not as before ({before.details})"
