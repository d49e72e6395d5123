"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import structlog
from moa_shared.programs.entry import run_program
from moa_shared.protocol.levels import LEVELS

from moa_bench.harness.padding import Padding

if TYPE_CHECKING:
    from moa_bench.capacity.ways import Drafts

Command = TypeVar("Command", bound=Callable[..., Any])


model_option = click.option(
    "--model", default="default", show_default=True, help="Target: default, hub id, folder or .gguf."
)
pin_option = click.option("--pin", is_flag=True, help="Pin the server to one core and everything else to another.")
short_option = click.option("--quick", is_flag=True, help="Short answers: shows that it works.")
json_option = click.option(
    "--json", "json_file", type=click.Path(dir_okay=False, path_type=Path, allow_dash=True), metavar="FILE",
    help="Write the results there (- for standard output) instead of into the checkout's results and docs.",
)  # fmt: skip
repeats_option = click.option("--quick", is_flag=True, help="Few repeats: shows that it works, not what it costs.")


questions_option = click.option(
    "--questions", type=click.Path(path_type=Path), metavar="PATH",
    help="Ask these instead: JSON lines, or a folder of such files.",
)  # fmt: skip
level_option = click.option(
    "--level", type=click.Choice(LEVELS), default="int8", show_default=True, help="Arithmetic of the target."
)


def common_options(command: Command) -> Command:
    """Options of the measurements that repeat what they time."""
    for option in (repeats_option, json_option, model_option, level_option, pin_option):
        command = option(command)
    return command


link_option = click.option(
    "--link", "links", multiple=True, metavar="NAME", help="Only this link (may be repeated), such as 4G."
)


def padding_options(command: Command) -> Command:
    """Options of the measurements that can emulate a larger target."""
    target_ms = click.option(
        "--target-ms",
        type=click.FloatRange(min=0, min_open=True),
        metavar="T",
        help="Emulate a larger target: each forward takes this long.",
    )
    row_ms = click.option(
        "--target-row-ms",
        type=click.FloatRange(min=0),
        metavar="T",
        help="And this much for each further row.  [a 50th of --target-ms]",
    )
    return target_ms(row_ms(command))


def padding_of(target_ms: float | None, target_row_ms: float | None) -> Padding | None:
    """The larger target to emulate; None: none."""
    if target_row_ms is not None and target_ms is None:
        raise click.UsageError("--target-row-ms needs --target-ms.")
    return Padding.of(target_ms, target_row_ms)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout and their tables into its docs.
    Figures depend on the machine: compare ratios within one run.
    """


@cli.command()
@common_options
def micro(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """What the parts cost: verification, draft step, first token, bytes; one thread each."""
    from moa_bench.micro.suite import run_micro

    run_micro(model=model, quick=quick, json_file=json_file, pin=pin, level=level)


@cli.command()
@repeats_option
@json_option
@pin_option
def loop(quick: bool, json_file: Path | None, pin: bool) -> None:
    """Frames a second and punctual timers: asyncio's own event loop against uvloop; no model."""
    from moa_bench.micro.loops import run_loops

    run_loops(quick=quick, json_file=json_file, pin=pin)


@cli.command()
@common_options
@link_option
@click.option("--acceptance", "acceptances", multiple=True, type=float, help="Only this acceptance, 0 to 1.")
@click.option(
    "--drafter", metavar="default|deep|auto|PATH", default="default", show_default=True, help="The real drafter."
)
@padding_options
def network(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    links: tuple[str, ...],
    acceptances: tuple[float, ...],
    drafter: str,
    target_ms: float | None,
    target_row_ms: float | None,
) -> None:
    """Answers over emulated links, against plain streaming over the same link."""
    from moa_bench.network.suite import run_network

    run_network(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafter=drafter,
        padding=padding_of(target_ms, target_row_ms),
        links=links,
        acceptances=acceptances,
    )


@cli.command()
@common_options
@link_option
@questions_option
@padding_options
def drafting(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    links: tuple[str, ...],
    questions: Path | None,
    target_ms: float | None,
    target_row_ms: float | None,
) -> None:
    """One user: drafts by the server, the device or both, over links, and the limit without a network."""
    from moa_bench.drafting.suite import run_drafting

    run_drafting(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        padding=padding_of(target_ms, target_row_ms),
        links=links,
        questions=questions,
    )


@cli.command()
@common_options
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cuts", type=click.IntRange(min=0), help="Cuts of the link.  [200]")
@click.option("--kills", type=click.IntRange(min=0), help="Kills of the server.  [50]")
def cut(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    link: str,
    cuts: int | None,
    kills: int | None,
) -> None:
    """Whether answers stay whole, and how long they stall, when the link is cut or the server killed."""
    from moa_bench.cut.cut import run_cut

    run_cut(model=model, quick=quick, json_file=json_file, pin=pin, level=level, link=link, cuts=cuts, kills=kills)


