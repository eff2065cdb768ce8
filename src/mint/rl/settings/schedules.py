"""Schedules from the first step to the last: temperature, learning rate, reward weights."""

import math
from collections.abc import Mapping

from mint.rl.settings.config import RLConfig


def between(start: float, end: float, step: int, steps: int, shape: str) -> float:
    """Return the value at a step, from ``start`` at the first step, 1, to ``end`` at the last.

    >>> [between(1.0, 0.0, step, 3, "linear") for step in (1, 2, 3)]
    [1.0, 0.5, 0.0]
    >>> between(1.0, 0.0, 2, 3, "constant")
    1.0
    """
    if shape == "constant" or steps < 2:
        return start
    share = min(1.0, max(0.0, (step - 1) / (steps - 1)))
    if shape == "cosine":
        share = 0.5 - 0.5 * math.cos(math.pi * share)
    return (1 - share) * start + share * end


def step_of_draw(cfg: RLConfig, draw: int, version: int) -> int:
    """Return the step whose temperature and weights a draw has that starts with these weights.

    Refills and dropped groups use up draws, so that these may run ahead of the steps.
    """
    return min(draw, version + 1 + cfg.max_staleness)


def temperature_at(cfg: RLConfig, step: int) -> float:
    """Return the temperature of a step: high to explore early, low to settle later."""
    end = cfg.temperature if cfg.temperature_end is None else cfg.temperature_end
    return between(cfg.temperature, end, step, cfg.steps, cfg.temperature_schedule)


def learning_rate_at(cfg: RLConfig, step: int) -> float:
    """Return the learning rate of a step: warmed up first, then on its schedule.

    >>> cfg = RLConfig(steps=10, learning_rate=1.0, warmup_steps=4)
    >>> [learning_rate_at(cfg, step) for step in (1, 4, 5, 10)]
    [0.25, 1.0, 1.0, 1.0]
    """
    if step <= cfg.warmup_steps:
        return cfg.learning_rate * step / cfg.warmup_steps
    after, remaining = step - cfg.warmup_steps, cfg.steps - cfg.warmup_steps
    return between(cfg.learning_rate, cfg.lr_end, after, remaining, cfg.lr_schedule)


def reward_weights_at(cfg: RLConfig, step: int) -> Mapping[str, float] | None:
    """Return the weights of the reward's components at a step; None for the reward's total."""
    start, end = cfg.reward_weights, cfg.reward_weights_end
    if start is None or end is None:
        return start
    return {name: between(start[name], end[name], step, cfg.steps, "linear") for name in start}
