"""`moa-server models`, `drafters`, `pull` and `fetch`."""

import sys
from pathlib import Path

import click
from moa_shared.errors import ConfigError
from moa_shared.programs.command_line import text
from moa_shared.programs.entry import write_output

cache_dir_option = click.option(
    "--cache-dir", metavar="FOLDER", type=click.Path(path_type=Path), help="Where models are kept.  [MOA_CACHE_DIR]"
)


@click.command()
@click.argument("folders", metavar="[FOLDER]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--all", "catalogue", is_flag=True, help="Instead, list those that a name fetches, and which fit here.")
@click.option("--cache-dir", hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(folders: tuple[Path, ...], catalogue: bool, cache_dir: str | None, as_json: bool) -> None:
    """List the models on this machine: in the hub's cache, in ollama's and LM Studio's folders, and below each FOLDER.

    `moa-server serve` takes their names. Only headers are read; a file that is broken is listed with what is wrong.
    """
    if cache_dir is not None:
        hint = "Leave it out: moa 0.2.0 was the last that had it."
        raise ConfigError("`moa-server models` keeps nothing, and has no --cache-dir.", hint=hint)
    if catalogue:
        if folders:
            raise ConfigError("--all lists no folders.", hint="Leave one of the two out.")
        from moa_server.catalogue import catalogue_json, catalogue_text, list_catalogue

        write_output((catalogue_json if as_json else catalogue_text)(list_catalogue()))
        return
    from moa_shared.programs.progress import Progress, make_progress

    from moa_server.listing import list_models, models_json, models_text

    progress = make_progress() if sys.stderr.isatty() else Progress()
    listed = list_models(folders, progress)
    write_output((models_json if as_json else models_text)(listed))


@click.command()
@click.argument("model", default="default", type=text)
@cache_dir_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def drafters(model: str, cache_dir: Path | None, as_json: bool) -> None:
    """List the drafters for MODEL: those that come with moa, those in the hub's cache, and published ones.

    MODEL is named as for `moa-server serve`; nothing is fetched. Published drafters are those that this version of moa
    knows; `--drafter` of `moa-server serve` takes any other one by its id too.
    """
    from moa_shared.programs.progress import Progress, make_progress

    from moa_server.listing import drafters_json, drafters_text, list_drafters

    progress = make_progress() if sys.stderr.isatty() else Progress()
    write_output((drafters_json if as_json else drafters_text)(list_drafters(model, cache_dir, progress)))


@click.command()
@click.argument("model", metavar="NAME|OWNER/NAME[@REVISION][:WHICH]", type=text)
def pull(model: str) -> None:
    """Fetch a model from the hub, or from the mirror that HF_ENDPOINT names, into the hub's own cache.

    NAME: of `moa-server models --all`, with the drafter and the companion that go with it. WHICH of a repository of
    GGUF files: how it is stored (Q4_K_M), or a file's name. Without it, the safetensors are fetched where there are
    any, else Q4_K_M. A file that was interrupted continues. HF_TOKEN is sent, HF_HOME says where the cache is. Prints
    the name by which the model can be served.
    """
    from moa_shared.models.catalogue import expand, find_listed
    from moa_shared.models.hub import HubModel, hub_cache
    from moa_shared.models.hub import pull as fetch
    from moa_shared.models.source import PACKAGED, find_installed, hub_models, not_installed
    from moa_shared.programs.progress import make_progress

    progress = make_progress()
    wanted = HubModel.parse(expand(model))
    if model in PACKAGED:
        if find_installed(PACKAGED[model]) is None:
            raise not_installed(model, PACKAGED[model])
        progress.note(f"{model} comes in a package, which is installed: nothing is fetched.")
        write_output(f"{model}\n")
        return
    if wanted is None:
        hint = "Name OWNER/NAME, OWNER/NAME:Q4_K_M, or one of `moa-server models --all`."
        raise ConfigError(f"{model!r} is no model of a hub.", hint=hint)
    path = fetch(wanted, progress)
    if (listed := find_listed(model)) is not None:
        from moa_server.catalogue import fetch_beside

        fetch_beside(listed, progress)
        write_output(f"{listed.name}\n")
        return
    write_output(next(each.name for each in hub_models(hub_cache()) if each.path == path) + "\n")


@click.command()
@click.argument("model", default="default")
@cache_dir_option
def fetch(model: str, cache_dir: Path | None) -> None:
    """Fetch and convert MODEL now, so that serving it starts from the cache. Prints the folder."""
    from moa_shared.models import resolve
    from moa_shared.programs.progress import make_progress

    click.echo(resolve(model, cache_dir, make_progress()).folder)
