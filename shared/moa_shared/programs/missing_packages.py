"""What to install for a module that is missing: which extra brings it, and the command for this installation.

No command names moa by its name alone: no package registry has it, and there the name may be a stranger's.
"""

from __future__ import annotations

import json
import shlex
import sys
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from moa_shared.errors import ConfigError

DISTRIBUTION, DRAFTERS_WHEEL = "moa-split", "moa_split_drafters-*.whl"

EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "torch",
    "safetensors": "torch",
    "zstandard": "train",
    "ray": "cluster",
    "matplotlib": "report",
    "mcp": "mcp",
    "grpc": "bench",
    "structlog": "bench",
    "prompt_toolkit": "bench",
    "gguf": "bench",
    "regex": "bench",
    "jinja2": "bench",
    "huggingface_hub": "hub",
}


def missing_extra(error: ModuleNotFoundError) -> ConfigError | None:
    """The error for a user who lacks a module; None if it is in no extra, which is a defect."""
    module = (error.name or "").partition(".")[0]
    extra = EXTRAS.get(module)
    if extra is None:
        return None
    return ConfigError(f"This needs {module}, which is not installed.", hint=f"Install it: {install_extra(extra)}.")


def pip_install() -> str:
    """What installs into the environment of this program: its pip, or uv, which makes environments without pip."""
    python = shlex.quote(sys.executable)
    return f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"


def install_extra(extra: str) -> str:
    """The command that adds an extra of moa to this installation, from where that came from."""
    option, source = _origin()
    if not source:
        return f"{pip_install()} 'WHEEL[{extra}]', with the path of moa's wheel for WHEEL"
    whole = f"{source}[{extra}]" if source.startswith("/") else f"{DISTRIBUTION}[{extra}] @ {source}"
    return f"{pip_install()} {option}{shlex.quote(whole)}"


def install_drafters() -> str:
    """The command that adds the default model's drafters, from the checkout or release that this installation is of."""
    option, source = _origin()
    if source.startswith("/"):
        if Path(source, "drafters").is_dir():
            return f"{pip_install()} {option}{shlex.quote(f'{source}/drafters')}"
        for wheel in Path(source).parent.glob(DRAFTERS_WHEEL):
            return f"{pip_install()} {shlex.quote(str(wheel))}"
    return f"{pip_install()} {DRAFTERS_WHEEL}, with that file of the release"


def _origin() -> tuple[str, str]:
    """The option and the path or URL that moa was installed with (PEP 610); the latter is empty if it is not known."""
    # A checkout has metadata too, which say nothing of that.
    records = (each.read_text("direct_url.json") for each in distributions(name=DISTRIBUTION))
    told = json.loads(next(filter(None, records), "{}"))
    url = told.get("url", "")
    if url.startswith("file:"):
        path = url2pathname(urlsplit(url).path)
        is_editable = told.get("dir_info", {}).get("editable", False)
        return "--editable " if is_editable else "", path if Path(path).exists() else ""
    if repository := told.get("vcs_info"):
        url = f"{repository['vcs']}+{url}@{repository['commit_id']}"
    return "", url
