"""Sequences of tokens: their weights in a batch, their mini-batches, their common prefixes."""

from collections.abc import Sequence
from itertools import takewhile


def token_weights(lengths: Sequence[int], aggregation: str, max_tokens: int) -> list[float]:
    """Return the weight of each token of rollouts with these numbers of sampled tokens.

    ``sum`` keeps the service's sum; ``token`` divides by all tokens of the batch; ``sequence``
    takes the mean over each rollout, then over rollouts; ``constant`` divides by ``max_tokens`` as
    the length.

    >>> token_weights([2, 4], "sequence", max_tokens=8)
    [0.25, 0.125]
    >>> token_weights([2, 4], "constant", max_tokens=8)
    [0.0625, 0.0625]
    """
    count, total = len(lengths), sum(lengths)
    match aggregation:
        case "token":
            return [1.0 / total] * count if total else [0.0] * count
        case "sequence":
            return [1.0 / (count * length) if length else 0.0 for length in lengths]
        case "constant":
            return [1.0 / (count * max_tokens)] * count
        case _:
            return [1.0] * count


def part_sizes(count: int, parts: int) -> list[int]:
    """Return the sizes of at most ``parts`` nearly equal parts, none of them empty."""
    parts = max(1, min(parts, count))
    return [count // parts + (index < count % parts) for index in range(parts)]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences.

    >>> common_prefix([5, 6, 7], [5, 6, 8, 9])
    2
    """
    pairs = zip(first, second, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
