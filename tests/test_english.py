"""Messages and pages are written in the words that engineers use.

Each pattern was once in a message or on a page, and its replacement is what to write instead. This
finds phrases, not bad style: a reader still has to judge the rest.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("*.md", "docs/*.md", "demos/**/*.md", "benchmarks/*.md", "quickstart/**/*.md")
DOCUMENTED = ("src/**/*.py", "demos/**/*.py", "quickstart/**/*.py", "tests/**/*.py")
PROGRAMS = ("src/**/*.py", "quickstart/**/*.py", "demos/**/*.py", "conf/**/*.yaml")
AVOIDED = {
    r"somebody to (train|stay)": "create the training client and the KL reference",
    r"left the memory of": "evicted",
    r"put(s|ting)? away": "unload",
    r"numbers? that it cannot have": "contains NaN or infinity",
    r"probably not meant": "suspicious settings",
    r"between gradient and gradient": "when no gradients are accumulated",
    r"fewer than one answer": "no answer",
    r"found, checked, made": "load",
    r"whole numbers?": "integer",
    r"must be (a )?texts?": "string",
    r"(goes|go|went|going) on(?! (the|a|to)\b)": "resumes, continues",
    r"in work": "in progress",
    r"(is|was|are) made again": "recomputed, created again",
    r"(give|gives|gave|given|giving) up": "abort",
    r"(is|are|was|were|be) told": "reported",
    r"brings? home": "a plain verb",
    r"say which(?=[:.])": "name a",
    r"anew": "again",
    r"(?<!here )is no (?!longer|more|faster|slower|better|worse|need)[a-z]+": "is not a",
    r"best-paid": "with the highest rewards",
    r"nobody|everybody|anybody|somebody": "no client, every client, anyone",
    r"(cannot|can) prove": "verify",
    r"of real size": "full-size",
}


def pages() -> Iterator[tuple[str, str]]:
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            yield str(path.relative_to(ROOT)), re.sub(r"\s+", " ", path.read_text())


def messages() -> Iterator[tuple[str, str]]:
    """The texts of programs that people read: literals of several words, but no docstrings."""
    for pattern in PROGRAMS:
        for path in sorted(ROOT.glob(pattern)):
            name = str(path.relative_to(ROOT))
            if path.suffix != ".py":
                yield name, path.read_text()
                continue
            tree = ast.parse(path.read_text())
            prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
            for node in ast.walk(tree):
                if isinstance(node, ast.JoinedStr):
                    text = "".join(_piece(value) for value in node.values)
                elif isinstance(node, ast.Constant) and id(node) not in prose:
                    text = node.value if isinstance(node.value, str) else ""
                else:
                    continue
                if text.count(" ") > 1:
                    yield f"{name}:{node.lineno}", text


def docstrings() -> Iterator[tuple[str, str]]:
    """The docstrings of the code, the demos and the tests, and the names of tests as sentences."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for path in sorted(file for pattern in DOCUMENTED for file in ROOT.glob(pattern)):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, kinds):
                name, text = getattr(node, "name", ""), ast.get_docstring(node) or ""
                sentence = name.replace("_", " ") if name.startswith("test_") else ""
                yield f"{path.relative_to(ROOT)} {name}", re.sub(r"\s+", " ", f"{sentence}. {text}")


def _piece(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else "{}"


@pytest.mark.parametrize("source", [pages, messages, docstrings])
def test_no_text_has_an_avoided_phrase(source: object) -> None:
    assert callable(source)
    avoided = {re.compile(rf"\b({old})\b", re.I): new for old, new in AVOIDED.items()}
    found = [
        f"{place}: {match[0]!r} (write: {new})"
        for place, text in source()
        for pattern, new in avoided.items()
        for match in pattern.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_one_class_has_a_name() -> None:
    """Private classes may share one, and so may a product of torch and its C kernel."""
    found = defaultdict(list)
    for path in sorted(ROOT.glob("src/mint/**/*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    shared = {name: places for name, places in found.items() if len(places) > 1}
    assert shared.keys() <= {"LoraProduct"}, shared


def test_files_named_on_pages_exist() -> None:
    """A path in backquotes with a folder in it, from the root, the package or the engine."""
    bases = ("", "src", "src/mint", "src/mint/engine")
    examples = {"path/to/file.py", "conf/experiment/mine.yaml"}
    missing = [
        f"{page}: {name}"
        for page, text in pages()
        if page != "CHANGELOG.md"
        for name in re.findall(r"`([\w.]+(?:/[\w.]+)+\.(?:py|sh|c|yaml|md))`", text)
        if name not in examples and not any((ROOT / base / name).exists() for base in bases)
    ]
    assert not missing, "\n".join(missing)
