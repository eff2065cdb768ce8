"""Turns a GGUF file into a folder that ``transformers`` loads by itself.

``python -m mint.engine.convert GGUF OUT`` writes ``config.json``, one safetensors file and the
tokenizer into the new folder OUT. The weights are written in float32: that is what the file's
quantised blocks decode to without rounding a second time, and what a CPU computes in.
"""

import json
import sys
from pathlib import Path

import torch
from gguf import GGUFReader
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer

from mint.engine.model.base_model import forget_quantization

# How a family cuts text before byte pairs are merged. A GGUF file only names it, and the library
# falls back to GPT-2's cut: for SmolLM2 that joins white space to the digits that follow it.
PRE_TOKENIZERS = {
    "smollm": pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
}
# What a tokenizer_config.json needs; the rest of what the library writes is about this machine.
TOKENIZER_FIELDS = ("bos_token", "eos_token", "unk_token", "pad_token", "model_max_length")


def convert(gguf: Path, out: Path) -> None:
    """Write the model in ``gguf`` as a plain ``transformers`` folder ``out``."""
    _write_tokenizer(gguf, out)
    model = AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    )
    forget_quantization(model)
    if hasattr(model.config, "_model_name_or_path"):
        del model.config._model_name_or_path  # a path of this machine
    model.save_pretrained(out)


def _write_tokenizer(gguf: Path, out: Path) -> None:
    """Save a tokenizer that ``AutoTokenizer.from_pretrained(out)`` loads, in any version."""
    fields = GGUFReader(gguf).fields
    tokenizer = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
    if pre_tokenizer := PRE_TOKENIZERS.get(fields["tokenizer.ggml.pre"].contents()):
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizer
    architecture = fields["general.architecture"].contents()
    tokenizer.model_max_length = int(fields[f"{architecture}.context_length"].contents())
    tokenizer.save_pretrained(out)
    path = out / "tokenizer_config.json"
    written = json.loads(path.read_text())
    kept = {field: written[field] for field in TOKENIZER_FIELDS if field in written}
    kept["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(kept, indent=2) + "\n")


def main(arguments: list[str]) -> int:
    """The command line: two paths."""
    if len(arguments) != 2:
        print("usage: python -m mint.engine.convert GGUF OUT", file=sys.stderr)
        return 2
    gguf, out = (Path(argument).resolve() for argument in arguments)
    if not gguf.is_file():
        print(f"{gguf} is not a file; give the path of a .gguf file", file=sys.stderr)
        return 2
    convert(gguf, out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
