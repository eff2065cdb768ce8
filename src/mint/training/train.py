"""One job, from its settings to trained weights."""

from mint.rl import Run, grpo, run_loop
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
    folders = []

    async def loop(run: Run) -> None:
        folders.append(run.directory.path)
        write_job(run.directory.path, job)
        run.monitors += make_monitors(job)
        await grpo(run)

    run_loop(loop, adapter, cfg)
    return str(folders[0])
