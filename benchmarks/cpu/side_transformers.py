"""transformers' side: ``generate``, and forward and backward with a PEFT adapter.

It gets what is fastest for it: no logprobs, one left-padded batch, logits of the answers alone,
the micro-batch that a trial finds best. ``merged`` samples with the adapter merged into the
weights, which costs nothing a token and must be repeated after every update; that is not timed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from benchmarks.cpu.answering import Handler, serve, versions
from benchmarks.cpu.workload import SEED, Workload

MICRO_BATCHES = (4, 8, 16, 48)
ASSUMED_LOGPROB = -5.0


class Side:
    """A model with an adapter, and the padded prompts."""

    def __init__(self, work: Workload, dtype: str) -> None:
        torch.manual_seed(SEED)
        self.work = work
        base = AutoModelForCausalLM.from_pretrained(work.model, dtype=getattr(torch, dtype))
        base.generation_config.eos_token_id = None  # nothing ends an answer early
        base.generation_config.pad_token_id = 0
        self.model = PeftModel.from_pretrained(
            base, work.adapter, is_trainable=True, autocast_adapter_dtype=False
        ).to(getattr(torch, dtype))
        self.prompts, self.prompt_mask = pad_left(work.prompts_P_T)
        pairs = zip(work.prompts_P_T, work.answers_P_G_T, strict=True)
        full = [prompt + answer for prompt, group in pairs for answer in group]
        self.full, self.full_mask = pad_left(full)
        self.answer_tokens = len(work.answers_P_G_T[0][0])
        self.micro_batch: int | None = None

    def sample(self, tokens: int, merged: bool) -> dict[str, Any]:
        """Answer every prompt with a group."""
        self.model.eval()
        with self._merged(merged), torch.inference_mode():
            start = time.perf_counter()
            full = self.model.generate(
                input_ids=self.prompts,
                attention_mask=self.prompt_mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=tokens,
                num_return_sequences=self.work.group,
            )
            seconds = time.perf_counter() - start
        new = full.shape[1] - self.prompts.shape[1]
        if full.shape[0] != self.work.answers or new != tokens:
            raise RuntimeError(f"generate gave {full.shape[0]} answers of {new} tokens")
        return {"seconds": seconds, "tokens": self.work.answers * tokens}

    @contextmanager
    def _merged(self, wanted: bool) -> Iterator[None]:
        if wanted:
            self.model.merge_adapter()
        try:
            yield
        finally:
            if wanted:
                self.model.unmerge_adapter()

    def train(self) -> dict[str, Any]:
        """Add the gradients of importance sampling on the groups."""
        if self.micro_batch is None:
            self.micro_batch = self._find_micro_batch()
        seconds = self._train(self.micro_batch)
        return {
            "seconds": seconds,
            "tokens": self.work.train_tokens,
            "micro_batch": self.micro_batch,
        }

    def _train(self, micro_batch: int) -> float:
        self.model.train()
        self.model.zero_grad()
        start = time.perf_counter()
        for first in range(0, len(self.full), micro_batch):
            rows = slice(first, first + micro_batch)
            self._loss(self.full[rows], self.full_mask[rows], first).backward()
        return time.perf_counter() - start

    def _loss(self, tokens: Tensor, mask: Tensor, first: int) -> Tensor:
        kept = self.answer_tokens + 1
        logits = self.model(
            input_ids=tokens, attention_mask=mask, use_cache=False, logits_to_keep=kept
        ).logits[:, :-1]
        targets = tokens[:, -self.answer_tokens :, None]
        logprobs = logits.float().log_softmax(-1).gather(-1, targets)
        signs = torch.arange(first, first + len(tokens)) % self.work.group % 2 * -2.0 + 1
        return -(signs[:, None, None] * (logprobs - ASSUMED_LOGPROB).exp()).sum()

    def _find_micro_batch(self) -> int:
        """Return the size of a backward pass that is fastest, in the second of two tries."""
        times = {}
        for size in {min(size, len(self.full)) for size in MICRO_BATCHES}:
            self._train(size)
            times[size] = self._train(size)
        return min(times, key=lambda size: times[size])


def pad_left(rows: list[list[int]]) -> tuple[Tensor, Tensor]:
    """Return the rows as one tensor that ends where they end, and where they are in it."""
    width = max(map(len, rows))
    tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    return tokens, mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    options = parser.parse_args()

    def prepare() -> tuple[dict[str, Handler], dict[str, Any]]:
        side = Side(Workload.load(options.workload), options.dtype)
        side.sample(2, merged=False)
        return {"sample": side.sample, "train": side.train}, versions(
            "transformers", "peft", "torch"
        )

    serve(prepare)


if __name__ == "__main__":
    main()
