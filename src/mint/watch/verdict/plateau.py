"""Find whether a rise has ended, and where: the ramp that fits a series best."""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from mint.watch.verdict.series import Series, deviation

_BINS = 60
_CLEARER = 12.0
"""How much better a ramp that ends must fit than one that does not, in variances of the noise."""
_SIGMAS = 2.5
_LITTLE = 0.1
"""Later rises below this share of the whole rise are ignored."""
_FEWEST = 20


def plateau_start(values: Series, fewest: int = 0) -> int | None:
    """Return the step at which a rising series became flat, None while it rises.

    A ramp (flat, rising, flat) is fitted to averages of the series. The rise has ended if a ramp
    that ends early fits clearly better than every ramp that lasts to the end, and if the values
    after it show no rise worth a tenth of it; if they do, the end of that rise is searched. At
    least 20 steps and a sixth of the series must be flat.

    >>> plateau_start([(n, min(n, 40) / 40) for n in range(1, 101)])
    40
    >>> plateau_start([(n, n / 100) for n in range(1, 101)]) is None
    True
    """
    span = values[-1][0] - values[0][0]
    fewest = max(_FEWEST, fewest, span // 6)
    if span < 2 * _FEWEST or len(values) < 2 * _FEWEST:
        return None
    steps, numbers = np.array(values).T
    count = min(_BINS, len(values) // 2)
    edges = np.unique(np.searchsorted(steps, np.linspace(steps[0], steps[-1] + 1, count + 1)))
    means = np.add.reduceat(numbers, edges[:-1]) / np.diff(edges)
    sigma = max(deviation(numbers.tolist()), 1e-3 * float(np.ptp(numbers)), 1e-12)
    noise = max(sigma / math.sqrt(np.median(np.diff(edges))), deviation(means.tolist()))
    shapes, ends = _ramps(len(means))
    explained = (shapes @ (means - means.mean())).clip(min=0.0) ** 2
    best = int(explained.argmax())
    if explained[best] - explained[ends == len(means) - 1].max() < _CLEARER * noise**2:
        return None
    top = int(edges[ends[best] + 1]) - 1
    after = values[top + 1 :]
    if not after or after[-1][0] - values[top][0] < fewest:
        return None
    if _rises(numbers[top + 1 :], sigma, float(np.ptp(means))):
        return plateau_start(after, fewest)
    return values[top][0]


def rises_after(values: Series, step: int) -> bool:
    """Return whether a series rises by more than noise after a step.

    >>> rises_after([(n, n / 100) for n in range(100)], step=50)
    True
    """
    numbers = [value for _, value in values]
    after = np.array([value for at, value in values if at > step])
    return _rises(after, deviation(numbers), max(numbers) - min(numbers))


@cache
def _ramps(count: int) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Return all ramps over ``count`` bins, centred and of length one, and where each ends."""
    first, last = np.triu_indices(count, k=1)
    shapes = np.clip(np.arange(count)[None, :], first[:, None], last[:, None]).astype(float)
    shapes -= shapes.mean(axis=1, keepdims=True)
    return shapes / np.linalg.norm(shapes, axis=1, keepdims=True), last


def _rises(numbers: NDArray[np.float64], sigma: float, whole: float) -> bool:
    """Return whether a fitted line rises by more than its error and a tenth of ``whole``."""
    places = np.arange(len(numbers)) - (len(numbers) - 1) / 2
    squares = float(places @ places) or 1.0
    length = max(1, len(numbers) - 1)
    rise, error = float(places @ numbers) / squares * length, sigma * length / math.sqrt(squares)
    return rise > max(_SIGMAS * error, _LITTLE * whole)
