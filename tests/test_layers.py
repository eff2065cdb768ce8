"""The layers of the design: who may import whom. Arrows point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"
SDK = (
    "mint.types",
    "mint.client",
    "mint.reverse_kl",
    "mint.extended_sampling",
    "mint.embedded",
    "mint.tokenizer",
    "mint.digest",
    "mint.catalog",
    "mint.home",
)
ANYTHING = ("mint", "agent_tunix")

# What a layer may import of ours. The longest name that fits a module is its layer, and its own
# package is always allowed.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "mint": ("mint.types", "mint.client"),
    **dict.fromkeys(SDK, SDK),
    "mint.catalog": (),
    "mint.home": (),
    "mint.cli": ANYTHING,
    "mint.commands": ANYTHING,
    "mint.engine": (),
    "mint.service": ("mint.engine.messages", "mint.catalog", "mint.home"),
    "mint.rewards": (),
    "mint.rl": ("mint.watch", "mint.rewards", "mint", *SDK),
    "mint.training": ("mint.rl", "mint.watch", "mint.rewards", "mint", *SDK),
    "mint.watch": (),
    "agent_tunix": ("mint.rewards",),
}
LEARNING = {"torch", "transformers", "safetensors", "peft", "vllm"}
THE_ENGINES_OWN = {"torch", "transformers", "safetensors", "tokenizers", "numpy"}
KERNELS = "kernels"  # modules with this ending need triton, and are imported on a GPU alone


@dataclass(frozen=True)
class Import:
    """One import statement's target, and whether importing the module runs it."""

    target: str
    at_once: bool


@cache
def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def layer_of(module: str) -> str:
    fitting = [name for name in MAY_IMPORT if module == name or module.startswith(name + ".")]
    return max(fitting, key=len)


def imports_of(module: str) -> Iterator[Import]:
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    yield from imports_in(ast.parse(path.read_text()), package, at_once=True)


def imports_in(node: ast.AST, package: str, at_once: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            yield from (Import(name.name, at_once) for name in names)
        case ast.ImportFrom(module=name, level=level, names=names):
            base = package.split(".")[: len(package.split(".")) + 1 - level] if level else []
            source = ".".join([*base, *([name] if name else [])])
            for imported in names:
                submodule = f"{source}.{imported.name}"
                yield Import(submodule if submodule in modules() else source, at_once)
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case _:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            for child in ast.iter_child_nodes(node):
                yield from imports_in(child, package, at_once and not inside)


def is_below(target: str, allowed: tuple[str, ...]) -> bool:
    # The bare package is the SDK's front door, not permission for everything behind it.
    return any(
        target == name
        or (target.startswith(name + ".") and (name != "mint" or allowed is ANYTHING))
        for name in allowed
    )


@pytest.mark.parametrize("module", sorted(modules()))
def test_a_module_imports_only_its_own_layer_and_those_below(module: str) -> None:
    allowed = MAY_IMPORT[layer_of(module)]
    ours = [i.target for i in imports_of(module) if i.target.split(".")[0] in ANYTHING]
    above = [target for target in ours if not is_below(target, allowed)]
    assert above == [], f"{module} is in {layer_of(module)}, which may import {allowed}"


@pytest.mark.parametrize("module", sorted(m for m in modules() if layer_of(m) != "mint.engine"))
def test_only_the_engine_imports_torch_and_its_kind_at_once(module: str) -> None:
    heavy = {i.target.split(".")[0] for i in imports_of(module) if i.at_once} & LEARNING
    assert heavy == set()


@pytest.mark.parametrize("module", sorted(m for m in modules() if m.startswith("mint.engine")))
def test_the_engine_needs_only_torch_transformers_and_safetensors(module: str) -> None:
    allowed = {*sys.stdlib_module_names, *THE_ENGINES_OWN, "mint"}
    if module == "mint.engine.convert":
        allowed.add("gguf")  # a tool that is run by itself
    if module.endswith(KERNELS):
        allowed.add("triton")
    foreign = {i.target.split(".")[0] for i in imports_of(module) if i.at_once} - allowed
    assert foreign == set()


@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("mint.service.server", {"torch", "transformers", "tinker"}),
        ("mint.cli", {"torch", "transformers", "tinker", "fastapi"}),
        ("mint.commands.train", {"torch", "transformers", "tinker", "fastapi"}),
        ("mint.engine.worker", {"tinker", "fastapi", "sqlalchemy"}),
        ("mint.engine.messages", {"torch", "transformers"}),
        ("mint.catalog", {"torch", "transformers", "tinker"}),
    ],
)
def test_importing_a_layer_loads_nothing_of_another(module: str, unwanted: set[str]) -> None:
    code = f"import sys, {module}; print(*sorted({unwanted!r} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == ""
