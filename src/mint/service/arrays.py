"""Arrays from what a request says about them, checked before memory is spent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mint.engine.messages import UserError

MAX_SPARSE_CELLS = 1 << 28


class CellBudget:
    """Bounds what sparse tensors of one request may open to: a few bytes can name a huge shape."""

    def __init__(self) -> None:
        self.left = MAX_SPARSE_CELLS

    def spend(self, cells: int, where: str) -> None:
        self.left -= cells
        if self.left < 0:
            raise UserError(f"{where} is too large when written out; send fewer datums at once.")


def dense_of_csr(
    values: NDArray[Any],
    crow: NDArray[Any],
    col: NDArray[Any],
    shape: Sequence[int],
    where: str,
    cells: CellBudget,
) -> NDArray[Any]:
    """The matrix that compressed sparse rows stand for; unlisted cells are 0."""
    if len(shape) != 2 or min(shape) < 0:
        raise UserError(f"{where} is sparse and needs a 2-D shape, not {list(shape)}.")
    rows, columns = int(shape[0]), int(shape[1])
    cells.spend(rows * columns, where)
    well_formed = (
        len(crow) == rows + 1
        and crow[0] == 0
        and crow[-1] == len(values) == len(col)
        and bool((np.diff(crow) >= 0).all())
        and bool(((col >= 0) & (col < columns)).all())
    )
    if not well_formed:
        raise UserError(f"{where}: the sparse row and column indices do not fit {rows}×{columns}.")
    dense = np.zeros((rows, columns), values.dtype)
    dense[np.repeat(np.arange(rows), np.diff(crow)), col] = values
    return dense


def shaped(values: NDArray[Any], shape: Sequence[int], where: str) -> NDArray[Any]:
    """Flat values in their declared shape; without one they stay flat."""
    if not shape:
        return values
    if min(shape) < 0 or int(np.prod(shape, dtype=object)) != values.size:
        raise UserError(
            f"{where} has {values.size} values, which do not fill its shape "
            f"{[int(n) for n in shape]}."
        )
    return values.reshape([int(n) for n in shape])
