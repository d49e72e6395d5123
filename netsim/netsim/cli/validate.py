"""`netsim validate`: runs the checks and prints the table."""

from __future__ import annotations

import json
import platform
import sys
import time
from pathlib import Path

import click

from netsim.errors import NetsimError
from netsim.tun.namespaces import require_root
from netsim.validate import compare, real, virtual
from netsim.validate.check import ATTEMPTS, Check, Outcome, Plan, Verdict, carry_out

CHECKS: tuple[Check, ...] = (*virtual.CHECKS, *real.CHECKS, *compare.CHECKS)


@click.command("validate")
@click.option("--quick", is_flag=True, help="Shorter runs: about a minute and a half instead of five.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write the results to this file too.")
@click.option("--check", "names", multiple=True, metavar="NAME", help="Only this check; may be repeated.")
@click.option("--plant", is_flag=True, help="Put in each check's planted error, which the check must find.")
@click.option("--seed", default=1, show_default=True, help="Seed of the links.")
@click.option("--strict", is_flag=True, help="A machine too busy to be measured counts as a failure.")
@click.option("--list", "only_list", is_flag=True, help="List the checks, their aims and their planted errors.")
def command(
    quick: bool, json_path: Path | None, names: tuple[str, ...], plant: bool, seed: int, strict: bool, only_list: bool
) -> None:
    """Measure whether links on this machine do what they say.

    Status 1 if a check fails. Checks in real time are tried up to three times and pass with the first success (the
    number of attempts is shown); if an idle process was late too in every failed attempt, the verdict is `busy`,
    which is no failure unless --strict is given.
    """
    unknown = set(names) - {check.name for check in CHECKS}
    if unknown:
        raise NetsimError(
            f"There is no check {', '.join(sorted(unknown))}.", hint="`netsim validate --list` shows them."
        )
    chosen = [check for check in CHECKS if not names or check.name in names]
    if only_list:
        for check in chosen:
            click.echo(f"{check.name:18} {check.aim}; planted: {check.plant}")
        return
    if any(check.needs_root for check in chosen):
        require_root()
    plan = Plan(quick=quick, planted=plant, seed=seed)
    width = max(len(check.name) for check in chosen)
    outcomes = []
    for check in chosen:
        outcome = carry_out(check, plan)
        outcomes.append(outcome)
        tries = f" (attempt {outcome.attempts} of {ATTEMPTS})" if outcome.attempts > 1 else ""
        click.echo(f"{outcome.verdict:4}  {check.name:{width}}  {outcome.value}{tries}")
        click.echo(f"      {'':{width}}  aim: {check.aim}")
    if json_path is not None:
        try:
            json_path.write_text(json.dumps(document(outcomes, plan), indent=2) + "\n")
        except OSError as error:
            raise NetsimError(f"{json_path} cannot be written: {error.strerror}.") from error
    bad = {Verdict.FAIL, Verdict.BUSY} if strict else {Verdict.FAIL}
    failed = [outcome for outcome in outcomes if outcome.verdict in bad]
    busy = sum(outcome.verdict is Verdict.BUSY for outcome in outcomes)
    click.echo(f"{len(outcomes) - len(failed)} of {len(outcomes)} without failure" + (f", {busy} busy" if busy else ""))
    sys.exit(1 if failed else 0)


def document(outcomes: list[Outcome], plan: Plan) -> dict[str, object]:
    """The results for --json."""
    return {
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "kernel": platform.release(),
        "quick": plan.quick,
        "planted": plan.planted,
        "checks": [
            {
                "name": outcome.check.name,
                "aim": outcome.check.aim,
                "verdict": str(outcome.verdict),
                "measured": outcome.value,
                "attempts": outcome.attempts,
            }
            for outcome in outcomes
        ],
    }
