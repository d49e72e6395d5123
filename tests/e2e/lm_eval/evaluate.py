"""Has lm-eval ask the questions of this folder: `evaluate.py [--limit QUESTIONS] [URL]`.

Asks the endpoint at the URL, if one is given, and transformers. Prints a line of JSON for each: `results` of the task, and
for each question the log likelihood of each choice and whether it is the greedy one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from moa_shared.models import ModelFiles, resolve
from moa_shared.programs.entry import prepare_process

HERE = Path(__file__).parent
BATCH = 2  # texts in a request


def evaluate(files: ModelFiles, url: str | None, limit: int | None) -> dict[str, Any]:
    """What lm-eval finds.

    Args:
        files: of the default model.
        limit: so many questions; None: all.
    """
    from lm_eval import evaluate as ask  # what adds the packages that are installed runs pip
    from lm_eval.tasks import TaskManager

    with tempfile.TemporaryDirectory() as folder:
        task = (HERE / "facts.yaml").read_text("utf-8").replace("FOLDER", str(HERE))
        Path(folder, "facts.yaml").write_text(task, "utf-8")
        found = ask(
            lm=_endpoint(files, url) if url is not None else _transformers(files),
            task_dict=TaskManager(include_path=folder, include_defaults=False).load(["facts"]),
            limit=limit,
            bootstrap_iters=0,
        )
    samples = sorted(found["samples"]["facts"], key=lambda sample: sample["doc_id"])
    results, likelihoods = found["results"]["facts"], [sample["filtered_resps"] for sample in samples]
    return {"results": {name: results[f"{name},none"] for name in ("acc", "acc_norm")}, "likelihoods": likelihoods}


def _endpoint(files: ModelFiles, url: str) -> Any:
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        base_url=f"{url}/v1/completions",
        model="default",
        tokenizer=str(files.tokenizer),
        tokenizer_backend="huggingface",
        num_concurrent=4,
        batch_size=BATCH,
        max_length=files.config["max_position_embeddings"],
    )


def _transformers(files: ModelFiles) -> Any:
    import torch
    from lm_eval.models.huggingface import HFLM
    from moa_shared.models import load_target_model
    from transformers import AutoTokenizer

    model = load_target_model(files, torch.float32)
    return HFLM(pretrained=model, tokenizer=AutoTokenizer.from_pretrained(str(files.tokenizer)), device="cpu")


if __name__ == "__main__":
    prepare_process()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url", nargs="?")
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    for url in dict.fromkeys((arguments.url, None)):
        print(json.dumps(evaluate(resolve("default"), url, arguments.limit)))
