"""What a machine means for a server. Pure."""

from __future__ import annotations

from moa_shared.programs.checks import Check
from moa_shared.protocol.levels import INT8
from rich.filesize import decimal

from moa_server.capacity.estimate import StepEstimate
from moa_server.capacity.plan import Needed
from moa_server.capacity.report import estimate_text
from moa_server.capacity.speed import READING_TOKENS_PER_S, Speed, users_fed
from moa_server.doctor.machine import Machine
from moa_server.verifier.target import KV_SHARE

PROBLEM = 1  # the program's exit code
OWN_FILES = 128  # besides connections: libraries, the model, pipes
LITTLE_DISK = 1_000_000_000
EARLIEST = 1_767_225_600.0  # 2026-01-01: a clock before that was never set
SLOW_VARIANTS = {
    "avx2": "A CPU with AVX-VNNI, AVX-512 or AMX multiplies bytes several times faster.",
    "numpy": "Install a C compiler and then moa again, or use a CPU with AVX2 or the NEON dot product.",
}


def judge_memory(free: int, needed: Needed, kv_bytes: int, machine: Machine, longest: tuple[int, int]) -> Check:
    """Whether what is free holds the model and what all sessions may take.

    Args:
        kv_bytes: that were asked for; 0: a share of what is left.
        longest: the tokens of the longest conversation, and the bytes that it takes.
    """
    where = f"{decimal(free)} are free"
    if machine.memory_limit is not None:
        where += f" (the container's limit is {decimal(machine.memory_limit)})"
    least = needed.least + kv_bytes
    what = f"the model takes {decimal(needed.total)}"
    if kv_bytes:
        what += f" and keys and values may take {decimal(kv_bytes)}"
    tokens, nbytes = longest
    message = f"{where}; {what}, a conversation of {tokens} tokens {decimal(nbytes)}"
    if needed.least >= free:
        return Check("memory", "fail", message, "Use a smaller model, or more memory.", PROBLEM)
    if least > free:
        return Check("memory", "fail", message, "Lower --kv-bytes, or leave it out to take a share.", PROBLEM)
    if needed.least < needed.total and needed.total + kv_bytes >= free:
        hint = f"Experts are read from the disk when a token goes to them: {decimal(needed.least)} are always needed."
        return Check("memory", "warn", message, hint)
    budget = kv_bytes or int(KV_SHARE * (free - needed.total))
    if nbytes > budget:
        most = int(tokens * budget / nbytes)
        return Check("memory", "warn", message, f"Long conversations are refused: --context-length {most} at most.")
    return Check("memory", "ok", message)


def judge_disk(folder: str, free: int) -> Check:
    """Room for the cache."""
    message = f"{decimal(free)} are free in {folder}"
    if free < LITTLE_DISK:
        return Check("disk", "warn", message, "Another model may not fit: free space, or name another --cache-dir.")
    return Check("disk", "ok", message)


def judge_cpu(name: str, variant: str, explained: str) -> Check:
    """What the CPU's instructions mean for speed.

    Args:
        variant: of the kernels; `explained`: why it was chosen.
    """
    message = f"{name + ': ' if name else ''}{explained.removeprefix('Kernels: ').rstrip('.')}"
    slow = SLOW_VARIANTS.get(variant)
    if slow is not None:
        return Check("CPU", "warn", message, slow)
    if "would be faster" in explained:
        return Check("CPU", "warn", message, "Install moa again with a newer C compiler.")
    return Check("CPU", "ok", message)


def judge_threads(threads: int, machine: Machine) -> Check:
    """The target's threads against the cores.

    Args:
        threads: that were asked for; 0: one for each that the process may use.
    """
    used = threads or machine.threads
    usable = machine.cores if machine.quota is None else min(float(machine.cores), machine.quota)
    message = f"{used} for {machine.cores} core{'s' * (machine.cores != 1)}"
    if machine.threads > machine.cores:
        message += f" with {machine.threads} hardware threads"
    if machine.quota is not None:
        message += f", of which the container may use {machine.quota:g}"
    best = max(1, int(usable))
    if used > usable and used > best:
        return Check("threads", "warn", message, f"They wait for each other: --threads {best}.")
    if used < usable - 1:
        return Check("threads", "warn", message, f"Cores stay idle: --threads {best}.")
    return Check("threads", "ok", message)


def judge_speed(level: str, speed: Speed) -> Check:
    """A measured step."""
    users = users_fed(speed)
    message = (
        f"{level}: a plain step takes {speed.step_ms:.1f} ms ({1e3 / speed.step_ms:.0f} tokens/s for one user), each "
        f"further row {speed.row_ms:.2f} ms, a token of a prompt {speed.read_ms:.2f} ms"
    )
    if not users:
        return Check("speed", "warn", message, f"Nobody gets {READING_TOKENS_PER_S:g} tokens/s: use a smaller model.")
    message += f"; about {users} user{'s' * (users != 1)} at {READING_TOKENS_PER_S:g} tokens/s"
    if level != INT8:
        return Check("speed", "ok", message, "Where the kernels run, int8 is faster on CPUs, and exact.")
    return Check("speed", "ok", message)


def judge_estimate(level: str, estimate: StepEstimate | None) -> Check:
    """A speed that was not measured."""
    if estimate is None:
        return Check("speed", "skip", f"not estimated on the level {level}", "--measure loads the model and measures.")
    message = f"{level}: {estimate_text(estimate)}"
    if estimate.tokens_per_s < READING_TOKENS_PER_S:
        hint = f"Nobody gets {READING_TOKENS_PER_S:g} tokens/s: use a smaller model."
        return Check("speed", "warn", message, hint)
    return Check("speed", "ok", message, "--measure loads the model and measures.")


def judge_clock(machine: Machine) -> Check:
    """Certificates and the log need the right time."""
    if machine.now < EARLIEST:
        return Check("clock", "fail", "it is years behind", "Set it: certificates are not yet valid for it.", PROBLEM)
    if machine.clock_is_set is False:
        return Check("clock", "warn", "nothing keeps it right", "Run an NTP service: certificates and logs need it.")
    return Check("clock", "ok", "it is set" if machine.clock_is_set else "plausible")


def judge_open_files(machine: Machine, max_connections: int) -> Check:
    """Each connection is an open file."""
    if machine.open_files is None:
        return Check("open files", "ok", "no limit")
    needed = max_connections + OWN_FILES
    message = f"{machine.open_files} may be open; {max_connections} connections and the program need {needed}"
    if machine.open_files < needed:
        hint = f"Raise the limit (ulimit -n {needed}; in a unit: LimitNOFILE={needed}), or lower --max-connections."
        return Check("open files", "warn", message, hint)
    return Check("open files", "ok", message)


def judge_user(machine: Machine) -> Check:
    """Nothing that a server does needs the superuser."""
    if machine.is_root:
        return Check("user", "warn", "this is root, which a server does not need", "Run it as a user of its own.")
    return Check("user", "ok", "not root")
