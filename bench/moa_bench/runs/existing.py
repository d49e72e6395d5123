"""Starts the measurements that have commands of their own, with the options that the pages of docs/ name."""

from __future__ import annotations

from dataclasses import replace

from moa_bench.runs.suites import Request


def micro(request: Request) -> None:
    """`moa-bench micro`."""
    from moa_bench.suites.micro.suite import run_micro

    run_micro(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("micro"),
        pin=request.pin,
        level=request.level,
    )


def cut(request: Request) -> None:
    """`moa-bench cut`."""
    from moa_bench.suites.cut.cut import run_cut

    run_cut(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("cut"),
        pin=request.pin,
        level=request.level,
        link="5G",
        cuts=None,
        kills=None,
        traces=request.traces,
    )


def texts(request: Request) -> None:
    """`moa-bench texts`."""
    from moa_bench.suites.cut.texts import run_texts

    run_texts(
        model=request.model,
        level=request.level,
        drafter="default",
        link="5G",
        answers=200,
        tokens=64,
        questions=request.questions,
        pin=request.pin,
        quick=request.quick,
        json_file=request.json_file("texts"),
    )


def capacity(request: Request) -> None:
    """`moa-bench capacity`."""
    from moa_bench.suites.capacity.suite import QUICK, CapacityEffort, run_capacity

    effort = QUICK if request.quick else CapacityEffort(acceptances=(0.5, 0.8))
    run_capacity(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("capacity"),
        pin=request.pin,
        effort=effort,
        level=request.level,
    )


def linked_capacity(request: Request) -> None:
    """`moa-bench capacity` over links that differ, with users who think."""
    from moa_bench.suites.capacity.suite import QUICK, CapacityEffort, run_capacity

    effort = QUICK if request.quick else CapacityEffort(users=(4, 16), acceptances=(0.8,))
    run_capacity(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("capacity-links"),
        pin=request.pin,
        effort=replace(effort, links=("RTT 0", "5G", "4G", "RTT 150 ms"), think_seconds=2.0),
        level=request.level,
    )


def simulate(request: Request) -> None:
    """`moa-bench simulate`."""
    from moa_bench.suites.simulate.suite import run_simulation

    run_simulation(quick=request.quick, json_file=request.json_file("simulate"))


def hostile(request: Request) -> None:
    """`moa-bench hostile`."""
    from moa_bench.suites.hostile.suite import run_hostile

    run_hostile(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("hostile"),
        pin=request.pin,
        level=request.level,
    )


def codecs(request: Request) -> None:
    """`moa-bench codecs`."""
    from moa_bench.suites.cut.codecs import run_codecs

    run_codecs(model=request.model, quick=request.quick, json_file=request.json_file("codecs"))


def soak(request: Request) -> None:
    """`moa-bench soak`."""
    from moa_bench.suites.hostile.soak import run_soak

    run_soak(model=request.model, quick=request.quick, json_file=request.json_file("soak"))
