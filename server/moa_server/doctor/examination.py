"""What protects a server: encryption, and keys. The judgements are pure."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from moa_kernels import KernelError, explain, variant_name
from moa_shared.drafter import Checkpoint
from moa_shared.errors import MoaError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.checks import Check, State
from moa_shared.programs.free_memory import free_memory_bytes
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.access.authentication import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, keys_in, read_key_file
from moa_server.capacity.plan import Needed, needed_memory, session_size, sized_target
from moa_server.capacity.speed import estimate_step, measure_speed
from moa_server.doctor.machine import (
    PROBLEM,
    judge_clock,
    judge_cpu,
    judge_disk,
    judge_estimate,
    judge_memory,
    judge_open_files,
    judge_speed,
    judge_threads,
    judge_user,
    read_machine,
)
from moa_server.loading import check_context_length, check_drafter, drafter_paths
from moa_server.running.addresses import METRICS_OPTIONS, check_address, host_port
from moa_server.service.offer import offered_companion
from moa_server.settings import ServerSettings
from moa_server.tls.files import files_of
from moa_server.tls.listener import SOON_DAYS, ServerCertificate, read_certificate
from moa_server.verifier.execution_level import choose_level, load_execution


def check_tls(settings: ServerSettings, now: datetime) -> Check:
    """The certificate, or the want of one."""
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
    """All steps for one server.

    Args:
        waiting: shows what is waited for.
        measures: the model is loaded, and its speed measured; else it is estimated.
    """

    def __init__(
        self, settings: ServerSettings, progress: Progress, waiting: Callable[[str], None], *, measures: bool = False
    ) -> None:
        self._settings = settings
        self._measures = measures
        self._progress = progress
        self._waiting = waiting
        self._machine = read_machine()
        self._files: ModelFiles | None = None
        self._level = ""
        self._drafters: list[Checkpoint] | None = None
        self._needed: Needed | None = None
        self._memory: State = "skip"

    def run(self) -> Iterator[Check]:
        """Yields each step as it ends."""
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
                yield step()
            except MoaError as error:
                yield Check(name, "fail", error.message.rstrip("."), error.hint, PROBLEM)

    # ------------------------------------------------------------ the model

    def _find_model(self) -> Check:
        files = resolve(self._settings.model, self._settings.cache_dir, self._progress)
        check_context_length(self._settings, files)
        self._level, _ = choose_level(self._settings, files.config, files.target_id)
        self._files = files
        size = decimal(sum(path.stat().st_size for path in files.weights))
        return Check("model", "ok", f"{files.target_id}, {size}, checked, in {files.folder}")

    def _find_drafters(self) -> Check:
        files, settings = self._files, self._settings
        if files is None:
            return Check("drafter", "skip", "not looked for: there is no model")
        paths = drafter_paths(settings.drafter, files, settings.cache_dir, self._progress)
        self._drafters = [check_drafter(path, files) for _, path in paths]
        if paths:
            return Check("drafter", "ok", ", ".join(name for name, _ in paths))
        if settings.drafter == "none":
            return Check("drafter", "ok", "none, as wished")
        hint = "`moa-server drafters` lists some; without one devices neither draft nor write offline."
        return Check("drafter", "warn", "none for this model is on this machine", hint)

    def _find_companion(self) -> Check:
        if self._files is None:
            return Check("companion", "skip", "not looked for: there is no model")
        settings = self._settings
        found = offered_companion(settings.companion, self._files, settings.cache_dir, self._progress)
        size = decimal(sum(path.stat().st_size for path in found.files.weights))
        trust = "its text was measured" if found.confidence is not None else "its text was not measured"
        return Check("companion", "ok", f"{found.files.target_id}, {size}; the same vocabulary; {trust}")

    def _plan_memory(self) -> Check:
        if self._files is None or self._drafters is None:
            return Check("memory", "skip", "not planned: model or drafter failed")
        settings, files, level = self._settings, self._files, self._level
        self._needed = needed_memory(files, level, self._drafters, settings)
        target = sized_target(settings, files, level)
        longest = (
            target.context_length,
            session_size(target, settings, files, self._drafters).largest(target.context_length),
        )
        check = judge_memory(free_memory_bytes(), self._needed, settings.kv_bytes, self._machine, longest)
        self._memory = check.state
        return check

    def _estimate(self) -> Check:
        if self._files is None or self._needed is None:
            return Check("speed", "skip", "not estimated: the model is not there")
        settings, level = self._settings, self._level
        target = sized_target(settings, self._files, level)
        read = self._needed.weights - self._needed.idle
        return judge_estimate(level, estimate_step(target, level, read, settings.threads))

    def _measure(self) -> Check:
        if self._files is None or self._memory == "fail":
            return Check("speed", "skip", "not measured: the model does not fit or is not there")
        execution = load_execution(self._files, self._settings, self._progress)
        return judge_speed(execution.level, measure_speed(execution))

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
