"""Examines what a server with these settings would meet here, step by step, as the system's files say it."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moa_kernels import KernelError, explain, variant_name
from moa_shared.errors import MoaError
from moa_shared.models.checkpoints import most_checkpoints
from moa_shared.models.storage.cache import cache_root
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.machine import Check, FreeMemory, free_memory
from moa_shared.programs.progress import Progress
from moa_shared.sampling.settings import INT8
from rich.filesize import decimal

from moa_server.access.keys import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, keys_in, read_key_file
from moa_server.addresses import METRICS_OPTIONS, check_address, host_port
from moa_server.capacity import READING_TOKENS_PER_S, Speed, StepEstimate, estimate_step, measure_speed
from moa_server.loading import ServerPlan
from moa_server.settings import ServerSettings
from moa_server.tls import SOON_DAYS, files_of, read_certificate
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.memory_check import Needed


@dataclass(frozen=True, slots=True)
class Machine:
    """The processors of a machine, or of a container on it."""

    cpu: str
    threads: int  # hardware threads that this process may use
    cores: int  # how many whole cores these are
    quota: float | None = None  # cores that the container may keep busy; None: no limit


def read_machine(proc: Path = Path("/proc"), system: Path = Path("/sys")) -> Machine:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    models = [line for line in _lines(proc / "cpuinfo") if line.startswith("model name")]
    # Threads of one core have the same list of siblings.
    cpus = system / "devices/system/cpu"
    siblings = ["".join(_lines(cpus / f"cpu{number}/topology/thread_siblings_list")) for number in allowed]
    cores = len(set(siblings)) if all(siblings) else len(allowed)
    # Of version 2, which within a container is its own; microseconds in each period: "200000 100000", or "max 100000".
    quota, _, period = "".join(_lines(system / "fs/cgroup/cpu.max")).partition(" ")
    is_limited = quota.isdigit() and period.isdigit() and int(period)
    cpu = models[0].partition(":")[2].strip() if models else ""
    return Machine(cpu, len(allowed), cores, int(quota) / int(period) if is_limited else None)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


PROBLEM = 1  # the program's exit code
SLOW_VARIANTS = {
    "avx2": "A CPU with AVX-VNNI, AVX-512 or AMX multiplies bytes several times faster.",
    "numpy": "Install a C compiler and then moa again, or use a CPU with AVX2 or the NEON dot product.",
}
TOO_SLOW = f"Nobody gets {READING_TOKENS_PER_S:g} tokens/s: use a smaller model."


def _judged(name: str, message: str, hint: str = "") -> Check:
    """A step that warns where there is something to do."""
    return Check(name, "warn" if hint else "ok", message, hint)


def judge_memory(
    free: FreeMemory, needed: Needed, kv_bytes: int, longest: tuple[int, int], state_bytes: int = 0
) -> Check:
    """Whether what is free holds the model and what all sessions may take.

    `kv_bytes`: 0: a share of what is left. `longest`: the tokens of the longest conversation, and its bytes.
    `state_bytes`: of one copy of a conversation's recurrent states; 0: it has none.
    """
    limit = f" (the container's limit is {decimal(free.limit)})" if free.limit is not None else ""
    asked = f" and keys and values may take {decimal(kv_bytes)}" if kv_bytes else ""
    tokens, nbytes = longest
    message = (
        f"{decimal(free.nbytes)} are free{limit}; the model takes {decimal(needed.total)}{asked}, "
        f"a conversation of {tokens} tokens {decimal(nbytes)}"
    )
    if state_bytes:
        copies = 1 + most_checkpoints(tokens)
        message += f", {decimal(copies * state_bytes)} of it for recurrent states and {copies - 1} checkpoints of them"
    if needed.least >= free.nbytes:
        return Check("memory", "fail", message, "Use a smaller model, or more memory.", PROBLEM)
    if needed.least + kv_bytes > free.nbytes:
        return Check("memory", "fail", message, "Lower --kv-bytes, or leave it out to take a share.", PROBLEM)
    if needed.idle and needed.total + kv_bytes >= free.nbytes:
        always = decimal(needed.least)
        hint = f"Experts are read from the disk when a token goes to them: {always} are always needed."
        return _judged("memory", message, hint)
    budget = kv_bytes or needed.kv_budget(free.nbytes)
    most = int(tokens * budget / nbytes)
    hint = f"Long conversations are refused: --context-length {most} at most." if nbytes > budget else ""
    return _judged("memory", message, hint)


def judge_disk(folder: str, free: int) -> Check:
    hint = "Another model may not fit: free space, or name another --cache-dir." if free < 10**9 else ""
    return _judged("disk", f"{decimal(free)} are free in {folder}", hint)


def judge_cpu(name: str, variant: str, explained: str) -> Check:
    """What the CPU's instructions mean for speed. `variant`: of the kernels; `explained`: why it was chosen."""
    newer = "Install moa again with a newer C compiler." if "would be faster" in explained else ""
    message = f"{name + ': ' if name else ''}{explained.removeprefix('Kernels: ').rstrip('.')}"
    return _judged("CPU", message, SLOW_VARIANTS.get(variant, newer))


