"""Record a run from any script."""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from mint.watch.directory.files import BLOCK, METRICS, read_rows
from mint.watch.directory.reader import is_run
from mint.watch.directory.recorder import RunDirectory, RunDirectoryBusy

Rows = Sequence[Mapping[str, Any]]


class Record:
    """A run directory that a script writes to, step by step."""

    def __init__(self, directory: RunDirectory, config: Mapping[str, Any]) -> None:
        self.directory = directory
        self.path = directory.path
        rows = read_rows(directory.path / METRICS)
        self.last_step = max((int(row.get("step") or 0) for row in rows), default=0)
        directory.cut_tables()
        directory.cut_rollouts(self.last_step)
        directory.write_config(config)
        self._closed = False

    def step(
        self,
        metrics: Mapping[str, Any],
        rollouts: Iterable[Mapping[str, Any]] = (),
        step: int | None = None,
    ) -> None:
        """Write a step's metrics and rollouts. Without ``step``, it is the one after the last.

        A rollout is a mapping with some of the columns that docs/watch.md lists, such as prompt,
        response and reward. Metrics of rollouts are computed unless ``metrics`` has them.
        """
        number = self.last_step + 1 if step is None else int(step)
        if number < self.last_step:
            raise ValueError(
                f"Step {number} comes after step {self.last_step}; steps must not decrease. Leave "
                "out step to count automatically."
            )
        rows = _assign_places(rollouts, number)
        if rows:
            self.directory.rollouts(rows)
        self.directory.metrics({"step": number, **compute_metrics(rows), **metrics})
        if number // BLOCK > self.last_step // BLOCK:
            self.directory.merge(number - 1)
        self.last_step = number

    def event(self, kind: str, **details: Any) -> None:
        """Write an event: ``record.event("checkpoint", path=...)``."""
        self.directory.event(kind, **{"step": self.last_step, **details})

    def close(self, status: str = "finished") -> None:
        """End the run: it has finished, or was ``interrupted``, or has ``failed``."""
        if not self._closed:
            self._closed = True
            self.directory.set_status(status)
            self.directory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self.close("interrupted")
        else:
            self.close("finished" if error is None else "failed")


def record(
    path: str | Path,
    config: Mapping[str, Any] | None = None,
    resume: bool = False,
    sinks: Iterable[str] = (),
) -> Record:
    """Record a script's run in a new run directory, or resume one with ``resume``.

    When ``path`` holds a run already and ``resume`` is false, the next free name is taken:
    ``runs/x-2``. ``config`` is kept as config.yaml; its ``task`` and ``steps`` are shown.
    ``sinks`` also sends the metrics elsewhere: ``["tensorboard"]``.

    >>> import tempfile
    >>> from mint.watch.directory.reader import open_run
    >>> with record(tempfile.mkdtemp() + "/run") as rec:
    ...     rec.step({"loss": 2.5}, rollouts=[{"prompt": "3 + 5 =", "response": "8", "reward": 1}])
    >>> run = open_run(rec.path)
    >>> run.metrics()[0]["reward/mean"], run.rollouts(1)[0]["response"], run.summary()["status"]
    (1.0, '8', 'finished')
    """
    directory = RunDirectory(path) if resume else _free(Path(path))
    given = {"task": directory.path.resolve().name, **(config or {})}
    found = Record(directory, {**directory.config(), **given} if resume else given)
    directory.add_sinks(sinks)
    return found


def _free(path: Path) -> RunDirectory:
    candidates = (path.with_name(f"{path.name}-{number}") for number in count(2))
    for candidate in chain([path], candidates):
        try:
            directory = RunDirectory(candidate)
        except RunDirectoryBusy:
            continue
        if not is_run(candidate):
            break
        directory.close()
    return directory


def _assign_places(rollouts: Iterable[Mapping[str, Any]], step: int) -> list[dict[str, Any]]:
    """Add step, group and index to rollouts. Rollouts with the same prompt form a group."""
    groups: dict[Any, int] = {}
    sizes: dict[int, int] = defaultdict(int)
    rows = []
    for given in rollouts:
        prompt = str(given.get("prompt") or "")
        text = re.sub(r"\s+", " ", prompt)
        if len(text) > 200:  # many prompts begin alike: their hash tells them apart
            text = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        identity = str(given.get("identity") or text)
        group = given.get("group")
        if group is None:
            group = groups.setdefault(given.get("identity") or prompt, len(groups))
        row = {"identity": identity, "index": sizes[int(group)], **given}
        rows.append({**row, "step": step, "group": int(group)})
        sizes[int(group)] += 1
    return rows


def compute_metrics(rows: Rows) -> dict[str, float]:
    """Compute metrics from rollouts.

    >>> found = compute_metrics([{"group": 0, "reward": 1.0}, {"group": 0, "reward": 0.0}])
    >>> found["reward/mean"], found["groups/signal"]
    (0.5, 1.0)
    """
    if not rows:
        return {}
    groups: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        if row.get("reward") is not None:
            groups[int(row.get("group") or 0)].append(float(row["reward"]))
    rewards = [reward for group in groups.values() for reward in group]
    found = {"rollouts": float(len(rows))}
    if rewards:
        found["reward/mean"] = fmean(rewards)
        found["groups"] = float(len(groups))
        found["groups/signal"] = float(sum(max(g) - min(g) > 1e-8 for g in groups.values()))
    lengths = [int(row["length"]) for row in rows if row.get("length") is not None]
    if lengths:
        found["length/mean"] = fmean(lengths)
        found["length/truncated"] = fmean(bool(row.get("truncated")) for row in rows)
    components: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for name, value in (row.get("components") or {}).items():
            components[name].append(float(value))
    return found | {f"component/{name}": fmean(each) for name, each in sorted(components.items())}
