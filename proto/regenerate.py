"""Generates moa/v1/*_pb2*.py* from moa.proto; with --check, fails where the committed files are not what it would."""

from __future__ import annotations

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

ROOT = Path(__file__).resolve().parent


def generate(target: Path) -> None:
    from grpc_tools import protoc

    status = protoc.main(
        [
            "protoc",
            f"--proto_path={ROOT}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            f"--pyi_out={target}",
            f"--grpc_python_out={target}",
            "moa/v1/moa.proto",
        ]
    )
    if status != 0:
        raise SystemExit("protoc refused moa/v1/moa.proto: see the lines above.")


def main() -> None:
    if "--check" not in sys.argv[1:]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        generate(fresh)
        stale = [
            path.relative_to(fresh)
            for path in sorted(fresh.rglob("*_pb2*"))
            if not (ROOT / path.relative_to(fresh)).exists()
            or (ROOT / path.relative_to(fresh)).read_bytes() != path.read_bytes()
        ]
    if stale:
        raise SystemExit(f"Stale generated code: {', '.join(map(str, stale))}. Run `make proto` and commit the result.")


if __name__ == "__main__":
    main()