def judge_threads(threads: int, machine: Machine) -> Check:
    """The target's threads against the cores; 0: one for each hardware thread that the process may use."""
    used = threads or machine.threads
    usable = machine.cores if machine.quota is None else min(float(machine.cores), machine.quota)
    message = f"{used} for {machine.cores} core{'s' * (machine.cores != 1)}"
    if machine.threads > machine.cores:
        message += f" with {machine.threads} hardware threads"
    if machine.quota is not None:
        message += f", of which the container may use {machine.quota:g}"
    best, hint = max(1, int(usable)), ""
    if used > usable and used > best:
        hint = f"They wait for each other: --threads {best}."
    elif used < usable - 1:
        hint = f"Cores stay idle: --threads {best}."
    return _judged("threads", message, hint)


def judge_speed(level: str, speed: Speed) -> Check:
    message = (
        f"{level}: a plain step takes {speed.step_ms:.1f} ms ({1e3 / speed.step_ms:.0f} tokens/s for one user), each "
        f"further row {speed.row_ms:.2f} ms, a token of a prompt {speed.read_ms:.2f} ms"
    )
    if not speed.users:
        return _judged("speed", message, TOO_SLOW)
    message += f"; about {speed.users} user{'s' * (speed.users != 1)} at {READING_TOKENS_PER_S:g} tokens/s"
    hint = "Where the kernels run, int8 is faster on CPUs, and exact." if level != INT8 else ""
    return Check("speed", "ok", message, hint)


def judge_estimate(level: str, estimate: StepEstimate | None) -> Check:
    measure = "--measure loads the model and measures."
    if estimate is None:
        return Check("speed", "skip", f"not estimated on the level {level}", measure)
    if estimate.tokens_per_s < READING_TOKENS_PER_S:
        return _judged("speed", f"{level}: {estimate}", TOO_SLOW)
    return Check("speed", "ok", f"{level}: {estimate}", measure)


def judge_open_files(limit: int | None, max_connections: int) -> Check:
    if limit is None:
        return Check("open files", "ok", "no limit")
    needed = max_connections + 128  # libraries, the model, pipes
    raised = f"Raise the limit (ulimit -n {needed}; in a unit: LimitNOFILE={needed}), or lower --max-connections."
    message = f"{limit} may be open; {max_connections} connections and the program need {needed}"
    return _judged("open files", message, raised if limit < needed else "")


def most_open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def check_tls(settings: ServerSettings, now: datetime) -> Check:
    """A certificate that can be used, and whose key belongs to it, or the want of any."""
    files = files_of(settings)
    if files is None:
        if is_loopback(settings.host):
            return Check("TLS", "ok", "not used: nothing leaves this machine")
        message = "not used: others on the way can read and change conversations"
        return _judged("TLS", message, "Make a certificate: moa-server setup HOST.")
    certificate = read_certificate(files, now)
    days = certificate.days_left(now)
    message = f"{', '.join(certificate.names)}: valid for {days:.0f} more day{'s' * (round(days) != 1)}, its key fits"
    if certificate.client_authorities is not None:
        message += "; clients need certificates"
    hint = "Renew it: moa-server setup --renew, or as it was made." if days < SOON_DAYS else ""
    return _judged("TLS", message, hint)


def check_keys(settings: ServerSettings, environment: Mapping[str, str], now: datetime) -> Check:
    """The API keys, in the file and in the environment, or the want of any."""
    text = environment.get(KEYS_VARIABLE, "").strip()
    if settings.keys_file is None and not text:
        if is_loopback(settings.host):
            return Check("keys", "ok", "not wanted: only this machine reaches the server")
        hint = "Make one: moa-server keys add NAME, and serve with --keys-file FILE."
        return _judged("keys", "not wanted: whoever reaches the server may use it", hint)
    book = read_key_file(settings.keys_file) if settings.keys_file is not None else KeyBook()
    entries = (book.joined(keys_in(text, KEYS_VARIABLE)) if text else book).entries.values()
    expired = [each.name for each in entries if each.has_expired(now)]
    valid = len(entries) - len(expired)
    message = f"{valid} that can be used" + (f"; expired: {', '.join(expired)}" if expired else "")
    return _judged("keys", message, "" if valid else "Nobody gets in. Make one: moa-server keys add NAME.")


