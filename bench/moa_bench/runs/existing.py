"""Starts the measurements that have commands of their own, with the options that the pages of docs/ name."""

from __future__ import annotations

from dataclasses import replace

from moa_bench.harness.padding import Padding
from moa_bench.runs.suites import Request

PADDING = Padding.of(50.0, None)  # of a larger target, emulated
SHORT_LINKS = ("RTT 0", "5G", "4G")  # whose round trips are no longer than a step of it


def micro(request: Request) -> None:
    """`moa-bench micro`."""
    from moa_bench.micro.suite import run_micro

    run_micro(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("micro"),
        pin=request.pin,
        level=request.level,
    )


def loop(request: Request) -> None:
    """`moa-bench loop`."""
    from moa_bench.micro.loops import run_loops

    run_loops(quick=request.quick, json_file=request.json_file("loop"), pin=request.pin)


def start(request: Request) -> None:
    """`moa-bench start`."""
    from moa_bench.micro.starts import run_starts

    run_starts(quick=request.quick, json_file=request.json_file("start"), pin=request.pin)


def surfaces(request: Request) -> None:
    """`moa-bench surfaces`."""
    from moa_bench.micro.surfaces import run_surfaces

    run_surfaces(quick=request.quick, json_file=request.json_file("surfaces"), model=request.model, pin=request.pin)


def network(request: Request) -> None:
    """`moa-bench network`."""
    _network(request, "network", None)


def padded_network(request: Request) -> None:
    """`moa-bench network --target-ms 50`, over links whose round trips are no longer than a step."""
    _network(request, "network-padded", PADDING, SHORT_LINKS)


def _network(request: Request, name: str, padding: Padding | None, links: tuple[str, ...] = ()) -> None:
    from moa_bench.network.suite import run_network

    run_network(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file(name),
        pin=request.pin,
        level=request.level,
        padding=padding,
        links=() if request.quick else links,
    )


def cut(request: Request) -> None:
    """`moa-bench cut`."""
    from moa_bench.cut.cut import run_cut

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
    from moa_bench.cut.texts import run_texts

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
    from moa_bench.capacity.suite import QUICK, CapacityEffort, run_capacity

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
    from moa_bench.capacity.suite import QUICK, CapacityEffort, run_capacity

    effort = QUICK if request.quick else CapacityEffort(users=(4, 16), acceptances=(0.8,))
    run_capacity(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("capacity-links"),
        pin=request.pin,
        effort=replace(effort, links=("RTT 0", "5G", "4G", "RTT 150 ms"), think_seconds=2.0),
        level=request.level,
    )


def padded_capacity(request: Request) -> None:
    """`moa-bench capacity --target-ms 150 --target-row-ms 7.3`."""
    from moa_bench.capacity.questions import Lengths
    from moa_bench.capacity.suite import QUICK, CapacityEffort, run_capacity

    # A step takes 150 ms: in less time than this, prompts are most of what is measured.
    full = CapacityEffort((1, 4, 8, 16), 30.0, answer_tokens=256, kinds=("oracle",), acceptances=(0.65, 0.8, 0.9))
    effort = QUICK if request.quick else full
    run_capacity(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("capacity-padded"),
        pin=request.pin,
        effort=replace(effort, lengths=Lengths(50, 200), padding=Padding.of(150.0, 7.3)),
        level=request.level,
    )


def simulate(request: Request) -> None:
    """`moa-bench simulate`."""
    from moa_bench.simulation.suite import run_simulation

    run_simulation(quick=request.quick, json_file=request.json_file("simulate"))


def crowd(request: Request) -> None:
    """`moa-bench crowd`."""
    from moa_bench.simulation.crowd_suite import run_crowd

    run_crowd(quick=request.quick, json_file=request.json_file("crowd"))


def hostile(request: Request) -> None:
    """`moa-bench hostile`."""
    from moa_bench.hostile.suite import run_hostile

    run_hostile(
        model=request.model,
        quick=request.quick,
        json_file=request.json_file("hostile"),
        pin=request.pin,
        level=request.level,
    )


def reveal(request: Request) -> None:
    """`moa-bench reveal`."""
    from moa_bench.hostile.reveal import run_reveal

    run_reveal(model=request.model, quick=request.quick, json_file=request.json_file("reveal"))


def codecs(request: Request) -> None:
    """`moa-bench codecs`."""
    from moa_bench.cut.codecs import run_codecs

    run_codecs(model=request.model, quick=request.quick, json_file=request.json_file("codecs"))


def soak(request: Request) -> None:
    """`moa-bench soak`."""
    from moa_bench.hostile.soak import run_soak

    run_soak(model=request.model, quick=request.quick, json_file=request.json_file("soak"))
