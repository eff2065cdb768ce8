"""One job, from its settings to trained weights."""

from mint.rl import Run
from mint.training.compose import Composed
from mint.training.job import load_adapter, make_config, run_directory, write_job
from mint.training.monitor import make_monitors


def train(composed: Composed) -> str:
    """Train as a job says, and return its run directory.

    The service is the one that the environment names, or one that the jobs of a process share.
    """
    job = composed.job
    adapter, cfg = load_adapter(job), make_config(job)
    cfg.run_dir = run_directory(job, adapter)
    with Run(adapter, cfg) as run:
        folder = run.directory.path
        write_job(folder, job)
        monitors = make_monitors(job)
        for step in run:
            batch, datums = run.learn(step)
            try:
                run.record(batch, datums)
            finally:  # also of a step at which a guard rail ends the run
                for monitor in monitors:
                    monitor(batch)
        run.finish()
    return str(folder)
