"""Real clients and servers in virtual time, over links of netsim's core: for tests, and for trying things.

Only gRPC's sockets, the threads of models, the target and the drafters are replaced. The expectation by default is that
each text is the target's own, whatever happens to links and servers; a seed decides all that happens.
"""

from moa_testing.link import Link
from moa_testing.models import Companion, Drafter, Target
from moa_testing.world import Chat, Screen, World, simulate

__all__ = ["Chat", "Companion", "Drafter", "Link", "Screen", "Target", "World", "simulate"]
