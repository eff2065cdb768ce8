"""Tasks from reasoning-gym's generators, with its scorers."""

from importlib import import_module
from typing import Any

from mint.rewards.answers.extraction import marked_answer
from mint.rewards.reward import FunctionReward
from mint.rewards.score import Score
from mint.rewards.tasks import Task


class GymUnavailable(RuntimeError):
    """reasoning-gym is not installed, or has no such task."""


def reasoning_gym(name: str, count: int = 100, seed: int = 0, **options: Any) -> list[Task]:
    """Return ``count`` tasks of one of reasoning-gym's generators, with its own scorer.

    The answer is what the last ``<answer>`` tag or box holds, or else the whole response.

    >>> task = reasoning_gym("chain_sum", count=1, seed=1)[0]
    >>> task.score(f"<answer>{task.metadata['answer']}</answer>").total
    1.0
    """
    try:
        gym: Any = import_module("reasoning_gym")
    except ModuleNotFoundError:
        raise GymUnavailable(
            "reasoning-gym is not installed. Type: pip install reasoning-gym"
        ) from None
    try:
        dataset = gym.create_dataset(name, size=count, seed=seed, **options)
    except ValueError as error:
        raise GymUnavailable(
            f"reasoning-gym cannot create {name!r}: {error}. Its tasks are listed in "
            "reasoning_gym.factory.DATASETS."
        ) from None

    def score(response: str, entry: Any) -> Score:
        content = marked_answer(response)
        answer = (response if content is None else content).strip()
        return Score(float(dataset.score_answer(answer=answer, entry=entry)))

    reward = FunctionReward(score, name=f"reasoning_gym:{name}")
    return [
        Task(
            entry["question"],
            reward,
            {"answer": entry["answer"], "entry": entry, "task": f"reasoning_gym:{name}"},
        )
        for entry in dataset
    ]