@cli.command()
@repeats_option
@json_option
@model_option
@pin_option
@click.option(
    "--llama-cpp",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Measure llama.cpp too: where npm has installed node-llama-cpp.",
)
def engine(quick: bool, json_file: Path | None, model: str, pin: bool, llama_cpp: Path | None) -> None:
    """The target's forward on the kernels, torch and llama.cpp, over rows and contexts; start-up and memory."""
    from moa_bench.engine.suite import run_engine

    run_engine(model=model, quick=quick, json_file=json_file, pin=pin, llama_cpp=llama_cpp)


@cli.command()
@short_option
@json_option
@model_option
@questions_option
@click.option("--positions", type=click.IntRange(min=1), help="Positions of answers to compare.  [2000]")
def quality(quick: bool, json_file: Path | None, model: str, questions: Path | None, positions: int | None) -> None:
    """How far int8 and bf16 are from float32: divergence, perplexity and first choices over its own answers."""
    from moa_bench.engine.quality import run_quality

    run_quality(model=model, quick=quick, json_file=json_file, questions=questions, positions=positions)


@cli.command()
@short_option
@json_option
@model_option
@level_option
@pin_option
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut.")
@click.option("--drafter", default="default", show_default=True, help="As for moa-client chat.")
@click.option("--answers", type=click.IntRange(1), default=200, show_default=True, help="Every second one is sampled.")
@click.option("--tokens", type=click.IntRange(2), default=64, show_default=True, help="Longest answer.")
@click.option("--questions", type=click.Path(path_type=Path), help="JSON lines, or a folder of such.  [own ones]")
def texts(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    link: str,
    drafter: str,
    answers: int,
    tokens: int,
    questions: Path | None,
) -> None:
    """Whole answers over a link that is cut, against the server's own, token by token."""
    from moa_bench.cut.texts import run_texts

    run_texts(
        model=model,
        level=level,
        drafter=drafter,
        link=link,
        answers=answers,
        tokens=tokens,
        questions=questions,
        pin=pin,
        quick=quick,
        json_file=json_file,
    )


@cli.command()
@level_option
@click.option("--positions", type=click.IntRange(min=1), help="Positions of the texts to read.  [100000]")
@click.option("--threads", multiple=True, type=click.IntRange(2, 64), help="Compared with one (repeat).  [2 and 3]")
@click.option("--batches", is_flag=True, help="Only random forwards of 1 to 16 sessions, until so many positions.")
@questions_option
@short_option
@json_option
@model_option
def invariance(
    level: str,
    positions: int | None,
    threads: tuple[int, ...],
    batches: bool,
    questions: Path | None,
    quick: bool,
    json_file: Path | None,
    model: str,
) -> None:
    """Whether a row's bits depend on what is computed with it: chains, trees, chunks, batches, threads, variants."""
    from moa_bench.engine.invariance.suite import run_invariance

    run_invariance(
        model=model,
        level=level,
        positions=positions,
        threads=threads,
        batches=batches,
        questions=questions,
        quick=quick,
        json_file=json_file,
    )


@cli.command()
@model_option
@pin_option
@click.option("--rtt-ms", type=click.FloatRange(min=1), default=50.0, show_default=True, help="Fixed round trip.")
@click.option(
    "--acceptance",
    type=click.FloatRange(0, 1),
    default=0.8,
    show_default=True,
    help="Of the oracle drafter.",
)
@click.option("--tokens", type=click.IntRange(min=8), default=48, show_default=True, help="Length of each answer.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.png", help="Draw there instead.")
@click.option("--batch", is_flag=True, help="Draw the forwards of several sessions instead, in virtual time; no model.")
def timeline(
    model: str, pin: bool, rtt_ms: float, acceptance: float, tokens: int, out: Path | None, batch: bool
) -> None:
    """A picture of one answer: draft steps, forwards, and every frame between client and server."""
    if batch:
        from moa_bench.timeline.batch import run_batch

        run_batch(out)
        return
    from moa_bench.timeline.timeline import run_timeline

    run_timeline(model=model, pin=pin, rtt_ms=rtt_ms, acceptance=acceptance, tokens=tokens, out=out)


