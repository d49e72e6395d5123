"""Gemma 3 270M, where its package is installed: tokens and text are those that llama.cpp gives for the same file."""

from pathlib import Path

import pytest
from moa_server.verifier.kernel_target import KernelTarget
from moa_shared.models import WeightReader, load_tokenizer, resolve
from moa_shared.models.files import end_of_text
from moa_shared.models.network.network import Network
from moa_shared.models.source import GEMMA_3_270M, find_installed, install_command

from tests.support.skipping import cannot_run

pytestmark = pytest.mark.long
WRITTEN = {  # by llama.cpp, greedily
    "def fibonacci(n):\n": "    if n == 0:\n        return 0\n    elif n == 1:\n        return ",
    "1, 2, 3, 4,": " 5, 6, 7, 8, 9, 10, 11, ",
}
COUNT = 24


@pytest.mark.timeout(300)
def test_the_text_is_that_of_llama_cpp(tmp_path: Path) -> None:
    if find_installed(GEMMA_3_270M) is None:
        cannot_run(f"Gemma 3 270M is not installed: {install_command(GEMMA_3_270M)}")
    files = resolve("gemma3-270m", tmp_path)
    tokenizer = load_tokenizer(files)
    assert tokenizer.encode("The capital of France\n\n  is <b>") == [818, 5279, 529, 7001, 108, 138, 511, 236743, 200]
    assert end_of_text(files, tokenizer.eos_token_id) == {1, 106}  # <eos> and <end_of_turn>
    target = KernelTarget(Network(WeightReader(files), files.config), int(files.config["max_position_embeddings"]))
    for prompt, expected in WRITTEN.items():
        held, written = target.new_cache(), []
        tokens = tokenizer.with_bos(tokenizer.encode(prompt))
        for _ in range(COUNT):
            tokens = [int(target.forward(held, tokens).logits[-1].argmax())]
            written += tokens
        assert tokenizer.decode(written) == expected
