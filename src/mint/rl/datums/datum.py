"""Build datums from groups with advantages."""

from collections.abc import Sequence
from itertools import islice
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from mint import types
from mint.rl.algorithms.importance import Array
from mint.rl.algorithms.sequences import part_sizes, token_weights
from mint.rl.rollouts.rollout import Group, Kept, Segment

Tokens = tuple[int, ...]


def make_datum(
    segment: Segment, advantage: float | Sequence[float], weight: float = 1.0
) -> types.Datum:
    """Build a datum from a segment; only sampled tokens have a weight.

    ``advantage`` is one number, or one for each token of the segment.

    >>> datum = make_datum(Segment.of([5, 6], [7, 8], [-0.5, -0.25]), advantage=0.5)
    >>> datum.model_input.to_ints(), [int(t) for t in datum.loss_fn_inputs["target_tokens"].data]
    ([5, 6, 7], [6, 7, 8])
    >>> [float(w) for w in datum.loss_fn_inputs["weights"].data]
    [0.0, 1.0, 1.0]
    """
    kept = segment.trimmed()
    mask = [float(sampled) for sampled in kept.sampled[1:]]
    if not isinstance(advantage, Sequence):
        advantage = [advantage] * len(segment.tokens)
    credit = zip(advantage[1:], mask, strict=False)  # up to the last sampled token
    inputs = {
        "target_tokens": tensor(kept.tokens[1:], "int64"),
        "weights": tensor([weight * inside for inside in mask]),
        "logprobs": tensor(kept.logprobs[1:]),
        "advantages": tensor([each * inside for each, inside in credit]),
    }
    if any(kept.kept):
        inputs["kept_tokens"] = _kept_tokens(kept.kept[1:])
    tokens = types.ModelInput.from_ints(tokens=kept.tokens[:-1])
    return types.Datum(model_input=tokens, loss_fn_inputs=inputs)


def _kept_tokens(kept: Sequence[Kept]) -> types.TensorData:
    """Return the tokens that each target was chosen from, [N, K]; -1 fills up."""
    width = max(len(each) for each in kept)
    rows = [token for each in kept for token in (*each, *[-1] * (width - len(each)))]
    return types.TensorData(data=rows, dtype="int64", shape=[len(kept), width])


def tensor(
    numbers: Sequence[float], dtype: Literal["int64", "float32"] = "float32"
) -> types.TensorData:
    return types.TensorData(data=list(numbers), dtype=dtype, shape=[len(numbers)])


def build_datums(
    groups: Sequence[Group],
    aggregation: str = "sum",
    max_tokens: int = 1,
    loss_fn: str = "importance_sampling",
    every_answer: bool = False,
) -> list[types.Datum]:
    """Build the datums of all rollouts with an advantage, one for each context.

    With ``every_answer``, or ``dro``, whose loss has another term, it is every rollout that counts.
    Means are over all that count. Groups stay together: the service computes a shared prompt once.
    """
    rollouts = [rollout for group in groups for rollout in group.counted if rollout.length]
    weights = token_weights([rollout.length for rollout in rollouts], aggregation, max_tokens)
    datums = [
        make_datum(segment, rollout.token_advantages(index), weight)
        for rollout, weight in zip(rollouts, weights, strict=True)
        if rollout.has_advantage or every_answer or loss_fn == "dro"  # dro has a penalty too
        for index, segment in enumerate(rollout.segments)
        if segment.sampled_count > 0 and len(segment.trimmed().tokens) > 1
    ]
    return [with_ratio_mask(datum) for datum in datums] if loss_fn == "gspo" else datums


def with_ratio_mask(datum: types.Datum) -> types.Datum:
    """Add the mask over which gspo takes its ratio: the sampled tokens."""
    return replaced(datum, sequence_ratio_mask=has_weight(datum).astype(np.float64))


def values(datum: types.Datum, name: str) -> Array:
    return np.asarray(datum.loss_fn_inputs[name].data, dtype=np.float64)


def has_weight(datum: types.Datum) -> NDArray[np.bool_]:
    """Return which targets of a datum are trained on."""
    return np.asarray(values(datum, "weights") != 0)


def trained_pairs(
    datums: Sequence[types.Datum], trainer_D_T: Sequence[Array], name: str
) -> list[tuple[Array, Array]]:
    """Return the trainer's and the datum's own logprobs of the targets that are trained on."""
    pairs = zip(datums, trainer_D_T, strict=True)
    return [(trainer[has_weight(d)], values(d, name)[has_weight(d)]) for d, trainer in pairs]


def trained_tokens(datums: Sequence[types.Datum]) -> int:
    return int(sum(has_weight(datum).sum() for datum in datums))


def datum_tokens(datum: types.Datum) -> Tokens:
    """Return all tokens of a datum: its first input, and the targets."""
    targets = (int(token) for token in datum.loss_fn_inputs["target_tokens"].data)
    return (*datum.model_input.to_ints()[:1], *targets)


def with_weights(datum: types.Datum) -> types.Datum:
    """Return a datum with weights, by default 1 for tokens with a logprob or an advantage."""
    given = datum.loss_fn_inputs
    if "weights" in given:
        return datum
    inside = np.zeros(len(given["target_tokens"].data), dtype=bool)
    for name in ("advantages", "logprobs"):
        if name in given:
            inside |= values(datum, name) != 0
    return replaced(datum, weights=inside.astype(np.float64))


def replaced(datum: types.Datum, **inputs: Array) -> types.Datum:
    """Return a datum with some loss inputs replaced or added."""
    new = {name: tensor([float(x) for x in array]) for name, array in inputs.items()}
    loss_fn_inputs = {**datum.loss_fn_inputs, **new}
    return types.Datum(model_input=datum.model_input, loss_fn_inputs=loss_fn_inputs)


def scaled(datum: types.Datum, factor: float) -> types.Datum:
    """Return a datum whose tokens all weigh ``factor`` times as much."""
    return datum if factor == 1.0 else replaced(datum, weights=values(datum, "weights") * factor)


def split(datums: Sequence[types.Datum], parts: int) -> list[list[types.Datum]]:
    """Neighbouring datums in at most ``parts`` mini-batches of nearly equal size, none empty.

    >>> [len(part) for part in split([None] * 7, 3)]
    [3, 2, 2]
    """
    rest = iter(datums)
    return [list(islice(rest, size)) for size in part_sizes(len(datums), parts)]
