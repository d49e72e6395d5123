"""The commands that measure: `netsim record` and `netsim serve` a real link, `netsim validate` our own."""

from __future__ import annotations

import json
import signal
import socket
import sys
from pathlib import Path
from statistics import fmean, median
from types import FrameType

import click
import yaml

from netsim.backends.tun.namespaces import require_root
from netsim.cli.options import PATH
from netsim.errors import MeasurementError, NetsimError
from netsim.measure import far_end, near_end
from netsim.measure.outcome import to_profile, to_trace
from netsim.profile import catalogue
from netsim.run.address import Address, listen, parse_address
from netsim.trace.csv_format import format_csv
from netsim.validate.check import ATTEMPTS, CheckOutcome, CheckPlan, CheckVerdict, carry_out
from netsim.validate.checks import document, find_checks
from netsim.validate.statistics import scipy_stats


@click.command("record")
@click.argument("server", metavar="HOST:PORT")
@click.argument("target", type=PATH)
@click.option(
    "--seconds", type=click.FloatRange(min=1), default=10.0, show_default=True, help="Round trips on the idle link."
)
@click.option(
    "--load", "load_s", type=click.FloatRange(min=0), default=5.0, show_default=True,
    help="Then saturate it for so many seconds.",
)  # fmt: skip
def record(server: str, target: Path, seconds: float, load_s: float) -> None:
    """Measure a real link to a server into a profile or a trace.

    TARGET is a profile if it ends in .yaml, a trace if it ends in .csv. Against `netsim serve`, round trips, rates and
    retransmissions are measured; against any other server, only the time that connecting takes.
    """
    if target.suffix not in (".yaml", ".csv"):
        raise MeasurementError(f"{target} ends in neither .yaml nor .csv.", hint="A profile is .yaml, a trace .csv.")
    seen = near_end.measure(parse_address(server, "server"), seconds, load_s)
    if not seen.far_end:
        click.echo("netsim: the server is not `netsim serve`: only round trips were measured", err=True)
    if target.suffix == ".yaml":
        text = yaml.safe_dump(to_profile(seen, target.stem, server), sort_keys=False, width=110)
        catalogue.parse(text, str(target))  # what we write, we can read
    else:
        text = format_csv(to_trace(seen))
    try:
        target.write_text(text)
    except OSError as error:
        raise MeasurementError(f"{target} cannot be written: {error.strerror}.") from error
    parts = [f"{len(seen.round_trips_ms)} round trips, median {median(ms for _, ms in seen.round_trips_ms):.1f} ms"]
    for name, rates in (("down", seen.down_mbps), ("up", seen.up_mbps)):
        if rates:
            parts.append(f"{name} {fmean(rate for _, rate in rates):.1f} Mbit/s")
    click.echo(", ".join(parts))
    click.echo(f"written to {target}")


@click.command("serve")
@click.option("--listen", "at", default=":7000", show_default=True, metavar="[HOST]:PORT", help="Where to listen.")
def serve(at: str) -> None:
    """Be the far end that `record` measures against."""
    listener = listen(parse_address(at, "--listen"))

    def end(number: int, frame: FrameType | None) -> None:
        listener.shutdown(socket.SHUT_RDWR)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end)
    click.echo(f"netsim serves measurements on {Address(*listener.getsockname()[:2])}")
    far_end.serve(listener)


@click.command("validate")
@click.option("--quick", is_flag=True, help="Shorter runs: about a minute and a half instead of five.")
@click.option("--json", "json_path", type=PATH, help="Write the results to this file too.")
@click.option("--check", "names", multiple=True, metavar="NAME", help="Only this check; may be repeated.")
@click.option("--plant", is_flag=True, help="Plant each check's error, which the check must find.")
@click.option("--seed", default=1, show_default=True, help="Seed of the links.")
@click.option("--strict", is_flag=True, help="Count a machine that is too busy to be measured as a failure.")
@click.option("--list", "only_list", is_flag=True, help="List the checks, their aims and their planted errors.")
def validate(
    quick: bool, json_path: Path | None, names: tuple[str, ...], plant: bool, seed: int, strict: bool, only_list: bool
) -> None:
    """Measure whether links on this machine do what they say.

    The status is 1 if a check fails. Checks in real time are tried up to three times and pass with the first success
    (the number of attempts is shown). If an idle process was late too in every failed attempt, the verdict is `busy`,
    which is not a failure unless --strict is given. Needs scipy: pip install 'moa[netsim-validate]'.
    """
    checks = find_checks(names)
    if only_list:
        for check in checks:
            click.echo(f"{check.name:18} {check.aim}; planted: {check.plant}")
        return
    scipy_stats()  # before the first check: it would be missed minutes later
    if any(check.needs_root for check in checks):
        require_root()
    plan = CheckPlan(quick=quick, planted=plant, seed=seed)
    width = max(len(check.name) for check in checks)
    outcomes = []
    for check in checks:
        outcomes.append(carry_out(check, plan))
        _print_outcome(outcomes[-1], width)
    if json_path is not None:
        try:
            json_path.write_text(json.dumps(document(outcomes, plan), indent=2) + "\n")
        except OSError as error:
            raise NetsimError(f"{json_path} cannot be written: {error.strerror}.") from error
    bad = {CheckVerdict.FAIL, CheckVerdict.BUSY} if strict else {CheckVerdict.FAIL}
    failed = [outcome for outcome in outcomes if outcome.verdict in bad]
    busy = sum(outcome.verdict is CheckVerdict.BUSY for outcome in outcomes)
    click.echo(f"{len(outcomes) - len(failed)} of {len(outcomes)} without failure" + (f", {busy} busy" if busy else ""))
    sys.exit(1 if failed else 0)


def _print_outcome(outcome: CheckOutcome, width: int) -> None:
    tries = f" (attempt {outcome.attempts} of {ATTEMPTS})" if outcome.attempts > 1 else ""
    click.echo(f"{outcome.verdict:4}  {outcome.check.name:{width}}  {outcome.value}{tries}")
    click.echo(f"      {'':{width}}  aim: {outcome.check.aim}")
