"""The layers of the design: who may import whom. Arrows point down only."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"
SDK = (
    "mint.types",
    "mint.client",
    "mint.reverse_kl",
    "mint.extensions",
    "mint.embedded",
    "mint.tokenizer",
    "mint.catalog",
    "mint.home",
)
SETTINGS = ("mint.config_error", "mint.settings")
ANYTHING = ("mint", "agent_tunix")

# What a layer may import of ours. The longest name that fits a module is its layer, and its own
# package is always allowed.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "mint": ("mint.types", "mint.client"),
    **dict.fromkeys(SDK, SDK),
    "mint.catalog": (),
    "mint.home": (),
    "mint.config_error": (),
    "mint.settings": ("mint.config_error",),
    "mint.cli": ANYTHING,
    "mint.commands": ANYTHING,
    "mint.engine": (),
    "mint.service": (
        "mint.engine.messages",
        "mint.engine.channel",
        "mint.catalog",
        "mint.home",
        *SETTINGS,
    ),
    "mint.rewards": (),
    "mint.rl": ("mint.watch", "mint.rewards", "mint", *SDK, *SETTINGS),
    "mint.jobs": ("mint.rl", "mint.watch", "mint.rewards", "mint", *SDK, *SETTINGS),
    "mint.watch": (),
    "agent_tunix": ("mint.rewards",),
}

# The folders of a package, from the bottom up: each may import those before it.
ORDER: dict[str, tuple[str, ...]] = {
    "mint.service": (
        *("background", "errors", "files", "idleness", "turns", "wire", "admin"),
        *("store", "access"),
        *("results", "futures", "engines", "checkpoints", "shared_components"),
        *("checkpoints.transfers", "sampling", "runs", "text", "service", "api", "server"),
    ),
    "mint.rl": (
        *("algorithms", "settings", "task", "messages", "runtime", "rollouts", "agents", "datums"),
        *("data", "sampling", "evaluation", "recording", "guards", "loop"),
    ),
    "mint.rewards": (
        *("score", "signature", "registry", "reward", "answers", "shaping"),
        *("code", "judges"),
    ),
    "mint.watch": ("durations", "verdict", "sinks", "terminal", "directory", "dashboard"),
    "mint.commands": ("shared", "weights", "service", "training", "bench"),
}
ALSO = {
    "mint.service.api": ("mint.watch",),  # the dashboard
    "mint.rewards.registry": ("mint.rewards.reward",),  # a name stands for a reward made of others
}
NUMBERS = {"numpy", "math", "statistics"}
LEARNING = {"torch", "transformers", "safetensors", "peft", "vllm"}
THE_ENGINES_OWN = {"torch", "transformers", "safetensors", "tokenizers", "numpy"}
LOADS_NONE_OF = {
    "mint.service.server": {"torch", "transformers", "tinker"},
    "mint.cli": {"torch", "transformers", "tinker", "fastapi", "hydra", "pydantic"},
    "mint.commands.training.train": {"torch", "transformers", "tinker", "fastapi"},
    "mint.engine.worker": {"tinker", "fastapi", "sqlalchemy"},
    "mint.engine.messages": {"torch", "transformers"},
    "mint.engine.channel": {"torch", "transformers"},
    "mint.catalog": {"torch", "transformers", "tinker"},
}
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


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return tuple(imports_in(ast.parse(path.read_text()), package, at_once=True))


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
        or (target.startswith(name + ".") and (name != "mint" or "agent_tunix" in allowed))
        for name in allowed
    )


def ours(module: str) -> list[str]:
    return [i.target for i in imports_of(module) if i.target.split(".")[0] in ANYTHING]


def place_of(module: str, package: str) -> int | None:
    """Where a module stands in the order of its package, by the longest name that fits."""
    inside = module[len(package) + 1 :]
    fitting = [n for n in ORDER[package] if inside == n or inside.startswith(n + ".")]
    return ORDER[package].index(max(fitting, key=len)) if fitting else None


def test_arrows_point_down() -> None:
    wrong = []
    for module in modules():
        layer = layer_of(module)
        allowed = MAY_IMPORT[layer]
        for name in (n for n in ALSO if module.startswith(n)):
            allowed = (*allowed, *ALSO[name])
        own = () if layer == "mint" else (layer,)
        wrong += [f"{module} imports {t}" for t in ours(module) if not is_below(t, allowed + own)]
    assert wrong == []


def test_folders_import_only_those_below_them() -> None:
    wrong = []
    for package, module in itertools.product(ORDER, modules()):
        if not module.startswith(package + ".") or (place := place_of(module, package)) is None:
            continue
        for target in ours(module):
            above = place_of(target, package) if target.startswith(package + ".") else None
            if above is not None and above > place and target not in ALSO.get(module, ()):
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_every_folder_has_a_place_and_says_what_it_is_for() -> None:
    folders = [m for m, path in modules().items() if path.name == "__init__.py"]
    top = [m for m in folders if m.rpartition(".")[0] in ORDER]
    assert [m for m in top if place_of(m, m.rpartition(".")[0]) is None] == []
    assert [m for m in folders if not ast.get_docstring(ast.parse(modules()[m].read_text()))] == []


def test_the_algorithms_are_only_numbers() -> None:
    package = "mint.rl.algorithms"
    allowed = {*NUMBERS, "__future__", "collections", "dataclasses", "itertools", "typing"}
    foreign = {
        f"{module} imports {i.target}"
        for module in modules()
        if module.startswith(package)
        for i in imports_of(module)
        if i.target.split(".")[0] not in allowed and not i.target.startswith(package)
    }
    assert foreign == set()


def test_the_api_does_not_reach_into_the_engine() -> None:
    api = [m for m in modules() if m.startswith("mint.service.api")]
    reached = {t for m in api for t in ours(m) if t.startswith("mint.engine")}
    assert reached <= {"mint.engine.messages"}  # the plain data that the channel carries


def test_only_the_engine_imports_torch_and_its_kind_at_once() -> None:
    others = [m for m in modules() if layer_of(m) != "mint.engine"]
    heavy = {
        f"{m} imports {i.target}"
        for m in others
        for i in imports_of(m)
        if i.at_once and i.target.split(".")[0] in LEARNING
    }
    assert heavy == set()


def test_the_engine_needs_only_torch_transformers_and_safetensors() -> None:
    known = {*sys.stdlib_module_names, *THE_ENGINES_OWN, "mint"}
    foreign = set()
    for module in (m for m in modules() if m.startswith("mint.engine")):
        allowed = known | ({"gguf"} if module == "mint.engine.convert" else set())  # run by itself
        allowed |= {"triton"} if module.endswith(KERNELS) else set()
        found = {i.target.split(".")[0] for i in imports_of(module) if i.at_once} - allowed
        foreign |= {f"{module} imports {name}" for name in found}
    assert foreign == set()


def test_importing_a_layer_loads_nothing_of_another() -> None:
    wrong = {module: loaded_by(module) & unwanted for module, unwanted in LOADS_NONE_OF.items()}
    assert not any(wrong.values()), wrong


def loaded_by(module: str) -> set[str]:
    """The modules that a new interpreter has after one import."""
    code = f"import sys, {module}; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    return set(result.stdout.split())
