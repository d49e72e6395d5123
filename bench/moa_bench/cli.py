"""`moa-bench`: the measurements. torch, gRPC and the models are imported when a measurement begins, not before."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from moa_shared.programs.entry import run_program
from moa_shared.protocol.levels import LEVELS

from moa_bench.harness.shapes import FORMATS, SHAPES
from moa_bench.runs.commands import compare, named_path, report, run, traces_option

if TYPE_CHECKING:
    from moa_bench.users.strategies import Drafts

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


drafters_option = click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=PATH|ID",
    help="Measure this checkpoint too, under that name (repeat).  [only those in the package]",
)


def shape_options(command: Command) -> Command:
    """Options of the measurements that can make a model of a real size."""
    shape = click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        help="Measure a model of this real size, of random weights, with oracles' drafts.",
    )
    stored = click.option(
        "--format", "stored", type=click.Choice(list(FORMATS)), help="How its weights are stored.  [q4_k_m]"
    )
    return shape(stored(command))


def sized_model(model: str, shape: str | None, stored: str | None) -> str:
    """The model to measure: of that shape, made now or before, or the one that was named."""
    if shape is None:
        if stored is not None:
            raise click.UsageError("--format needs --shape.")
        return model
    if model != "default":
        raise click.UsageError("--shape makes a model of its own: leave --model out.")
    from moa_shared.programs.progress import make_progress

    from moa_bench.harness.random_model import random_model

    return str(random_model(shape, stored or "q4_k_m", make_progress()))


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Measure moa on this machine.

    Without --quick and --json, results go to bench/results/ of the checkout and their tables into its docs.
    Figures depend on the machine: compare ratios within one run.
    """
    import structlog

    structlog.configure(logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))


@cli.command()
@common_options
def micro(quick: bool, json_file: Path | None, model: str, level: str, pin: bool) -> None:
    """What the parts cost: verification, draft step, first token, bytes; one thread each."""
    from moa_bench.suites.micro.suite import run_micro

    run_micro(model=model, quick=quick, json_file=json_file, pin=pin, level=level)


@cli.command()
@common_options
@questions_option
@click.option(
    "--drafter",
    "drafters",
    multiple=True,
    metavar="NAME=PATH|ID",
    help="Measure this checkpoint, a file, a folder or of the hub, under that name (repeat).  [those in the package]",
)
@click.option("--assistant", metavar="MODEL", help="A smaller model for transformers' assisted generation.")
@click.option("--peers/--no-peers", default=True, show_default=True, help="Run transformers and llama.cpp too.")
@click.option("--fetch-llama-cpp", is_flag=True, help="Install llama.cpp into the cache with npm, and nothing else.")
def single(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    questions: Path | None,
    drafters: tuple[str, ...],
    assistant: str | None,
    peers: bool,
    fetch_llama_cpp: bool,
) -> None:
    """One device: plain steps, prompt look-up and all drafters, next to transformers and llama.cpp."""
    if fetch_llama_cpp:
        from moa_shared.models.sources.cache import cache_root
        from moa_shared.programs.progress import make_progress

        from moa_bench.suites.single.peers.llama_cpp import fetch

        click.echo(fetch(cache_root(), make_progress()))
        return
    from moa_bench.suites.single.suite import run_single

    run_single(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        questions=questions,
        assistant=assistant,
        peers=peers,
    )


@cli.command()
@common_options
@shape_options
@click.option(
    "--acceptance",
    "acceptances",
    multiple=True,
    type=click.FloatRange(0, 1),
    help="Of the oracle that drafts with --shape (repeat).  [0.8]",
)
@questions_option
@click.option("--link", "links", multiple=True, metavar="NAME", help="Only this link (repeat).")
@traces_option
@drafters_option
def split(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    shape: str | None,
    stored: str | None,
    acceptances: tuple[float, ...],
    questions: Path | None,
    links: tuple[str, ...],
    traces: tuple[str, ...],
    drafters: tuple[str, ...],
) -> None:
    """Client and server over links: all ways to draft with every drafter, next to plain streaming."""
    if acceptances and shape is None:
        raise click.UsageError("--acceptance needs --shape.")
    if drafters and shape is not None:
        raise click.UsageError("No drafter has learnt random weights: leave --drafter out with --shape.")
    from moa_bench.suites.split.suite import run_split

    run_split(
        model=sized_model(model, shape, stored),
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        links=links,
        traces=traces,
        questions=questions,
        acceptances=(acceptances or (0.8,)) if shape is not None else (),
    )


