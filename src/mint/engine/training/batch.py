"""Check the datums of a request, and pack them by shared prefix into flat tensors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mint.engine.messages import NOT_FINITE, Datum, ForwardBackward, ModelInfo, UserError
from mint.engine.model.precision import to_device
from mint.engine.training.logprobs import Targets
from mint.engine.training.losses import LOSSES, Loss
from mint.engine.training.terms import NAMES, Terms, read_terms
from mint.engine.training.tree import PrefixTree

KEPT = "kept_tokens"
_IDS = ("target_tokens", KEPT)
_THRESHOLDS = ("clip_low_threshold", "clip_high_threshold")
_LARGEST = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class PackedBatch:
    """The targets of a tree's members, flat and sorted by node, with their loss inputs.

    ``targets`` serve the head; ``inputs`` and ``datum`` the loss, in the order of the members, into
    which ``unsort`` brings what the head returns. ``shapes`` cut the flat logprobs back into one
    array per member.
    """

    targets: Targets
    unsort: Tensor
    inputs: dict[str, Tensor]
    datum: Tensor
    shapes: list[tuple[int, ...]]


def make_batch(
    tree: PrefixTree, data: list[Datum], loss: Loss, device: torch.device
) -> PackedBatch:
    """Lay out the targets and loss inputs of a tree's members."""
    members = [data[i] for i in tree.members]
    targets = [datum.inputs["target_tokens"] for datum in members]
    nodes = np.concatenate(
        [np.repeat(path, target[0].size) for path, target in zip(tree.paths, targets, strict=True)]
    )
    trained = np.zeros(len(tree.tokens), bool)
    trained[nodes[_flat([_counts(datum.inputs, loss) for datum in members])]] = True
    order = np.argsort(np.where(trained[nodes], nodes, nodes + len(trained)), kind="stable")
    sizes = [target.size for target in targets]
    names = [name for name in members[0].inputs if name not in _IDS]
    kept = _kept_tokens(members, order)
    return PackedBatch(
        Targets.of(
            nodes[order], _flat(targets)[order].astype(np.int64), device, int(trained.sum()), kept
        ),
        unsort=to_device(np.argsort(order), device),
        inputs={
            name: to_device(_flat([d.inputs[name] for d in members]).astype(np.float32), device)
            for name in names
        },
        datum=to_device(np.repeat(np.arange(len(members)), sizes), device),
        shapes=[target.shape for target in targets],
    )


