"""Analyse the rewards of a whole run."""

import json
from pathlib import Path

from mint.rl.groups.collect import Batch
from mint.rl.recording.kinds import count_kinds
from mint.rl.recording.report import ANALYSIS, RIGHT_ANSWERS, write_report
from mint.rl.rollouts.metadata import ANSWERS, as_sample
from mint.watch.directory.files import read_rows

__all__ = ["ANALYSIS", "RIGHT_ANSWERS", "Analyst", "count_kinds"]


class Analyst:
    """Keeps the right answers as they come by, and writes the analysis of a run at its end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers = {row["identity"]: row["answer"] for row in read_rows(folder / RIGHT_ANSWERS)}

    def see(self, batch: Batch) -> None:
        """Remember the answers of a batch, for this process and for one that continues the run."""
        with open(self.folder / RIGHT_ANSWERS, "a") as file:
            for group in batch.everything:
                metadata = as_sample(group.sample, "").metadata
                answer = next((metadata[name] for name in ANSWERS if name in metadata), None)
                if group.identity not in self.answers and isinstance(answer, str | int | float):
                    self.answers[group.identity] = answer
                    row = {"identity": group.identity, "answer": answer}
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def write(self) -> None:
        """Write the report on the rewards, and say where."""
        if write_report(self.folder, self.answers):
            path = self.folder / ANALYSIS
            print(f"Reward analysis: {path}.txt, .md, .html, .json and .svg", flush=True)
