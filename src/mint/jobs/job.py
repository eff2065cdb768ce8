"""A job: checked, and turned into the settings of the loop and a task."""

import json
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from pydantic_core import ErrorDetails

from mint.config_error import ConfigError
from mint.jobs.reward import environment_refused, load_reward, missing_from, with_reward
from mint.jobs.settings import CONFIG_GROUPS
from mint.jobs.task import TaskReference
from mint.rl.data.dataset import DatasetTask
from mint.rl.recording.directory import RUNS, find_directory, task_name
from mint.rl.rollouts.scoring import as_sample
from mint.rl.settings.config import RLConfig, short_hash
from mint.settings import reporting

JOB = "job.yaml"
_MISSING = "???"
_STAND_IN = "0"  # for a response: a number, a program, JSON
_LOOKED_AT = 100  # samples of a dataset that are checked for what a reward function needs

JobSettings = Mapping[str, Any]


def make_config(job: JobSettings) -> RLConfig:
    known = RLConfig.model_fields
    return RLConfig(**{n: each for own in job.values() for n, each in own.items() if n in known})


def load_adapter(job: JobSettings) -> Any:
    """Create the task, with the job's reward function if it has one."""
    task, training = job["task"], job["training"]
    kind: Any = TaskReference.read(task["adapter"]).load()
    if training["reward_function"] is not None:
        kind = with_reward(kind, load_reward(training["reward_function"]))
    try:
        return kind(**task["arguments"] or {})
    except ConfigError:  # its message is complete
        raise
    except (TypeError, ValueError, OSError, AttributeError, LookupError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"task.arguments: {kind.__name__} rejects them: {reason}") from error


def check(job: JobSettings) -> None:
    """Raise :class:`ConfigError` for an invalid value, without loading a task."""
    for group, own in CONFIG_GROUPS.items():
        _check_set(group, job[group])
        with reporting(own.model_fields, f"{group}.".format, partial(_hint, group)):
            own(**job[group])
    for name in ("reward_weights", "reward_weights_end"):
        if job["training"][name] == {}:
            raise ConfigError(
                f"training.{name} is empty, so every reward would be 0. Leave it out."
            )
    make_config(job)
    task, reward_function = job["task"], job["training"]["reward_function"]
    if task["adapter"] is None:
        raise ConfigError("task.adapter is not set. Type: task.adapter=my_task.py:MyAdapter")
    reference = TaskReference.read(task["adapter"])
    reference.check(task["arguments"] or {})
    if reward_function is not None:
        if reference.is_environment():
            raise environment_refused(reference.name)
        load_reward(reward_function)


def check_tasks(jobs: Iterable[JobSettings]) -> None:
    """Raise :class:`ConfigError` when a task of a sweep cannot be created, before any is run."""
    for job in {str(_what(job)): job for job in jobs}.values():
        load_adapter(job)


def check_rewards(jobs: Iterable[JobSettings]) -> None:
    """Raise :class:`ConfigError` when a reward function needs metadata that no sample has."""
    for job in {str(_what(job)): job for job in jobs}.values():
        reward_function = job["training"]["reward_function"]
        if reward_function is None:
            continue
        task = load_adapter(job)  # a separate one: the run draws the same samples again
        samples = [as_sample(each, _STAND_IN) for each in list(task.build_dataset())[:_LOOKED_AT]]
        if samples and all(missing_from(task.other_reward, each) for each in samples):
            missing = missing_from(task.other_reward, samples[0])
            names = ", ".join(sorted(map(repr, samples[0].metadata)))
            has = f"only {names}" if names else "no metadata"
            place = "the samples in build_dataset()"
            if isinstance(task, DatasetTask):
                place = "the rows of the data (task.arguments.answer_column=NAME names 'answer')"
            raise ConfigError(
                f"training.reward_function={reward_function} asks for {missing!r}, and a sample "
                f"of {job['task']['adapter']} has {has}. Add {missing!r} to {place}, or use "
                "another reward function: `mint rewards list` shows some, and "
                "training.reward_function=null selects the task's own."
            )


def _check_set(key: str, value: Any) -> None:
    if value == _MISSING:
        raise ConfigError(f"{key} is not set. Type: {key}=...")
    for name, each in value.items() if isinstance(value, Mapping) else ():
        _check_set(f"{key}.{name}", each)


def _hint(group: str, fault: ErrorDetails) -> str:
    examples = {"not_strings": f"[{fault['input']}]", "dict_type": "{a: 1}"}
    example = examples.get(fault["type"])
    return f" Write it as '{group}.{fault['loc'][0]}={example}'" if example else ""


def run_directory(job: JobSettings, adapter: Any) -> str:
    """Return the run directory of a job: as set, or of its unfinished run, or a new one."""
    named = job["logging"]["run_dir"]
    folder = Path(named or RUNS)
    make_folder(folder)
    if not named:
        return str(find_directory(f"{task_name(adapter)}-{fingerprint(job)}"))
    before = _what(read_job(folder)) if (folder / JOB).is_file() else {}
    for key, old in before.items():
        if old != (new := _what(job)[key]):
            raise ConfigError(
                f"{folder} contains a run with {key}={old} (now {new}). Resume it with the same "
                "value, or use another logging.run_dir."
            )
    return str(named)


def make_folder(path: Path) -> None:
    """Create a folder unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {path} cannot be created: {error.strerror}. Choose another: "
            "logging.run_dir=..."
        ) from None


def _what(job: JobSettings) -> dict[str, Any]:
    """Return the settings that identify a job, besides those of the loop."""
    task = job["task"]
    return {
        "task.adapter": task["adapter"],
        "task.arguments": task["arguments"],
        "training.reward_function": job["training"]["reward_function"],
    }


def fingerprint(job: JobSettings) -> str:
    """Return eight letters that identify the run, independent of its number of steps."""
    parts = [make_config(job).fingerprint(), _what(job)]
    return short_hash(json.dumps(parts, sort_keys=True, default=str))


def read_job(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / JOB).read_text()))


def write_job(folder: Path, job: JobSettings) -> None:
    (folder / JOB).write_text(as_yaml(job))


def as_yaml(job: JobSettings) -> str:
    """Return a job as ``--cfg job`` prints it."""
    return str(yaml.safe_dump(dict(job), sort_keys=False, allow_unicode=True))