@cli.command()
@model_option
@pin_option
@click.option("--link", default="4G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cut-seconds", type=click.FloatRange(0, 600), default=4.0, show_default=True, help="How long.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.cast", help="Write there instead."
)
def record(model: str, pin: bool, link: str, cut_seconds: float, out: Path | None) -> None:
    """Record the chat program through a cut of its link, as an asciinema cast."""
    from moa_bench.cut.recording import run_recording

    run_recording(model=model, pin=pin, link=link, cut_s=cut_seconds, out=out)


@cli.command()
@short_option
@json_option
@model_option
def codecs(quick: bool, json_file: Path | None, model: str) -> None:
    """What each memory codec costs on the wire and in acceptance."""
    from moa_bench.cut.codecs import run_codecs

    run_codecs(model=model, quick=quick, json_file=json_file)


@cli.command()
@common_options
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Only this one (may be repeated).")
def hostile(quick: bool, json_file: Path | None, model: str, level: str, pin: bool, attacks: tuple[str, ...]) -> None:
    """How one honest client's gaps between tokens and the server's memory grow next to attackers."""
    from moa_bench.hostile.suite import run_hostile

    run_hostile(model=model, quick=quick, json_file=json_file, pin=pin, level=level, attacks=attacks)


@cli.command()
@common_options
@click.option("--users", multiple=True, type=click.IntRange(1, 256), help="Only so many users (repeat, ascending).")
@click.option(
    "--way",
    "kinds",
    multiple=True,
    type=click.Choice(["plain", "server", "oracle", "shipped", "auto"]),
    help="Only this way besides plain serving (repeat).",
)
@click.option("--acceptance", "acceptances", multiple=True, type=click.FloatRange(0, 1), help="Only this one (repeat).")
@click.option("--link", "links", multiple=True, metavar="NAME", help="Users take these in turn (repeat).  [loopback]")
@click.option("--prompts", type=click.IntRange(1), help="Of each user, asked in turn.  [2]")
@click.option("--seconds", type=click.FloatRange(1), help="For which they ask, in each way.  [30]")
@click.option("--tokens", type=click.IntRange(2), help="Of each answer.  [64]")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), nargs=2, metavar="SHORTEST LONGEST", help="Of prompts.  [50 4000]"
)
@click.option(
    "--think", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="After each answer, on average."
)
@padding_options
@click.option("--seed", type=int, default=0, help="Of prompts, thinking and drafts.")
def capacity(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    users: tuple[int, ...],
    kinds: tuple[Drafts, ...],
    acceptances: tuple[float, ...],
    links: tuple[str, ...],
    prompts: int | None,
    seconds: float | None,
    tokens: int | None,
    prompt_tokens: tuple[int, int] | None,
    think: float,
    target_ms: float | None,
    target_row_ms: float | None,
    seed: int,
) -> None:
    """Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without devices' drafts."""
    from moa_bench.capacity.questions import Lengths
    from moa_bench.capacity.suite import QUICK, CapacityEffort, run_capacity

    usual = QUICK if quick else CapacityEffort()
    effort = replace(
        usual,
        users=users or usual.users,
        kinds=kinds or usual.kinds,
        acceptances=acceptances or usual.acceptances,
        links=links,
        seconds=seconds or usual.seconds,
        prompts=prompts or usual.prompts,
        answer_tokens=tokens or usual.answer_tokens,
        lengths=Lengths(*prompt_tokens) if prompt_tokens else usual.lengths,
        think_seconds=think,
        seed=seed,
        padding=padding_of(target_ms, target_row_ms),
    )
    run_capacity(model=model, quick=quick, json_file=json_file, pin=pin, effort=effort, level=level)


@cli.command()
@short_option
@json_option
def simulate(quick: bool, json_file: Path | None) -> None:
    """Streamed drafts, rounds and waiting over all links, in the event simulation; no model, no network."""
    from moa_bench.simulation.suite import run_simulation

    run_simulation(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@click.option("--waiting", is_flag=True, help="Instead: what it is worth that sessions wait for drafts that are due.")
def crowd(quick: bool, json_file: Path | None, waiting: bool) -> None:
    """How many users a server serves at a speed, over the acceptance, in the event simulation: one core, a GPU."""
    from moa_bench.simulation.crowd_suite import run_crowd
    from moa_bench.simulation.waiting_suite import run_waiting

    (run_waiting if waiting else run_crowd)(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@model_option
def soak(quick: bool, json_file: Path | None, model: str) -> None:
    """Whether the server's memory stays as it was after 50 sessions while 500 are opened, used and left."""
    from moa_bench.hostile.soak import run_soak

    run_soak(model=model, quick=quick, json_file=json_file)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))  # standard output may be the result
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # servers and links must end with us
    run_program(cli, "moa-bench")


if __name__ == "__main__":
    main()
