"""The cookbook's weight tools on our files, run in its environment: MODEL ADAPTER FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

from tinker_cookbook.exceptions import WeightsMergeError
from tinker_cookbook.weights import build_hf_model, build_lora_adapter


def main(model: str, adapter: str, folder: str) -> None:
    paths = {"base_model": model, "adapter_path": adapter}
    build_lora_adapter(**paths, output_path=str(Path(folder) / "adapter"))
    try:
        build_hf_model(**paths, output_path=str(Path(folder) / "merged"), dtype="float32")
    except WeightsMergeError as error:
        print(f"refused: {error}")
    else:
        print("merged")


if __name__ == "__main__":
    main(*sys.argv[1:])
