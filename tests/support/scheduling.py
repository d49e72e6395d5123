"""What each worker of pytest-xdist runs next, and what gives way to what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# Groups and modules that wait more than they compute: for links, timers and other programs. The longest comes first.
WAITING = (
    "real target",
    "tests/cli/test_bench_cli.py",
    "ray",
    "images",
    "endpoints",
    "netsim-real-time",
    "browser",
    "client command line",
    "wheel",
)
MODEST = "tests/unit/"  # waits for nothing, so that it may itself be kept waiting
BEGUN_AT = os.getpriority(os.PRIO_PROCESS, 0)  # the greater, the later
GIVING_WAY = 5  # more than that: a quarter of a processor, where something else wants all of it


class GroupScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker a whole group, or a whole module: what its tests share is made once.

    Three workers of four take what waits as long as there is any, and the others what computes: the processors are busy
    from the first minute to the last, and seldom more is asked of them than they have.
    """

    def _split_scope(self, nodeid: str) -> str:
        group_or_test: str = super()._split_scope(nodeid)
        return group_or_test.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = sum(each is not node and self._waits(each) for each in self.nodes)
        wanted = waiting < (3 * len(self.nodes) + 3) // 4
        scope = next((scope for scope in self.workqueue if (scope in WAITING) == wanted), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _waits(self, node: WorkerController) -> bool:
        """Whether a worker still has something to run that waits."""
        units = self.assigned_work.get(node, {})
        return any(not all(units[scope].values()) for scope in WAITING if scope in units)


def rank(item: pytest.Item) -> int:
    """How early what a test belongs to begins; the least is first."""
    group = item.get_closest_marker("xdist_group")
    name = item.nodeid.partition("::")[0] if group is None else group.args[0]
    return WAITING.index(name) if name in WAITING else len(WAITING)


def give_way(item: pytest.Item) -> None:
    """Lets the processors have unit tests last: the timers of other tests, and of their programs, would be late."""
    if os.geteuid() == 0:  # nobody else can take it back
        os.setpriority(os.PRIO_PROCESS, 0, BEGUN_AT + GIVING_WAY * item.nodeid.startswith(MODEST))
