"""The companion that a server offers: an ordinary small model of the target's vocabulary, for devices to write with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moa.v1 import moa_pb2 as pb
from moa_shared.drafter.checkpoint.confidence_file import CONFIDENCE_FILE
from moa_shared.drafter.companion.confidence_file import measured_file
from moa_shared.drafter.companion.loading import find_companion
from moa_shared.drafter.companion.vocabulary import check_vocabulary
from moa_shared.models import ModelFiles, load_tokenizer
from moa_shared.models.library.pull import PREFIX, HubModel
from moa_shared.models.sources.cache import cache_root
from moa_shared.models.sources.files import WEIGHTS_INDEX
from moa_shared.models.weights.parts import TEXT_FILES
from moa_shared.programs.progress import Progress

from moa_server.service.fetching.offer import Offer, OfferedFile


@dataclass(frozen=True, slots=True)
class CompanionFiles:
    """A companion's files.

    Args:
        hub: where devices get the same files from the hub, pinned to the revision; empty: they are not from there.
        confidence: says how far its text can be trusted beside the target; None: that was never measured.
    """

    files: ModelFiles
    hub: str = ""
    confidence: Path | None = None

    def offer(self, root: Path) -> Offer:
        """Hashes the files. GGUF files are named by number only: their names are the operator's own.

        Args:
            root: the cache folder, where hashes are remembered.

        Raises:
            NotFoundError, OSError: one is no longer there, or cannot be read.
        """
        files, weights = self.files, self.files.weights
        identity = pb.Identity(
            target_id=files.target_id,
            target_fingerprint=bytes.fromhex(files.fingerprint),
            tokenizer_hash=bytes.fromhex(files.tokenizer_hash),
        )
        offered = []
        if self.confidence is not None:
            offered.append(OfferedFile.of(self.confidence, pb.PART_TEXT, root, CONFIDENCE_FILE))
        if weights[0].suffix == ".safetensors":
            texts = [files.folder / name for name in (*TEXT_FILES, WEIGHTS_INDEX) if (files.folder / name).is_file()]
            offered += [OfferedFile.of(path, pb.PART_TEXT, root) for path in texts]
            return Offer(identity, [*offered, *(OfferedFile.of(path, pb.PART_COMPANION, root) for path in weights)])
        return Offer(
            identity,
            offered
            + [
                OfferedFile.of(path, pb.PART_COMPANION, root, f"model-{number:05}-of-{len(weights):05}.gguf")
                for number, path in enumerate(weights, 1)
            ],
        )

    def described(self, offer: Offer | None) -> pb.Companion:
        """What clients are told of it.

        Args:
            offer: None: not ready yet.
        """
        return pb.Companion(
            name=self.files.target_id,
            fingerprint=bytes.fromhex(self.files.fingerprint),
            family=str(self.files.config["model_type"]),
            bytes=offer.bytes if offer is not None else 0,
            manifest_sha256=offer.manifest_sha256 if offer is not None else b"",
            hub=self.hub,
        )


def offered_companion(
    spec: str, target: ModelFiles, cache_dir: Path | None = None, progress: Progress | None = None
) -> CompanionFiles:
    """The companion that an operator names.

    Args:
        spec: as of `moa_shared.models.resolve`, whose other arguments these are.

    Raises:
        NotFoundError, ModelSourceError, ChecksumError, DiskFullError: there is no such model, or no device computes it.
        MismatchError: its vocabulary is not the target's.
        CheckpointError: a file that says how far it can be trusted cannot be used.
    """
    files = find_companion(spec, cache_dir, progress)
    if files.tokenizer_hash != target.tokenizer_hash:
        check_vocabulary(load_tokenizer(files), load_tokenizer(target), files.target_id, target.target_id)
    return CompanionFiles(files, _hub_name(spec, files), measured_file(files, target, cache_root(cache_dir)))


def _hub_name(spec: str, files: ModelFiles) -> str:
    """How the hub knows the model that `spec` has led to, pinned to its revision; empty: it is not from there."""
    named, snapshot = HubModel.parse(spec), files.weights[0].parent
    if named is None or Path(spec).expanduser().exists() or snapshot.parent.name != "snapshots":
        return ""
    return f"{PREFIX}{named.repo_id}@{snapshot.name}{f':{named.wanted}' if named.wanted else ''}"