def _flat(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate([array.reshape(-1) for array in arrays])


def _counts(inputs: Mapping[str, NDArray[Any]], loss: Loss) -> NDArray[Any]:
    """Return which targets take part in a loss; the others have no gradient."""
    if "weights" in inputs:
        return np.asarray(inputs["weights"] != 0)
    return np.asarray((inputs["advantages"] != 0) | loss.every_token)


def _kept_tokens(members: list[Datum], order: NDArray[Any]) -> NDArray[Any] | None:
    """Return the kept tokens of all targets, in the order of the nodes; -1 fills up."""
    none = [np.empty((datum.inputs["target_tokens"].size, 0), np.int64) for datum in members]
    rows = [datum.inputs.get(KEPT, empty) for datum, empty in zip(members, none, strict=True)]
    width = max(row.shape[1] for row in rows)
    if not width:
        return None
    filled = [np.pad(row, ((0, 0), (0, width - row.shape[1])), constant_values=-1) for row in rows]
    return np.asarray(np.concatenate(filled)[order])


def check_request(
    request: ForwardBackward, info: ModelInfo
) -> tuple[list[Datum], Loss, dict[str, float], Terms]:
    """Check a request; return its datums, loss, settings and terms. Raises UserError.

    The datums keep only the inputs that the loss and the terms read.
    """
    loss = LOSSES.get(request.loss_fn)
    if loss is None:
        raise UserError(
            f"loss_fn {request.loss_fn!r} is not one this service runs. Use one of: "
            f"{', '.join(LOSSES)}."
        )
    if not request.data:
        raise UserError("The batch is empty: data has no datum. Pass at least one datum.")
    settings = _loss_settings(request.config, loss, request.loss_fn)
    terms = read_terms(request.config)
    data = [
        _check_datum(d, i, request.loss_fn, loss, terms, info) for i, d in enumerate(request.data)
    ]
    _check_values(data, info.vocab_size)
    _fill_optional(data, settings, loss)
    return data, loss, settings, terms


def _fill_optional(data: list[Datum], settings: dict[str, float], loss: Loss) -> None:
    """Give datums without an optional input the value that changes nothing."""
    present = {key for datum in data for key in datum.inputs}
    for inputs in (datum.inputs for datum in data):
        if "weights" in present and "weights" not in inputs:
            inputs["weights"] = _counts(inputs, loss).astype(np.float32)
        for key in settings.keys() & present - inputs.keys():
            inputs[key] = np.full(inputs["target_tokens"].shape, settings[key], np.float32)


def _loss_settings(config: Mapping[str, float | str], loss: Loss, name: str) -> dict[str, float]:
    """Return the loss's settings with the request's values over the defaults."""
    for key, value in config.items():
        if key not in loss.settings and key not in NAMES:
            known = ", ".join((*loss.settings, *NAMES))
            raise UserError(f"loss_fn_config has {key!r}, but {name} has the settings: {known}.")
        if isinstance(value, str) or not abs(value) <= _LARGEST:
            raise UserError(
                f"loss_fn_config[{key!r}] is {value!r:.50}, but it must be a finite number "
                "of 32 bits."
            )
    given = {key: float(value) for key, value in config.items() if key in loss.settings}
    return {**loss.settings, **given}


def _check_datum(
    datum: Datum, index: int, name: str, loss: Loss, terms: Terms, info: ModelInfo
) -> Datum:
    where = f"datum {index}"
    length = len(datum.tokens)
    if length == 0:
        raise UserError(f"{where}: model_input has no tokens. Leave this datum out of the batch.")
    if length > info.context_length:
        raise UserError(
            f"{where}: model_input has {length} tokens, and the model's context is "
            f"{info.context_length}. Shorten it."
        )
    targets = datum.inputs.get("target_tokens")
    if targets is None:
        raise UserError(f"{where}: loss_fn_inputs has no 'target_tokens', which {name} needs.")
    if targets.ndim == 2 and name != "cross_entropy":
        raise UserError(
            f"{where}: target_tokens is two-dimensional, which cross_entropy takes but not {name}."
        )
    if targets.ndim not in (1, 2) or targets.shape[0] != length or targets.size == 0:
        raise UserError(
            f"{where}: target_tokens has shape {list(targets.shape)}, but model_input has {length} "
            f"tokens, so it must be [{length}] (or [{length}, K] for cross_entropy)."
        )
    inputs: dict[str, NDArray[Any]] = {"target_tokens": targets}
    optional = ("weights", *(k for k in _THRESHOLDS if k in loss.settings))
    for key in dict.fromkeys((*loss.needs, *terms.needs, *optional)):
        if key in datum.inputs:
            inputs[key] = array = datum.inputs[key]
            if array.shape != targets.shape:
                raise UserError(
                    f"{where}: {key} has shape {list(array.shape)}, but target_tokens has "
                    f"{list(targets.shape)}. Every loss input needs one value per target token."
                )
        elif key in (*loss.needs, *terms.needs):
            by = f"{name} needs" if key in loss.needs else "the terms in loss_fn_config need"
            raise UserError(f"{where}: loss_fn_inputs has no {key!r}, which {by}.")
    if name == "cross_entropy":
        inputs.setdefault("weights", np.ones(targets.shape, np.float32))
    if KEPT in datum.inputs:
        inputs[KEPT] = _check_kept(datum.inputs[KEPT], targets, where, info.vocab_size)
    return Datum(datum.tokens, inputs)


def _check_ids(ids: NDArray[Any], where: str, vocabulary: int) -> None:
    wrong = np.flatnonzero((ids < 0) | (ids >= vocabulary))
    if len(wrong):
        raise UserError(
            f"{where}[{wrong[0]}] is {ids.flat[wrong[0]]}, but token ids of this model run from 0 "
            f"to {vocabulary - 1}. Use the model's own tokenizer (get_tokenizer())."
        )


def _check_kept(
    kept: NDArray[Any], targets: NDArray[Any], where: str, vocabulary: int
) -> NDArray[Any]:
    """Check the tokens that each target was chosen among."""
    if targets.ndim != 1 or kept.ndim != 2 or len(kept) != len(targets):
        raise UserError(
            f"{where}: {KEPT} has shape {list(kept.shape)} and target_tokens "
            f"{list(targets.shape)}; they must be [N, K] and [N]."
        )
    kept = kept.astype(np.int64)
    _check_ids(np.where(kept == -1, 0, kept), f"{where}: {KEPT}", vocabulary)
    ranked = np.sort(kept, 1)
    is_missing = (kept >= 0).any(1) & ~(kept == targets[:, None]).any(1)
    is_double = ((ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)).any(1)
    for is_wrong, fault in (
        (is_missing, "do not have its target, {}"),
        (is_double, "have a token twice"),
    ):
        if is_wrong.any():
            at = int(is_wrong.argmax())
            raise UserError(
                f"{where}: the {KEPT} of position {at} {fault.format(targets[at])}. Pass all "
                "tokens that the target was sampled from, each once, and -1 where there are fewer "
                "than in other positions."
            )
    return kept


def _check_values(data: list[Datum], vocabulary: int) -> None:
    """Check ids and numbers: all at once, since a device waits, and singly to name a wrong one."""
    ids = _flat([array for d in data for array in (d.tokens, d.inputs["target_tokens"])])
    if ids.min() < 0 or ids.max() >= vocabulary:
        for index, datum in enumerate(data):
            _check_ids(datum.tokens, f"datum {index}: model_input", vocabulary)
            _check_ids(datum.inputs["target_tokens"], f"datum {index}: target_tokens", vocabulary)
    names = [(i, n) for i, d in enumerate(data) for n in d.inputs if n not in _IDS]
    if names and not np.isfinite(_flat([data[i].inputs[name] for i, name in names])).all():
        for index, name in names:
            _check_finite(data[index].inputs[name], f"datum {index}: {name}")


def _check_finite(array: NDArray[Any], where: str) -> None:
    wrong = np.flatnonzero(~np.isfinite(array))
    if len(wrong):
        raise UserError(
            f"{where}[{wrong[0]}] is {array.flat[wrong[0]]}, but it must be a finite number. "
            f"Look at the reward that it came from. {NOT_FINITE}"
        )
