"""Numbers of users, each in all ways."""

from contextlib import ExitStack

from moa_shared.programs.progress import make_progress

from moa_bench.harness.links import EmulatedLink, find_links, linked
from moa_bench.harness.oracle import has_no_drafter
from moa_bench.harness.stage import staged
from moa_bench.suite import Result, SuiteRun
from moa_bench.suites.capacity import CapacityEffort
from moa_bench.users.figures import UsersCell
from moa_bench.users.plan import UsersPlan
from moa_bench.users.strategies import KINDS, make_strategies


def measure(effort: CapacityEffort, run: SuiteRun) -> Result:
    links = find_links(effort.links) if effort.links else (EmulatedLink("loopback"),)
    progress = make_progress()
    with ExitStack() as stack:
        stage = stack.enter_context(staged(run.model, run.level, run.server_cores, run.own_cores))
        has_oracles = has_no_drafter(stage.files, {}) and effort.kinds == KINDS
        ways = make_strategies(("oracle",) if has_oracles else effort.kinds, effort.acceptances)
        addresses = [
            stack.enter_context(linked(link, stage.address, seed=effort.seed, cores=run.own_cores)).address
            for link in links
        ]
        plan = UsersPlan(stage, effort, addresses)
        cells: list[UsersCell] = []
        result: Result = {
            **({"name": "capacity-links"} if effort.links and not run.suffix else {}),
            "target": stage.files.target_id,
            "drafter": stage.drafter.description,
            "links": [link.name for link in links],
            "cells": cells,
        }
        with progress.task("Texts"):
            stage.runner.run(plan.write_texts())
        with progress.task("Users", len(ways) * len(effort.users)) as task:
            for users in effort.users:
                for way in ways:
                    cells.append(stage.runner.run(plan.measure(users, way)))
                    run.save(result)
                    task.advance(1)
    return result
