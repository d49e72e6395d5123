"""`moa-server pull`."""

from __future__ import annotations

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import text
from moa_shared.programs.output import write_output


@click.command()
@click.argument("model", metavar="OWNER/NAME[@REVISION][:WHICH]", type=text)
def pull(model: str) -> None:
    """Fetch a model from the hub, or from the mirror that HF_ENDPOINT names, into the hub's own cache.

    WHICH of a repository of GGUF files: how it is stored (Q4_K_M), a file's name, or a pattern of names. Without it,
    the safetensors are fetched where there are any, else Q4_K_M. What was interrupted goes on where it was. HF_TOKEN is
    sent, HF_HOME says where the cache is. Prints the name by which the model can be served.
    """
    from moa_shared.models.library.places import hub_models
    from moa_shared.models.library.pull import HubModel
    from moa_shared.models.library.pull import pull as fetch
    from moa_shared.models.sources.hub_client import hub_cache
    from moa_shared.models.sources.packaged import PACKAGED, find_installed, not_installed
    from moa_shared.programs.progress import make_progress

    progress = make_progress()
    wanted = HubModel.parse(model)
    if model in PACKAGED:
        if find_installed(PACKAGED[model]) is None:
            raise not_installed(model, PACKAGED[model])
        progress.note(f"{model} comes in a package, which is installed: nothing is fetched.")
        write_output(f"{model}\n")
        return
    if wanted is None:
        raise ConfigError(f"{model!r} is no model of a hub.", hint="Name OWNER/NAME, or OWNER/NAME:Q4_K_M.")
    path = fetch(wanted, progress)
    write_output(next(each.name for each in hub_models(hub_cache()) if each.path == path) + "\n")
