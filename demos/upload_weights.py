"""Move weights from one service to another, and continue training there.

    python demos/upload_weights.py

A run is trained for a few steps on one service. Its checkpoint is downloaded as an archive
(adapter and optimizer) and as a PEFT folder (the adapter alone, as PEFT's `save_pretrained` writes
it and PEFT and vLLM load it). Both are uploaded to a second service, which does not know the run:

    mint checkpoints download tinker://RUN/weights/NAME --output halfway.tar.gz
    mint checkpoints upload halfway.tar.gz --url http://OTHER:8000
    mint checkpoints upload adapter-folder --url http://OTHER:8000

From the archive, training continues as if the run had never moved. From the folder it continues
with the same weights and a new optimizer.

Both services are started here, unless these environment variables name them:

    MINT_BASE_URL          (started here)    the service to train on
    MINT_UPLOAD_URL        (started here)    the service to upload to
    MINT_BASE_MODEL        Qwen/Qwen3-0.6B
    MINT_LORA_RANK         16
    MINT_UPLOAD_STEPS      4                 steps before the move, and after it
    MINT_UPLOAD_LR         1e-4
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import mint
from mint import types

BASE_MODEL = os.environ.get("MINT_BASE_MODEL", "Qwen/Qwen3-0.6B")
LORA_RANK = int(os.environ.get("MINT_LORA_RANK", "16"))
STEPS = int(os.environ.get("MINT_UPLOAD_STEPS", "4"))
LEARNING_RATE = float(os.environ.get("MINT_UPLOAD_LR", "1e-4"))

TEXT = "A mint is a place where coins are made, and a plant that grows wherever it likes."
MINT = [sys.executable, "-m", "mint.cli"]


@contextmanager
def service(variable: str, home: Path) -> Iterator[str]:
    """Yield the URL in a variable, or that of a service that runs during the ``with`` block."""
    if url := os.environ.get(variable):
        yield url
        return
    command = [*MINT, "serve", "--port", "0", "--home", str(home), "--parent", str(os.getpid())]
    log = home.with_suffix(".log").open("w")
    with log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[-1]  # mint is ready at http://...
        finally:
            process.terminate()


def command(*arguments: str) -> str:
    """Run a `mint` command, and return what it prints."""
    print(f"$ mint {' '.join(arguments)}", flush=True)
    return subprocess.check_output([*MINT, *arguments], text=True).strip()


def unpack_adapter(archive: Path, folder: Path) -> None:
    """Unpack the two files of a PEFT folder from a checkpoint's archive."""
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as packed:
        for name in ("adapter_config.json", "adapter_model.safetensors"):
            (folder / name).write_bytes(packed.extractfile(name).read())


class Memorisation:
    """A training client that memorises one text."""

    def __init__(self, client: mint.TrainingClient) -> None:
        self.client = client
        tokens = client.get_tokenizer().encode(TEXT)
        inputs = {"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)}
        model_input = types.ModelInput.from_ints(tokens[:-1])
        self.datum = types.Datum(model_input=model_input, loss_fn_inputs=inputs)

    def logprobs(self) -> list[float]:
        result = self.client.forward([self.datum], "cross_entropy").result()
        return list(result.loss_fn_outputs[0]["logprobs"].data)

    def train(self, where: str) -> list[float]:
        losses = []
        for _ in range(STEPS):
            result = self.client.forward_backward([self.datum], "cross_entropy")
            self.client.optim_step(types.AdamParams(learning_rate=LEARNING_RATE)).result()
            losses.append(result.result().metrics["loss:sum"])
        print(f"{where}: loss {' '.join(f'{loss:.3f}' for loss in losses)}", flush=True)
        return losses


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        service("MINT_BASE_URL", Path(name, "first")) as first,
        service("MINT_UPLOAD_URL", Path(name, "second")) as second,
    ):
        here, there = mint.ServiceClient(base_url=first), mint.ServiceClient(base_url=second)
        original = Memorisation(here.create_lora_training_client(BASE_MODEL, LORA_RANK, seed=0))
        original.train("First service")
        path = original.client.save_state(name="halfway").result().path
        expected = original.logprobs()

        archive, adapter = Path(name, "halfway.tar.gz"), Path(name, "adapter")
        command("checkpoints", "download", path, "--output", str(archive), "--url", first)
        unpack_adapter(archive, adapter)
        moved = command("checkpoints", "upload", str(archive), "--url", second)
        weights = command("checkpoints", "upload", str(adapter), "--url", second)

        resumed = Memorisation(there.create_training_client_from_state_with_optimizer(moved))
        restarted = Memorisation(there.create_training_client_from_state(weights))
        for what, uploaded in (("archive", resumed), ("folder", restarted)):
            same = uploaded.logprobs() == expected
            print(f"Logprobs from the {what}: {'bit-equal' if same else 'DIFFERENT'}", flush=True)
        stayed = original.train("First service, continued")
        went = resumed.train("Second service, from the archive")
        restarted.train("Second service, from the folder")
        print(f"The run that moved is {'the same' if stayed == went else 'NOT the same'}.")


if __name__ == "__main__":
    main()
