"""Record run directories during training, and read them to see how a run is doing.

record = mint.watch.record("runs/x")     # any script: record.step(...), record.close()
run = mint.watch.open_run("runs/x")      # metrics, events, summary, rollouts
mint.watch.judge(run.metrics(), run.events())
"""

from mint.watch.directory.reader import NotARun, RunReader, is_run, open_run
from mint.watch.directory.record import Record, record
from mint.watch.directory.recorder import RunDirectory, RunDirectoryBusy
from mint.watch.verdict.verdict import Verdict, judge

__all__ = [
    "NotARun",
    "Record",
    "RunDirectory",
    "RunDirectoryBusy",
    "RunReader",
    "Verdict",
    "is_run",
    "judge",
    "open_run",
    "record",
]
