"""What each worker of pytest-xdist runs next, and what gives way to what."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadGroupScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

# The longest of what waits more than it computes: for links, timers and other programs. The longest comes first.
WAITING = (
    "real target",
    "forked programs",  # one worker has the process from which they are forked
    "ray",
    "images",
    "endpoints",
    "netsim-real-time",
    "browser",
    "client command line",
    "wheel",
)
COMPUTING = ("tests/unit/", "tests/e2e/")  # modules that wait for little, so that they may be kept waiting themselves
BEGUN_AT = os.getpriority(os.PRIO_PROCESS, 0)  # the greater, the later
GIVING_WAY = 5  # more than that: a quarter of a processor, where something else wants all of it


class GroupScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a worker a whole group, or a whole module: what its tests share is made once.

    Three workers of four take what waits as long as there is any, and the others what computes: the processors are busy
    from the first minute to the last, and seldom have more to do than they can.
    """

    def _split_scope(self, nodeid: str) -> str:
        group_or_test: str = super()._split_scope(nodeid)
        return group_or_test.partition("::")[0]

    def _assign_work_unit(self, node: WorkerController) -> None:
        waiting = sum(each is not node and self._waits(each) for each in self.nodes)
        computes = waiting >= 3 * len(self.nodes) / 4
        scope = next((scope for scope in self.workqueue if scope.startswith(COMPUTING) == computes), None)
        if scope is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def _waits(self, node: WorkerController) -> bool:
        """Whether a worker still has something to run that waits."""
        units = self.assigned_work.get(node, {})
        return any(not scope.startswith(COMPUTING) and not all(tests.values()) for scope, tests in units.items())


def rank(item: pytest.Item) -> int:
    """How early what a test belongs to begins; the least is first."""
    name = _scope_of(item)
    return WAITING.index(name) if name in WAITING else len(WAITING)


def give_way(item: pytest.Item) -> None:
    """Lets the processors have last what computes: the timers of what waits, and of its programs, would be late."""
    if os.geteuid() == 0:  # nobody else can take it back
        os.setpriority(os.PRIO_PROCESS, 0, BEGUN_AT + GIVING_WAY * _scope_of(item).startswith(COMPUTING))


def _scope_of(item: pytest.Item) -> str:
    """The group or module that a test belongs to."""
    group = item.get_closest_marker("xdist_group")
    name: str = item.nodeid.partition("::")[0] if group is None else group.args[0]
    return name
