"""The files of one split in a folder of a Hugging Face dataset.

Two layouts are read: what ``Dataset.save_to_disk`` writes (``state.json`` or ``dataset_dict.json``
beside Arrow files), and what is downloaded from the Hub (``data/train-00000-of-00001.parquet``,
``train.jsonl``, ``train/part.csv``).
"""

import json
import re
from pathlib import Path
from typing import Any

from mint.rl.data.file_formats import READERS, DataError, setting

_DICTIONARY, _STATE = "dataset_dict.json", "state.json"
_SPLITS = ("train", "validation", "valid", "val", "dev", "test", "eval")


def files_of_split(folder: Path, split: str | None, argument: str = "split") -> list[Path]:
    """Return the data files of a split in the order of their names, by default of ``train``."""
    wanted = split or "train"
    if (folder / _DICTIONARY).is_file():
        splits = [str(name) for name in _read(folder / _DICTIONARY).get("splits", [])]
        if wanted not in splits:
            raise _no_split(folder, wanted, splits, argument)
        return _saved_files(folder / wanted)
    if (folder / _STATE).is_file():
        found = _read(folder / _STATE).get("_split")
        if split is not None and split != found:
            raise _no_split(folder, split, [str(found)] if found else [], argument)
        return _saved_files(folder)
    return _named_files(folder, split, argument)


def _saved_files(folder: Path) -> list[Path]:
    """Return the Arrow files that ``save_to_disk`` has listed, in its order."""
    state = folder / _STATE
    names = [str(each["filename"]) for each in _read(state).get("_data_files", [])]
    missing = [name for name in names if not (folder / name).is_file()]
    if missing or not names:
        what = f"lists {missing[0]}, which does not exist" if missing else "lists no data files"
        raise DataError(f"{state} {what}. Save the dataset again.")
    return [folder / name for name in names]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}. Save the dataset again.") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not what save_to_disk writes. Save the dataset again.")
    return found


def _named_files(folder: Path, split: str | None, argument: str) -> list[Path]:
    wanted = split or "train"
    files = sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in READERS
        and path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and path.name not in ("dataset_info.json", "dataset_infos.json")
    )
    if not files:
        raise DataError(
            f"{folder} has no data files ({', '.join(READERS)}). Name a file, or a folder of a "
            f"Hugging Face dataset: {setting('file', 'FILE')}."
        )
    by_split: dict[str, list[Path]] = {}
    for path in files:
        by_split.setdefault(read_split(path.relative_to(folder), wanted), []).append(path)
    if wanted not in by_split:
        if split is None and len(files) == 1 and "" in by_split:
            return files
        raise _no_split(folder, wanted, sorted(filter(None, by_split)), argument)
    found = by_split[wanted]
    folders = sorted({path.parent for path in found})
    if len(folders) > 1:
        raise DataError(
            f"{folder} has files of the split {wanted!r} in several folders: "
            f"{', '.join(map(str, folders))}. Name one of them: {setting('file', folders[0])}."
        )
    if len({path.suffix.lower() for path in found}) > 1:
        raise DataError(
            f"{folder} has the split {wanted!r} in several formats: "
            f"{', '.join(map(str, found))}. Name one file: {setting('file', found[0])}."
        )
    return found


def read_split(path: Path, wanted: str) -> str:
    """Return which split a file belongs to by its name or its folder's; "" when neither says.

    >>> read_split(Path("data/train-00000-of-00001.parquet"), "train")
    'train'
    >>> read_split(Path("main/test.jsonl"), "train"), read_split(Path("rows.csv"), "train")
    ('test', '')
    """
    for part in (path.stem, *reversed(path.parts[:-1])):
        words = re.split(r"[-_. ]", part.lower())
        for name in dict.fromkeys([wanted, *_SPLITS]):
            if name.lower() in (part.lower(), *words):
                return name
    return ""


def _no_split(folder: Path, split: str, splits: list[str], argument: str) -> DataError:
    what, hint = "its files are not named by splits", setting("file", "FILE")
    if splits:
        what, hint = f"it has {', '.join(splits)}", setting(argument, splits[0])
    return DataError(f"{folder} has no split {split!r}; {what}. Set {hint}.")
