"""Kernels in C for sampling and products on a CPU: what torch lacks, or dispatches too slowly.

The C files are compiled on the machine they run on (:mod:`.build`). Where that is not possible, the
engine uses torch alone. Whatever a kernel computes for a row does not depend on the other rows.
"""

from .build import library, missing
from .products import NO_ADAPTER, Packed, RowsBySlot, matmul, pack

__all__ = ["NO_ADAPTER", "Packed", "RowsBySlot", "library", "matmul", "missing", "pack"]
