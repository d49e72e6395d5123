"""Which extra of the package brings a module: what is not installed is named by what to install."""

from __future__ import annotations

from moa_shared.errors import ConfigError

EXTRAS = {
    "torch": "torch",
    "transformers": "torch",
    "accelerate": "torch",
    "safetensors": "torch",
    "zstandard": "train",
    "ray": "train-cluster",
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
    return ConfigError(f"This needs {module}, which is not installed.", hint=f"Install it: pip install 'moa[{extra}]'.")
