"""The cookbook's weight tools on our files, in its environment: MODEL ADAPTER FOLDER STRATEGY."""

from __future__ import annotations

import sys
from pathlib import Path

from tinker_cookbook.exceptions import WeightsMergeError
from tinker_cookbook.weights import build_hf_model, build_lora_adapter


def main(model: str, adapter: str, folder: str, strategy: str) -> None:
    paths = {"base_model": model, "adapter_path": adapter}
    build_lora_adapter(**paths, output_path=str(Path(folder) / "adapter"))
    try:
        merged = str(Path(folder) / "merged")
        build_hf_model(**paths, output_path=merged, dtype="float32", merge_strategy=strategy)
    except WeightsMergeError as error:
        print(f"refused: {error}")
    else:
        print("merged")


if __name__ == "__main__":
    main(*sys.argv[1:])
