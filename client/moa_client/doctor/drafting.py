"""The steps about this device: which drafters are here, and how fast they are."""

from __future__ import annotations

from moa.v1 import moa_pb2 as pb
from moa_shared.programs.checks import Check, si_bytes
from moa_shared.programs.progress import Progress

from moa_client.device.drafter_catalog import DrafterCatalog
from moa_client.device.drafter_choice import DrafterCandidate
from moa_client.device.fetching import bytes_of
from moa_client.device.sources import Sources, find_present, means_served, meant_drafters
from moa_client.settings import ClientSettings

WITHOUT_DRAFTER = (
    "Its text comes a token at a time: nobody drafts, and nothing is written here while it is away. "
    "See docs/drafters.md, or try --drafter lookup."
)


def find_drafters(
    settings: ClientSettings, served: pb.DescribeResponse, manifest: pb.PartManifest | None, progress: Progress
) -> tuple[Sources | None, Check]:
    """The device's half for this server, if it is here.

    Raises:
        MoaError: --model or --drafter cannot be used.
    """
    if not means_served(settings) and not meant_drafters(settings, served):
        return None, Check("drafter", "ok", f"{settings.drafter}, as wished")
    names = ", ".join(each.name for each in meant_drafters(settings, served))
    if not names:
        return None, Check("drafter", "warn", "the server has none for its model", WITHOUT_DRAFTER)
    present, wanted = find_present(settings, served, progress)
    if present is not None:
        return present, Check("drafter", "ok", f"here: {names}")
    size = bytes_of(manifest, wanted) if manifest is not None else 0
    what = si_bytes(size) if size else "it"
    return None, Check("drafter", "warn", f"not here yet: {names}", f"The first chat fetches {what} from the server.")


def measure_drafters(settings: ClientSettings, sources: Sources) -> tuple[DrafterCandidate, ...]:
    """The time of a level of each drafter, which takes seconds the first time.

    Raises:
        MoaError: a checkpoint cannot be used.
    """
    return DrafterCatalog(settings, sources).measure()
