"""Examines what a server with these settings would meet here, step by step.

State: what the steps so far have found. A step is skipped if one that it needs has failed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from moa_kernels import KernelError, explain, variant_name
from moa_shared.drafter import Checkpoint
from moa_shared.errors import MoaError
from moa_shared.models import ModelFiles, resolve
from moa_shared.models.sources.cache import cache_root
from moa_shared.programs.checks import Check, State
from moa_shared.programs.free_memory import free_memory_bytes
from moa_shared.programs.progress import Progress
from rich.filesize import decimal

from moa_server.capacity.estimate import estimate_step
from moa_server.capacity.plan import Needed
from moa_server.capacity.planning import needed_memory, session_size, sized_target
from moa_server.capacity.speed import measure_speed
from moa_server.doctor.machine import read_machine
from moa_server.doctor.machine_judgements import (
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
)
from moa_server.doctor.protection import check_keys, check_tls
from moa_server.loading import check_context_length, check_drafter, drafter_paths
from moa_server.running.addresses import METRICS_OPTIONS, check_address, host_port
from moa_server.service.fetching.companion_files import offered_companion
from moa_server.settings import ServerSettings
from moa_server.verifier.execution_level import load_execution
from moa_server.verifier.level_choice import choose_level


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