@cli.command()
@common_options
@shape_options
def payoff(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    shape: str | None,
    stored: str | None,
) -> None:
    """Where drafts pay: the best way by round trip and by how many users ask at once, as a map."""
    from moa_bench.suites.payoff.suite import run_payoff

    run_payoff(
        model=sized_model(model, shape, stored),
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        sized=shape is not None,
    )


@cli.command()
@common_options
@questions_option
@drafters_option
def alone(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    questions: Path | None,
    drafters: tuple[str, ...],
) -> None:
    """What a device writes without its server, by the share of the answer that it had; and what an API client has."""
    from moa_bench.suites.alone.suite import run_alone

    run_alone(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        drafters=dict(map(named_path, drafters)),
        questions=questions,
    )


@cli.command()
@common_options
@click.option("--link", default="5G", show_default=True, metavar="NAME", help="The link that is cut; not RTT 0.")
@click.option("--cuts", type=click.IntRange(min=0), help="Cuts of the link.  [100]")
@click.option("--kills", type=click.IntRange(min=0), help="Kills of the server.  [25]")
@traces_option
def cut(
    quick: bool,
    json_file: Path | None,
    model: str,
    level: str,
    pin: bool,
    link: str,
    cuts: int | None,
    kills: int | None,
    traces: tuple[str, ...],
) -> None:
    """Whether answers stay whole, and how long they stall, when the link is cut or the server killed."""
    from moa_bench.suites.cut.cut import run_cut

    run_cut(
        model=model,
        quick=quick,
        json_file=json_file,
        pin=pin,
        level=level,
        link=link,
        cuts=cuts,
        kills=kills,
        traces=traces,
    )


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
@click.option(
    "--kernels", is_flag=True, help="Measure the kernels' products instead, by format and rows; needs no model."
)
@click.option(
    "--shape",
    "shapes",
    multiple=True,
    type=click.Choice(list(SHAPES)),
    help="Measure a model of this real size instead (may be repeated).",
)
@click.option(
    "--format",
    "formats",
    multiple=True,
    type=click.Choice(list(FORMATS)),
    help="How its random weights are stored (may be repeated).  [q4_k_m]",
)
def engine(
    quick: bool,
    json_file: Path | None,
    model: str,
    pin: bool,
    llama_cpp: Path | None,
    kernels: bool,
    shapes: tuple[str, ...],
    formats: tuple[str, ...],
) -> None:
    """The target's forward on the kernels, torch and llama.cpp, over rows and contexts; start-up and memory.

    With --shape: models of real sizes with random weights, which are made on the spot and cached.
    """
    if kernels and shapes:
        raise click.UsageError("--kernels and --shape measure different things: give one of them.")
    if kernels:
        from moa_bench.suites.engine.products import run_products

        run_products(quick=quick, json_file=json_file, pin=pin)
        return
    if formats and not shapes:
        raise click.UsageError("--format needs --shape.")
    if shapes:
        from moa_bench.suites.engine.sizes import run_sizes

        formats = formats or ("q4_k_m",)
        run_sizes(shapes=shapes, formats=formats, quick=quick, json_file=json_file, pin=pin, llama_cpp=llama_cpp)
        return
    from moa_bench.suites.engine.suite import run_engine

    run_engine(model=model, quick=quick, json_file=json_file, pin=pin, llama_cpp=llama_cpp)


@cli.command()
@short_option
@json_option
@model_option
@questions_option
@click.option("--positions", type=click.IntRange(min=1), help="Positions of answers to compare.  [2000]")
def quality(quick: bool, json_file: Path | None, model: str, questions: Path | None, positions: int | None) -> None:
    """How far int8 and bf16 are from float32: divergence, perplexity and first choices over its own answers."""
    from moa_bench.suites.engine.quality import run_quality

    run_quality(model=model, quick=quick, json_file=json_file, questions=questions, positions=positions)


@cli.command(name="same-text")
@model_option
@click.option(
    "--llama-cpp",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="FOLDER",
    help="Where npm has installed node-llama-cpp.",
)
@click.option(
    "--text", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Compare its perplexity.  [a passage]"
)
def same_text(model: str, llama_cpp: Path, text: Path | None) -> None:
    """Whether int8 writes what llama.cpp writes from the same GGUF file: greedy continuations, and perplexity."""
    from moa_bench.suites.engine.same_text import run_same_text

    run_same_text(model=model, llama_cpp=llama_cpp, text=text)


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
    from moa_bench.suites.cut.texts import run_texts

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
    from moa_bench.suites.engine.invariance.suite import run_invariance

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
@short_option
@json_option
@model_option
def codecs(quick: bool, json_file: Path | None, model: str) -> None:
    """What each memory codec costs on the wire and in acceptance."""
    from moa_bench.suites.cut.codecs import run_codecs

    run_codecs(model=model, quick=quick, json_file=json_file)