class MachineExamination:
    """Steps whose checks are given as they end; one is skipped if another that it needs has failed."""

    def __init__(
        self, settings: ServerSettings, progress: Progress, waiting: Callable[[str], None], *, measures: bool = False
    ) -> None:
        self._settings, self._progress, self._waiting, self._measures = settings, progress, waiting, measures
        self._machine = read_machine()
        self._plan = ServerPlan(settings, progress)

    def run(self) -> Iterator[Check]:
        settings, plan, now = self._settings, self._plan, datetime.now(UTC)
        steps: list[tuple[str, tuple[str, ...], Callable[[], Check]]] = [
            ("model", (), self._find_model),
            ("drafter", ("model",), self._find_drafters),
            *([("companion", ("model",), self._find_companion)] if plan.companion_name else []),
            ("memory", ("model", "drafter"), self._plan_memory),
            ("disk", (), self._check_disk),
            ("port", (), self._check_port),
            ("TLS", (), lambda: check_tls(settings, now)),
            ("keys", (), lambda: check_keys(settings, os.environ, now)),
            ("CPU", (), lambda: judge_cpu(self._machine.cpu, variant_name(), explain())),
            ("threads", (), lambda: judge_threads(settings.threads, self._machine)),
            ("speed", ("model", "memory"), self._measure)
            if self._measures
            else ("speed", ("model", "drafter"), lambda: judge_estimate(plan.level, estimate_step(plan))),
            ("open files", (), lambda: judge_open_files(most_open_files(), settings.max_connections)),
        ]
        failed: set[str] = set()
        for name, needs, step in steps:
            self._waiting(f"{name} ...")
            if lacking := [each for each in needs if each in failed]:
                check = Check(name, "skip", f"not examined, for want of: {', '.join(lacking)}")
            else:
                try:
                    check = step()
                except (MoaError, KernelError) as error:
                    message, hint = (error.message, error.hint) if isinstance(error, MoaError) else (str(error), "")
                    check = Check(name, "fail", message.rstrip("."), hint, PROBLEM)
            if check.state in ("fail", "skip"):
                failed.add(name)
            yield check

    def _find_model(self) -> Check:
        files, _ = self._plan.files, self._plan.level
        return Check("model", "ok", f"{files.target_id}, {_size(files.weights)}, checked, in {files.folder}")

    def _find_drafters(self) -> Check:
        if found := self._plan.drafters:
            return Check("drafter", "ok", ", ".join(each.name for each in found))
        if self._settings.drafter == "none":
            return Check("drafter", "ok", "none, as wished")
        hint = "`moa-server drafters` lists some; without one devices neither draft nor write offline."
        return _judged("drafter", "none for this model is on this machine", hint)

    def _find_companion(self) -> Check:
        if (found := self._plan.companion) is None:
            return _judged("companion", "the catalogue's cannot be fetched", "Devices write no whole answers offline.")
        trust = "its text was measured" if found.confidence is not None else "its text was not measured"
        size = _size(found.files.weights)
        return Check("companion", "ok", f"{found.files.target_id}, {size}; the same vocabulary; {trust}")

    def _plan_memory(self) -> Check:
        tokens = self._plan.target.context_length
        longest = tokens, self._plan.session_nbytes(tokens)
        states = self._plan.target.new_cache().checkpoint_nbytes
        return judge_memory(free_memory(), self._plan.needed, self._settings.kv_bytes, longest, states)

    def _measure(self) -> Check:
        execution = load_execution(self._plan.files, self._settings, self._progress)
        return judge_speed(execution.level, measure_speed(execution))

    def _check_disk(self) -> Check:
        folder = cache_root(self._settings.cache_dir)
        return judge_disk(str(folder), shutil.disk_usage(folder).free)

    def _check_port(self) -> Check:
        settings = self._settings
        check_address(settings.host, settings.port)
        free = host_port(settings.host, settings.port)
        if settings.metrics_port is not None:
            check_address(settings.metrics_host, settings.metrics_port, METRICS_OPTIONS)
            free += f" and {host_port(settings.metrics_host, settings.metrics_port)}"
        return Check("port", "ok", f"free: {free}")


def _size(paths: tuple[Path, ...]) -> str:
    return decimal(sum(path.stat().st_size for path in paths))
