"""One attack on a server, until it is ended: `python -m moa_bench.suites.hostile.attacker ADDRESS NAME`."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import click

from moa_bench.suites.hostile.attacks import ATTACKS, NEIGHBOUR, keep_attacking
from moa_bench.suites.hostile.victim import Victim

NICENESS = 19  # the attacker's own work must not be what the honest client on the same core waits for


async def attack(address: str, name: str, ready: Callable[[], object]) -> None:
    """Attacks until cancelled; says when it begins."""
    chosen = next(attack for attack in (*ATTACKS, NEIGHBOUR) if attack.name == name)
    victim = Victim(address)
    await victim.describe()
    ready()
    await keep_attacking(chosen.run, victim)


@click.command()
@click.argument("address")
@click.argument("name")
@click.option("--ready-file", type=click.Path(path_type=Path), required=True)
def main(address: str, name: str, ready_file: Path) -> None:
    """An attacker for `moa-bench`, not for use."""
    os.nice(NICENESS)
    asyncio.run(attack(address, name, lambda: ready_file.write_text(f"{address}\n", "utf-8")))


if __name__ == "__main__":
    main()
