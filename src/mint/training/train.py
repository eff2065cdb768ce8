"""One job, from its settings to trained weights."""

from __future__ import annotations

from mint.rl import Run
from mint.training.compose import Composed
from mint.training.job import adapter_of, config_of, run_directory, write_job
from mint.training.monitor import monitors_of


def train(composed: Composed) -> str:
    """Train as a job says, and return its run directory.

    The service is the one that the environment names, or one that the jobs of a process share.
    """
    job = composed.job
    adapter, cfg = adapter_of(job), config_of(job)
    cfg.run_dir = run_directory(job, adapter)
    with Run(adapter, cfg) as run:
        folder = run.directory.path
        write_job(folder, job)
        monitors = monitors_of(job)
        for step in run:
            batch, datums = run.learn(step)
            try:
                run.record(batch, datums)
            finally:  # also of a step at which a guard rail ends the run
                for monitor in monitors:
                    monitor(batch)
        run.finish()
    return str(folder)
