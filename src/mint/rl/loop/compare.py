"""Compare the answers of a step: from rewards to advantages to datums."""

from collections.abc import Sequence

from mint import types
from mint.rl.datums.datum import build_datums
from mint.rl.rollouts.credit import assign_advantages
from mint.rl.rollouts.rollout import Group
from mint.rl.settings.config import RLConfig


def with_signal(groups: Sequence[Group], cfg: RLConfig) -> list[Group]:
    """Return the groups in which some answer was better than another."""
    return [group for group in groups if group.kind(cfg.success_threshold) == "signal"]


def compare_answers(groups: Sequence[Group], cfg: RLConfig) -> list[types.Datum]:
    """Assign advantages from the rewards, and return the datums to train on."""
    compared = groups if cfg.compares_batch else with_signal(groups, cfg)
    assign_advantages(compared, cfg.advantage)
    every = cfg.trains_every_answer
    chosen = groups if every else compared
    return build_datums(chosen, cfg.token_weights, cfg.max_tokens, cfg.loss_fn, every)
