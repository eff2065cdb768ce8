"""Arrays of a request, checked before memory is allocated for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mint.engine.messages import UserError

MAX_SPARSE_CELLS = 1 << 23


class CellBudget:
    """Limits the dense size of a request's sparse tensors: a few bytes can name a huge shape."""

    def __init__(self, cells: int = MAX_SPARSE_CELLS) -> None:
        self.left = cells

    def spend(self, cells: int, where: str) -> None:
        self.left -= cells
        if self.left < 0:
            raise UserError(f"{where} is too large as a dense tensor; send fewer datums at once.")


@dataclass(frozen=True)
class Csr:
    """The listed cells of a matrix, as compressed sparse rows."""

    crow: NDArray[Any]
    col: NDArray[Any]
    shape: Sequence[int]

    def dense(
        self, values: NDArray[Any], where: str, cells: CellBudget, fill: int = 0
    ) -> NDArray[Any]:
        """Return the dense matrix; unlisted cells are ``fill``."""
        if len(self.shape) != 2 or min(self.shape) < 0:
            raise UserError(f"{where} is sparse and needs a 2-D shape, not {list(self.shape)}.")
        rows, columns = int(self.shape[0]), int(self.shape[1])
        cells.spend(max(rows, 1) * max(columns, 1), where)  # numpy limits 0 x 2**62 too
        fits = (
            len(self.crow) == rows + 1
            and self.crow[0] == 0
            and self.crow[-1] == len(values) == len(self.col)
            and (np.diff(self.crow) >= 0).all()
            and ((self.col >= 0) & (self.col < columns)).all()
        )
        if not fits:
            raise UserError(
                f"{where}: the sparse row and column indices do not fit {rows}×{columns}."
            )
        dense = np.full((rows, columns), fill, values.dtype)
        dense[self._row_of_each, self.col] = values
        return dense

    def pick_cells(self, dense: NDArray[Any]) -> NDArray[Any]:
        """Return the listed cells of a matrix of this shape, in order."""
        listed: NDArray[Any] = dense[self._row_of_each, self.col]
        return listed

    @property
    def _row_of_each(self) -> NDArray[Any]:
        return np.repeat(np.arange(len(self.crow) - 1), np.diff(self.crow))


def shaped(values: NDArray[Any], shape: Sequence[int], where: str) -> NDArray[Any]:
    """Return flat values in their declared shape; without one they stay flat."""
    if not shape:
        return values
    sizes = [int(n) for n in shape]
    try:
        if min(sizes) < 0:
            raise ValueError("numpy would infer a size of -1")
        return values.reshape(sizes)
    except ValueError:
        raise UserError(
            f"{where} has {values.size} values, which do not fill its shape {sizes}."
        ) from None
