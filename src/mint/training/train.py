"""One job, from its settings to trained weights."""

from __future__ import annotations

from mint.rl import Run
from mint.training.analysis import Analyst
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
        analyst = Analyst(folder) if job["training"]["save_reward_analysis"] else None
        monitors = [*monitors_of(job, folder), *([analyst.see] if analyst else [])]
        try:
            for step in run:
                batch = run.sample(step)
                datums = run.train(batch, run.prefer(batch))
                try:
                    run.record(batch, datums)
                finally:  # also of a step at which a guard rail ends the run
                    for monitor in monitors:
                        monitor(batch)
            run.finish()
        finally:
            if analyst:
                analyst.write()
    return str(folder)
