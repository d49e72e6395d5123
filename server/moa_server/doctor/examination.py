"""Examines what a server with these settings would meet here, step by step.

State: which steps have failed so far. A step is skipped if one that it needs has failed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from moa_kernels import KernelError, explain, variant_name
from moa_shared.errors import MoaError
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.addresses import is_loopback
from moa_shared.programs.machine import Check, free_memory_bytes
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.access.authentication import VARIABLE as KEYS_VARIABLE
from moa_server.access.keys import KeyBook, keys_in, read_key_file
from moa_server.capacity.plan import ServerPlan
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
from moa_server.running.addresses import METRICS_OPTIONS, check_address, host_port
from moa_server.service.offer import offered_companion
from moa_server.settings import ServerSettings
from moa_server.tls.files import files_of
from moa_server.tls.listener import SOON_DAYS, ServerCertificate, read_certificate


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
    """All steps for one server."""

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
