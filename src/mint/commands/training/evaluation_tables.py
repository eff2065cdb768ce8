"""The results of an evaluation, as ``mint eval`` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from mint.commands.shared.output import print_table

if TYPE_CHECKING:
    from mint.rl.evaluation.results import SetResult

_HOLDOUT = "holdout"


def print_result(what: str, result: SetResult) -> None:
    """Print the result of a model on one set."""
    which = "held-out prompts" if result.name == _HOLDOUT else f"prompts of {result.name}"
    print(f"{what} on {len(result.prompts)} {which}")
    if result.failed:
        print(f"{result.failed} answers could not be scored and count as wrong.")
    print_table(["METRIC", "VALUE", "95% INTERVAL"], _rows(result), "Nothing was evaluated.")
    categories = result.by_category()
    if categories:
        print_table(
            ["CATEGORY", "PROMPTS", "PASS@1", "95% INTERVAL", "REWARD"],
            (
                [
                    name,
                    str(len(each.prompts)),
                    f"{each.evaluation.pass_1:.3f}",
                    f"{each.evaluation.low:.3f} to {each.evaluation.high:.3f}",
                    f"{each.evaluation.reward:.3f}",
                ]
                for name, each in categories.items()
            ),
            "There are no categories.",
        )


def _rows(result: SetResult) -> Iterator[list[str]]:
    found = result.evaluation
    for k, share in result.passes().items():
        metric = {1: "pass_1", found.k: "pass_k"}.get(k)
        interval = found.estimate(metric) if metric else None
        shown = f"{interval.low:.3f} to {interval.high:.3f}" if interval else ""
        yield [f"pass@{k}", f"{share:.3f}", shown]
    if result.samples > 1:
        yield [f"majority@{result.samples}", f"{result.majority():.3f}", ""]
    reward = found.estimate("reward")
    yield ["reward", f"{reward.value:.3f}", f"{reward.low:.3f} to {reward.high:.3f}"]


def print_comparison(
    other: str, before: Mapping[str, SetResult], after: Mapping[str, SetResult]
) -> None:
    """Print how each set's result compares with that of another model."""
    from mint.rl.evaluation.comparison import compare

    for name, result in after.items():
        print(f"{name}, against {other}: {compare(before[name], result)}")
