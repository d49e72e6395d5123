"""Examines what a server with these settings would meet here, step by step, as the system's files say it.

State: which steps have failed so far. A step is skipped if one that it needs has failed.
"""

import ctypes
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from moa_kernels import KernelError, explain, variant_name
from moa_shared.defaults import INT8
from moa_shared.errors import MoaError
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.machine import Check, free_memory_bytes
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.access.keys import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, keys_in, read_key_file
from moa_server.addresses import METRICS_OPTIONS, check_address, host_port
from moa_server.capacity.plan import (
    READING_TOKENS_PER_S,
    Needed,
    ServerPlan,
    Speed,
    StepEstimate,
    estimate_text,
    users_fed,
)
from moa_server.service.fetch import offered_companion
from moa_server.settings import ServerSettings
from moa_server.tls.certificates import ServerCertificate, read_certificate
from moa_server.tls.listener import SOON_DAYS, files_of
from moa_server.verifier.target import KV_SHARE

PROC = Path("/proc")
SYS = Path("/sys")
TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised
TIMEX_BYTES = 512  # more than struct timex takes anywhere


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine, or a container on it.

    Args:
        threads: hardware threads that this process may use, `cores`: how many whole cores they are.
        quota: cores that the container may keep busy; None: no limit.
        memory_limit: of the container, in bytes; None: no limit.
        open_files: that this process may have; None: no limit.
        clock_is_set: whether something keeps the clock right; None: not known.
    """

    cpu: str
    threads: int
    cores: int
    quota: float | None
    memory_limit: int | None
    open_files: int | None
    is_root: bool
    now: float
    clock_is_set: bool | None


def read_machine(proc: Path = PROC, system: Path = SYS) -> Machine:
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cgroup = system / "fs/cgroup"  # version 2; within a container this is its own
    return Machine(
        _cpu_name(proc),
        len(allowed),
        _whole_cores(system, allowed),
        _quota(_line(cgroup / "cpu.max")),
        _number(_line(cgroup / "memory.max")),
        _open_files(),
        hasattr(os, "geteuid") and os.geteuid() == 0,
        time.time(),
        _clock_is_set(),
    )


def _cpu_name(proc: Path) -> str:
    try:
        lines = (proc / "cpuinfo").read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _whole_cores(system: Path, allowed: set[int]) -> int:
    """Threads of one core have the same list of siblings."""
    siblings = [_line(system / f"devices/system/cpu/cpu{number}/topology/thread_siblings_list") for number in allowed]
    return len(set(siblings)) if all(siblings) else len(allowed)


def _quota(text: str) -> float | None:
    """Cores from the container's microseconds in each period: "200000 100000", or "max 100000"."""
    allowed, _, period = text.partition(" ")
    return int(allowed) / int(period) if allowed.isdigit() and period.isdigit() and int(period) else None


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _line(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace").partition("\n")[0].strip()
    except OSError:
        return ""


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def _clock_is_set() -> bool | None:
    """What the kernel says of its clock; it is only read."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


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

    `kv_bytes`: that were asked for; 0: a share of what is left. `longest`: the tokens of the longest conversation, and
    the bytes that it takes.
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
    message = f"{decimal(free)} are free in {folder}"
    if free < LITTLE_DISK:
        return Check("disk", "warn", message, "Another model may not fit: free space, or name another --cache-dir.")
    return Check("disk", "ok", message)


def judge_cpu(name: str, variant: str, explained: str) -> Check:
    """What the CPU's instructions mean for speed. `variant`: of the kernels; `explained`: why it was chosen."""
    message = f"{name + ': ' if name else ''}{explained.removeprefix('Kernels: ').rstrip('.')}"
    slow = SLOW_VARIANTS.get(variant)
    if slow is not None:
        return Check("CPU", "warn", message, slow)
    if "would be faster" in explained:
        return Check("CPU", "warn", message, "Install moa again with a newer C compiler.")
    return Check("CPU", "ok", message)


def judge_threads(threads: int, machine: Machine) -> Check:
    """The target's threads against the cores.

    `threads`: that were asked for; 0: one for each that the process may use.
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
    if estimate is None:
        return Check("speed", "skip", f"not estimated on the level {level}", "--measure loads the model and measures.")
    message = f"{level}: {estimate_text(estimate)}"
    if estimate.tokens_per_s < READING_TOKENS_PER_S:
        hint = f"Nobody gets {READING_TOKENS_PER_S:g} tokens/s: use a smaller model."
        return Check("speed", "warn", message, hint)
    return Check("speed", "ok", message, "--measure loads the model and measures.")


def judge_clock(machine: Machine) -> Check:
    if machine.now < EARLIEST:
        return Check("clock", "fail", "it is years behind", "Set it: certificates are not yet valid for it.", PROBLEM)
    if machine.clock_is_set is False:
        return Check("clock", "warn", "nothing keeps it right", "Run an NTP service: certificates and logs need it.")
    return Check("clock", "ok", "it is set" if machine.clock_is_set else "plausible")


def judge_open_files(machine: Machine, max_connections: int) -> Check:
    if machine.open_files is None:
        return Check("open files", "ok", "no limit")
    needed = max_connections + OWN_FILES
    message = f"{machine.open_files} may be open; {max_connections} connections and the program need {needed}"
    if machine.open_files < needed:
        hint = f"Raise the limit (ulimit -n {needed}; in a unit: LimitNOFILE={needed}), or lower --max-connections."
        return Check("open files", "warn", message, hint)
    return Check("open files", "ok", message)


def judge_user(machine: Machine) -> Check:
    if machine.is_root:
        return Check("user", "warn", "this is root, which a server does not need", "Run it as a user of its own.")
    return Check("user", "ok", "not root")


def check_tls(settings: ServerSettings, now: datetime) -> Check:
    files = files_of(settings)
    return judge_tls(read_certificate(files, now) if files is not None else None, settings.host, now)


def judge_tls(certificate: ServerCertificate | None, host: str, now: datetime) -> Check:
    """A certificate that can be used, and whose key belongs to it; None: the server does not encrypt."""
    if certificate is None:
        if is_loopback(host):
            return Check("TLS", "ok", "not used: nothing leaves this machine")
        hint = "Make a certificate: moa-server setup HOST."
        return Check("TLS", "warn", "not used: others on the way can read and change conversations", hint)
    days = certificate.days_left(now)
    message = f"{', '.join(certificate.names)}: valid for {days:.0f} more day{'s' * (round(days) != 1)}, its key fits"
    if certificate.client_authorities is not None:
        message += "; clients need certificates"
    if days < SOON_DAYS:
        return Check("TLS", "warn", message, "Renew it: moa-server setup --renew, or as it was made.")
    return Check("TLS", "ok", message)


def check_keys(settings: ServerSettings, environment: Mapping[str, str], now: datetime) -> Check:
    """The API keys, in the file and in the environment, or the want of any."""
    text = environment.get(KEYS_VARIABLE, "").strip()
    if settings.keys_file is None and not text:
        return judge_keys(None, settings.host, now)
    book = read_key_file(settings.keys_file) if settings.keys_file is not None else KeyBook()
    return judge_keys(book.joined(keys_in(text, KEYS_VARIABLE)) if text else book, settings.host, now)


def judge_keys(book: KeyBook | None, host: str, now: datetime) -> Check:
    """Keys that can be used; None: everybody gets in."""
    if book is None:
        if is_loopback(host):
            return Check("keys", "ok", "not wanted: only this machine reaches the server")
        hint = "Make one: moa-server keys add NAME, and serve with --keys-file FILE."
        return Check("keys", "warn", "not wanted: whoever reaches the server may use it", hint)
    entries = book.entries.values()
    expired = [each.name for each in entries if each.has_expired(now)]
    valid = len(entries) - len(expired)
    message = f"{valid} that can be used"
    if expired:
        message += f"; expired: {', '.join(expired)}"
    if not valid:
        return Check("keys", "warn", message, "Nobody gets in. Make one: moa-server keys add NAME.")
    return Check("keys", "ok", message)


class MachineExamination:
    def __init__(
        self, settings: ServerSettings, progress: Progress, waiting: Callable[[str], None], *, measures: bool = False
    ) -> None:
        self._settings = settings
        self._measures = measures
        self._progress = progress
        self._waiting = waiting
        self._machine = read_machine()
        self._plan = ServerPlan(settings, progress)
        self._failed: set[str] = set()

    def run(self) -> Iterator[Check]:
        settings, machine = self._settings, self._machine
        now = datetime.fromtimestamp(machine.now, UTC)
        steps: list[tuple[str, Callable[[], Check]]] = [
            ("model", self._find_model),
            ("drafter", self._find_drafters),
            *([("companion", self._find_companion)] if settings.companion else []),
            ("memory", self._plan_memory),
            ("disk", self._check_disk),
            ("port", self._check_port),
            ("TLS", lambda: check_tls(settings, now)),
            ("keys", lambda: check_keys(settings, os.environ, now)),
            ("CPU", self._find_kernels),
            ("threads", lambda: judge_threads(settings.threads, machine)),
            ("speed", self._measure if self._measures else self._estimate),
            ("clock", lambda: judge_clock(machine)),
            ("open files", lambda: judge_open_files(machine, settings.max_connections)),
            ("user", lambda: judge_user(machine)),
        ]
        for name, step in steps:
            self._waiting(f"{name} ...")
            try:
                check = step()
            except MoaError as error:
                check = Check(name, "fail", error.message.rstrip("."), error.hint, PROBLEM)
            if check.state in ("fail", "skip"):
                self._failed.add(name)
            yield check

    # ------------------------------------------------------------ the model

    def _find_model(self) -> Check:
        files, _ = self._plan.files, self._plan.level
        size = decimal(sum(path.stat().st_size for path in files.weights))
        return Check("model", "ok", f"{files.target_id}, {size}, checked, in {files.folder}")

    def _find_drafters(self) -> Check:
        if "model" in self._failed:
            return Check("drafter", "skip", "not looked for: there is no model")
        if found := self._plan.drafters:
            return Check("drafter", "ok", ", ".join(found))
        if self._settings.drafter == "none":
            return Check("drafter", "ok", "none, as wished")
        hint = "`moa-server drafters` lists some; without one devices neither draft nor write offline."
        return Check("drafter", "warn", "none for this model is on this machine", hint)

    def _find_companion(self) -> Check:
        if "model" in self._failed:
            return Check("companion", "skip", "not looked for: there is no model")
        settings = self._settings
        found = offered_companion(settings.companion, self._plan.files, settings.cache_dir, self._progress)
        size = decimal(sum(path.stat().st_size for path in found.files.weights))
        trust = "its text was measured" if found.confidence is not None else "its text was not measured"
        return Check("companion", "ok", f"{found.files.target_id}, {size}; the same vocabulary; {trust}")

    def _plan_memory(self) -> Check:
        if self._failed & {"model", "drafter"}:
            return Check("memory", "skip", "not planned: model or drafter failed")
        needed, tokens = self._plan.needed, self._plan.target.context_length
        longest = tokens, self._plan.session_nbytes(tokens)
        return judge_memory(free_memory_bytes(), needed, self._settings.kv_bytes, self._machine, longest)

    def _estimate(self) -> Check:
        if self._failed & {"model", "drafter"}:
            return Check("speed", "skip", "not estimated: the model is not there")
        return judge_estimate(self._plan.level, self._plan.estimate())

    def _measure(self) -> Check:
        if self._failed & {"model", "memory"}:
            return Check("speed", "skip", "not measured: the model does not fit or is not there")
        return judge_speed(*self._plan.measure())

    # ------------------------------------------------------------ its surroundings

    def _find_kernels(self) -> Check:
        try:
            return judge_cpu(self._machine.cpu, variant_name(), explain())
        except KernelError as error:
            return Check("CPU", "fail", str(error).rstrip("."), "", PROBLEM)

    def _check_disk(self) -> Check:
        folder = cache_root(self._settings.cache_dir)
        return judge_disk(str(folder), shutil.disk_usage(folder).free)

    def _check_port(self) -> Check:
        settings = self._settings
        check_address(settings.host, settings.port)
        served = host_port(settings.host, settings.port)
        if settings.metrics_port is None:
            return Check("port", "ok", f"{served} is free")
        check_address(settings.metrics_host, settings.metrics_port, METRICS_OPTIONS)
        return Check("port", "ok", f"{served} and {host_port(settings.metrics_host, settings.metrics_port)} are free")
