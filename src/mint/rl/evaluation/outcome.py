"""The outcome of training on the holdout, and which weights to use."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mint.rl.evaluation.scores import Evaluation


def evaluations_in(rows: Iterable[Mapping[str, Any]]) -> dict[int, Evaluation]:
    """The evaluations of a metrics file, by their step."""
    found = {int(row["step"]): Evaluation.read(row) for row in rows}
    return {step: evaluation for step, evaluation in found.items() if evaluation is not None}


def rank(evaluation: Evaluation) -> tuple[float, float]:
    """Return the sort key of evaluations: pass@1, then reward, without rounding errors.

    >>> from mint.rl.evaluation.scores import evaluate
    >>> rank(evaluate([[1.0], [0.0]], threshold=1.0))
    (0.5, 0.5)
    """
    return round(evaluation.pass_1, 9), round(evaluation.reward, 9)


def verdict(start: Evaluation, end: Evaluation) -> str:
    """Return whether training helped, by the differences of pass@1 and of the reward.

    Pass@1 decides; where its 95% interval contains 0, the reward is looked at.

    >>> from mint.rl.evaluation.scores import evaluate
    >>> before = evaluate([[0.0]] * 40, threshold=1.0)
    >>> after = evaluate([[1.0]] * 20 + [[0.0]] * 20, threshold=1.0)
    >>> print(verdict(before, after))
    Training helped on the holdout: pass@1 0.0% before, 50.0% after, a difference of +50.0 points \
(95% interval +32.8 to +64.8); reward 0.000 before, 0.500 after.
    """
    gain = end.estimate().above(start.estimate())
    paid = end.estimate("reward").above(start.estimate("reward"))
    unclear = gain.low <= 0 <= gain.high
    if gain.low > 0:
        said = "Training helped on the holdout"
    elif gain.high < 0:
        said = "Training made the model worse on the holdout"
    elif paid.low > 0:
        said = "Training raised the reward on the holdout, with no clear effect on pass@1"
    elif paid.high < 0:
        said = "Training lowered the reward on the holdout, with no clear effect on pass@1"
    else:
        said = "No clear effect on the holdout"
    text = (
        f"{said}: pass@1 {start.pass_1:.1%} before, {end.pass_1:.1%} after, a difference of "
        f"{100 * gain.value:+.1f} points (95% interval {100 * gain.low:+.1f} to "
        f"{100 * gain.high:+.1f}); reward {start.reward:.3f} before, {end.reward:.3f} after."
    )
    if unclear:
        text += " More held-out prompts (holdout_fraction, holdout_size) narrow the interval."
    return text


def advice(
    evaluations: Mapping[int, Evaluation], paths: Mapping[int, str], began_from: str
) -> list[str]:
    """Say whether training helped and which weights are best. ``paths`` are the checkpoints that
    are kept, by their step; the model that the run began from takes part as step 0."""
    kept = {step: e for step, e in evaluations.items() if step == 0 or step in paths}
    if 0 not in kept or len(kept) < 2:
        return []
    last = max(kept)
    best = max(kept, key=lambda step: (rank(kept[step]), -step))
    lines = [verdict(kept[0], kept[last])]
    if best == 0:
        which = f"the model before training, {began_from}. Use that one."
    elif best == last:
        which = f"the last step, {last}. Use the weights below."
    else:
        which = f"step {best}, {paths[best]}. Use that one."
    return [*lines, f"Best on the holdout: {which}"]


def closing_lines(path: str, folder: Path) -> list[str]:
    """Return the last lines of a run: where its weights are, and what to do with them."""
    return [
        f"Saved: {path}",
        f'Sample from it: mint sample -m {folder} "..."',
        f"Export it:      mint export {folder} --to FOLDER --merge",
    ]