@cli.command()
@common_options
@click.option("--attack", "attacks", multiple=True, metavar="NAME", help="Only this one (may be repeated).")
def hostile(quick: bool, json_file: Path | None, model: str, level: str, pin: bool, attacks: tuple[str, ...]) -> None:
    """How one honest client's gaps between tokens and the server's memory grow next to attackers."""
    from moa_bench.suites.hostile.suite import run_hostile

    run_hostile(model=model, quick=quick, json_file=json_file, pin=pin, level=level, attacks=attacks)


@cli.command()
@common_options
@click.option("--users", multiple=True, type=click.IntRange(1, 256), help="Only so many users (repeat, ascending).")
@click.option(
    "--way",
    "kinds",
    multiple=True,
    type=click.Choice(["plain", "server", "oracle", "shipped", "auto", "everything"]),
    help="Only this way besides plain serving (repeat).",
)
@click.option("--acceptance", "acceptances", multiple=True, type=click.FloatRange(0, 1), help="Only this one (repeat).")
@click.option("--link", "links", multiple=True, metavar="NAME", help="Users take these in turn (repeat).  [loopback]")
@click.option("--prompts", type=click.IntRange(1), help="Of each user, asked in turn.  [2]")
@click.option("--seconds", type=click.FloatRange(1), help="For which they ask, in each way.  [16]")
@click.option("--tokens", type=click.IntRange(2), help="Of each answer.  [64]")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), nargs=2, metavar="SHORTEST LONGEST", help="Of prompts.  [50 4000]"
)
@click.option(
    "--think", type=click.FloatRange(0), default=0.0, metavar="SECONDS", help="After each answer, on average."
)
@shape_options
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
    shape: str | None,
    stored: str | None,
    seed: int,
) -> None:
    """Users on one server, 1 to 64: speed, gaps, first tokens and fairness, with and without devices' drafts."""
    if shape is not None and not {"plain", "oracle"}.issuperset(kinds):
        raise click.UsageError("No drafter has learnt random weights: with --shape, --way is plain or oracle.")
    from moa_bench.suites.capacity.suite import QUICK, CapacityEffort, run_capacity
    from moa_bench.users.questions import Lengths

    usual = QUICK if quick else CapacityEffort()
    effort = replace(
        usual,
        users=users or usual.users,
        kinds=kinds or (usual.kinds if shape is None else ("oracle",)),
        acceptances=acceptances or usual.acceptances,
        links=links,
        seconds=seconds or usual.seconds,
        prompts=prompts or usual.prompts,
        answer_tokens=tokens or usual.answer_tokens,
        lengths=Lengths(*prompt_tokens) if prompt_tokens else usual.lengths,
        think_seconds=think,
        seed=seed,
    )
    run_capacity(
        model=sized_model(model, shape, stored),
        quick=quick,
        json_file=json_file,
        pin=pin,
        effort=effort,
        level=level,
        sized=shape is not None,
    )


@cli.command()
@short_option
@json_option
def simulate(quick: bool, json_file: Path | None) -> None:
    """Streamed drafts, rounds and waiting over all links, in the event simulation; no model, no network."""
    from moa_bench.suites.simulate.suite import run_simulation

    run_simulation(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
def scale(quick: bool, json_file: Path | None) -> None:
    """Users a GPU, cost and bandwidth for Llama-3-8B and 70B, in virtual time; each assumption has its source."""
    from moa_bench.suites.scale.suite import run_scale

    run_scale(quick=quick, json_file=json_file)


@cli.command()
@short_option
@json_option
@model_option
def soak(quick: bool, json_file: Path | None, model: str) -> None:
    """Whether the server's memory stays as it was after 50 sessions while 500 are opened, used and left."""
    from moa_bench.suites.hostile.soak import run_soak

    run_soak(model=model, quick=quick, json_file=json_file)


for command in (run, compare, report):
    cli.add_command(command)


def main() -> None:
    """Entry point: every known error is one sentence and the catalogue's exit code."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC writes raw lines of its own between our sentences
    signal.signal(signal.SIGTERM, _end)
    run_program(cli, "moa-bench")


def _end(number: int, frame: object) -> None:
    """Servers and links must end with us, and a result that is being written be whole: one signal is enough."""
    signal.signal(number, lambda number, frame: None)
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
