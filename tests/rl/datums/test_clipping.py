"""The share of clipped tokens, counted one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mint.engine.training.losses import LOSSES
from mint.rl import RLConfig
from mint.rl.algorithms.importance import BOUNDS
from mint.rl.datums.datum import make_datum, replaced, with_ratio_mask
from mint.rl.datums.ratios import clipped_share
from mint.rl.rollouts.rollout import Segment


def test_the_bounds_are_those_of_the_service() -> None:
    for name, bounds in BOUNDS.items():
        own = LOSSES[name].settings
        assert bounds == (own["clip_low_threshold"], own["clip_high_threshold"])


RATIOS = [0.5, 0.9, 1.1, 1.25, 5.0]
CASES = [
    ("ppo", 1.0, {}, 2 / 5),  # above 1.2
    ("ppo", -1.0, {}, 1 / 5),  # below 0.8
    ("ppo", 1.0, {"clip_high_threshold": 1.3}, 1 / 5),
    ("ppo", -1.0, {"clip_low_threshold": 0.95}, 2 / 5),
    ("cispo", 1.0, {}, 1 / 5),
    ("cispo", -1.0, {"clip_low_threshold": 0.6}, 2 / 5),
    ("gspo", 1.0, {}, 1.0),  # their geometric mean is above 1
    ("gspo", -1.0, {}, 0.0),
]


@pytest.mark.parametrize(("loss_fn", "advantage", "bounds", "share"), CASES)
def test_a_token_is_clipped_where_its_gradient_is_cut(
    loss_fn: str, advantage: float, bounds: dict[str, float], share: float
) -> None:
    segment = Segment.of([5, 6], [7] * 5, [-2.0] * 5)
    datum = with_ratio_mask(make_datum(segment, advantage))
    trainer = np.asarray([-9.0, *(-2.0 + math.log(ratio) for ratio in RATIOS)])
    cfg = RLConfig(loss_fn=loss_fn, **bounds)
    assert clipped_share(cfg, [([datum], [trainer])]) == {"train/clipped": pytest.approx(share)}
    still = np.asarray([-9.0, *[-2.0] * 5])
    both = clipped_share(cfg, [([datum], [still]), ([datum], [trainer])])
    assert both["train/clipped"] == pytest.approx(share / 2)


def test_tokens_without_an_advantage_or_with_bounds_of_their_own() -> None:
    segment = Segment.of([5, 6], [7] * 5, [-2.0] * 5)
    trainer = np.asarray([-9.0, *(-2.0 + math.log(ratio) for ratio in RATIOS)])
    cfg = RLConfig(loss_fn="ppo")
    assert clipped_share(cfg, [([make_datum(segment, 0.0)], [trainer])]) == {}
    own = replaced(make_datum(segment, 1.0), clip_high_threshold=np.full(6, 9.0))
    assert clipped_share(cfg, [([own], [trainer])]) == {"train/clipped": 0.0}
