"""The number formats of a model's products, and the frozen linear product itself.

Whatever enters a product is rounded to the format of the precision; sums, norms, residuals and
softmax are float32 everywhere. What counts is the rounding of what enters a product: sampler and
trainer batch differently, and each rounding is amplified by the layers above it.

Keys and values are float16 with `half`, bfloat16 with `bfloat16` on a GPU, float16 with `bfloat16`
on a CPU that has C kernels, and otherwise float32: in the pool and in the attention of training.
"""

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from mint.engine import native
from mint.engine.messages import PRECISIONS, UserError

f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
ROWS = 8  # the rows of a CPU's products are padded to a multiple of this


@dataclass(frozen=True)
class Precision:
    """The formats of one engine, and why they were chosen."""

    name: str
    reason: str
    weights: torch.dtype  # frozen linear weights
    gradients: torch.dtype  # operands of products with frozen weights in the backward pass
    lora: torch.dtype  # operands of an adapter's products
    lora_gradients: torch.dtype
    keys: torch.dtype  # keys and values, in the pool and in attention
    split: bool = False  # whether activations are split into parts that are multiplied separately
    has_kernels: bool = False  # whether a CPU's products are those of :mod:`mint.engine.native`


def choose(name: str, device: torch.device) -> Precision:
    """Return the precision called ``name`` on a device; ``auto`` picks by the hardware."""
    if name not in PRECISIONS:
        raise UserError(f"precision is {name!r}, but it is one of: {', '.join(PRECISIONS)}.")
    reason = "as asked"
    if name == "auto" and device.type == "cuda":
        name, reason = "half", "the default on a GPU"
    elif name == "auto" and _has_bfloat16_units():
        name, reason = "bfloat16", "this CPU has bfloat16 instructions"
    elif name == "auto":
        name, reason = "exact", "this CPU has no bfloat16 instructions"
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        return {
            "exact": Precision(name, reason, bf16, bf16, f32, f32, f32, split=True),
            "half": Precision(name, reason, f16, bf16, f16, bf16, f16),
            "bfloat16": Precision(name, reason, bf16, bf16, bf16, bf16, bf16),
        }[name]
    missing = native.missing() if name == "bfloat16" else None
    if missing is not None:
        reason += f"; without C kernels: {missing}"
    kernels = missing is None
    keys = f16 if kernels else f32  # the kernels read them from memory in every step
    return {
        "exact": Precision(name, reason, f32, f32, f32, f32, f32),
        "half": Precision(name, reason, f16, f32, f32, f32, f32),
        "bfloat16": Precision(name, reason, bf16, bf16, f32, f32, keys, has_kernels=kernels),
    }[name]


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device; to a GPU without waiting for what runs there."""
    tensor = torch.as_tensor(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _has_bfloat16_units() -> bool:
    # Older versions of torch do not name them.
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(found.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def mm(left: Tensor, right: Tensor) -> Tensor:
    """Multiply two matrices of one format, or pairs of them; the result is float32."""
    if left.dtype == f32:
        return left @ right
    if left.is_cuda:
        return (torch.bmm if left.dim() == 3 else torch.mm)(left, right, out_dtype=f32)
    if left.dtype == f16:
        return left.float() @ right.float()
    return (left @ right).float()


def multiply(x: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """Multiply float32 rows [N, in] by a frozen weight [out, in]; the result is float32.

    Groups of rows [G, N, in] are multiplied by a weight each, of [G, out, in].
    """
    if not precision.split or weight.dtype == f32:
        return mm(x.to(weight.dtype), weight.mT)
    low, middle, high = (mm(part, weight.mT) for part in split(x))
    return low + middle + high


def split(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return three bfloat16 tensors, the smallest first, whose sum is x: 8 of its 24 bits each.

    Two would leave out 8 bits, and sampler and trainer would differ by 1e-4 now and then.
    """
    high = _upper_bits(x)
    middle = _upper_bits(x - high)
    return (x - high - middle).to(bf16), middle.to(bf16), high.to(bf16)


def _upper_bits(x: Tensor) -> Tensor:
    """Round to the bits of bfloat16.

    Not by a cast: torch.compile leaves out one to 16 bits and back, and the difference to x would
    be zero.
    """
    return ((x.view(torch.int32) + 0x8000) & -0x10000).view(f32)


def multiply_frozen(
    x: Tensor, weight: Tensor, precision: Precision, packed: native.Packed | None
) -> Tensor:
    """Multiply in a training pass: by a CPU's kernels if the weight is packed for them."""
    return multiply(x, weight, precision) if packed is None else packed.multiply(x)


def multiply_gradient(grad: Tensor, weight: Tensor, precision: Precision) -> Tensor:
    """Multiply float32 rows [N, out] by a frozen weight [out, in], in the backward pass."""
    return mm(grad.to(precision.gradients), weight.to(precision.gradients))


class FrozenProduct(torch.autograd.Function):
    """The product with a frozen weight, differentiable in the activations alone."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, precision: Precision, packed: native.Packed | None
    ) -> Tensor:
        ctx.weight, ctx.precision = weight, precision
        return multiply_frozen(x, weight, precision, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return multiply_gradient(grads[0], ctx.weight, ctx.precision), None, None, None


def reorder(weight: Tensor) -> Tensor | None:
    """Copy a CPU weight to the layout that products of few rows read fastest, where torch can."""
    is_possible = (
        weight.device.type == "cpu"
        and weight.dtype in (bf16, f32)
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        and (weight.dtype == f32 or torch.ops.mkldnn._is_mkldnn_bf16_supported())
    )
    return torch.ops.mkldnn._reorder_linear_weight(weight, 48) if is_possible else None


def multiply_reordered(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply float32 rows by a weight that :func:`reorder` returned."""
    product = torch.ops.mkldnn._linear_pointwise
    return product(x.to(weight.dtype), weight, None, "none", [], "").float()  # type: ignore[no-any-return]


def fill_up(x: Tensor) -> Tensor:
    """Append rows of zeros, up to a multiple of ``ROWS``.

    CPU libraries multiply a few rows by other kernels than many, with other rounding. With rows in
    multiples, the product of a row does not depend on how many others there are.
    """
    missing = -x.shape[-2] % ROWS
    return torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x


def is_finite(tensors: list[Tensor]) -> bool:
    """Return whether no tensor holds NaN or infinity, with one transfer from the device."""
    if not tensors:
        return True
    return bool(torch.isfinite(torch.stack(torch._foreach_norm(tensors, float("inf")))).all())
