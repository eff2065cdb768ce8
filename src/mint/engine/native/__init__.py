"""Kernels in C for a CPU's products, sampling and training: what torch lacks, or does too slowly.

The C files are compiled on the machine they run on (:mod:`.build`). Where that is not possible, the
engine uses torch alone. The result of a sampling kernel for a row does not depend on the other
rows.
"""

from .build import missing
from .products import NO_ADAPTER, Packed, RowsBySlot

__all__ = ["NO_ADAPTER", "Packed", "RowsBySlot", "missing"]
