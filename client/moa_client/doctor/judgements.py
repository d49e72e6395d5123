"""What measured numbers mean for a user. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from moa_shared.programs.checks import Check, si_bytes

from moa_client.device.drafter_choice import DrafterCandidate, ServerPace, speedup

SOON_DAYS = 14  # a certificate that ends within so many should be renewed now
FAR_MS = 150.0  # a round trip that a reader notices at each correction
FULL = 0.9  # beyond it, a server may refuse
DOWN_BYTES = 550.0  # a token, with memory for both planes in int4 (docs/architecture.md)
UP_BYTES = 120.0  # a token, with drafts as trees
NOTICEABLE = 1.05  # times plain streaming


def judge_certificate(owner: str, ends_at: float, now: float) -> Check:
    """A certificate that was accepted.

    Args:
        ends_at, now: seconds since 1970.
    """
    days = (ends_at - now) / 86_400
    message = f"the certificate of {owner} is valid for {days:.0f} more day{'' if round(days) == 1 else 's'}"
    if days < SOON_DAYS:
        return Check("TLS", "warn", message, "Whoever runs the server should renew it.")
    return Check("TLS", "ok", message)


def judge_round_trip(took_ms: float, samples: int, load: float) -> Check:
    """The median of some calls, and how much of the server is taken."""
    message = f"{took_ms:.1f} ms, the median of {samples}; {100 * load:.0f} % of the server is taken"
    if load >= FULL:
        return Check("round trip", "warn", message, "It may refuse: ask later, or add another server.")
    if took_ms > FAR_MS:
        return Check("round trip", "warn", message, "Text comes as fast, but begins later: use a nearer server.")
    return Check("round trip", "ok", message)


def judge_goodput(name: str, nbytes: int, seconds: float, step_ms: float) -> Check:
    """Bytes carried in a time, against what the server's text takes.

    Args:
        name: "download" or "upload".
        step_ms: of a plain step; 0: not known.
    """
    rate = nbytes / max(seconds, 1e-6)
    each = DOWN_BYTES if name == "download" else UP_BYTES
    message = f"{si_bytes(rate)}/s ({si_bytes(nbytes)} in {seconds:.2g} s)"
    if not step_ms:
        return Check(name, "ok", message)
    needed = each * 1e3 / step_ms
    message += f"; text with drafts takes up to {si_bytes(needed)}/s"
    if rate >= needed:
        return Check(name, "ok", message)
    less = "The memory sent adapts, and fewer drafts are made" if name == "download" else "Fewer drafts are sent"
    return Check(name, "warn", message, f"{less}: the text is the same, and comes more slowly.")


def judge_speed(candidates: Sequence[DrafterCandidate], step_ms: float) -> Check:
    """How long a level of a draft takes here, against a step of the server."""
    levels = ", ".join(f"{each.level_ms:.1f} ms ({each.name})" for each in candidates)
    message = f"a level of a draft takes {levels}"
    if not step_ms:
        return Check("speed here", "ok", f"{message}; the server does not say how long a step takes")
    message += f"; a plain step of the server {step_ms:.1f} ms"
    if min(each.level_ms for each in candidates) < step_ms:
        return Check("speed here", "ok", message)
    return Check("speed here", "warn", message, "Drafts from here come too late: give the drafter more --threads.")


def judge_expectation(candidates: Sequence[DrafterCandidate], server: ServerPace) -> Check:
    """What a user may expect."""
    if not server.step_ms:
        return Check("expect", "ok", "the server does not say how fast it is")
    plain = f"{1e3 / server.step_ms:.0f} tokens/s"
    best = max(candidates, key=lambda each: speedup(each, server), default=None)
    times = speedup(best, server) if best is not None else 1.0
    if best is None or times < NOTICEABLE:
        return Check(
            "expect",
            "ok",
            f"plain streaming, about {plain}; drafts from here add little, and the server drafts while it has time",
        )
    return Check(
        "expect", "ok", f"about {times:.1f} times plain streaming ({plain}) with drafts from here ({best.name})"
    )
