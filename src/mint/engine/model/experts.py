"""Mixture-of-experts layers, with the adapters that are active.

transformers keeps the experts of a layer as two 3-D parameters. A row here is a (token, expert)
pair; the routes of the pass determine how the rows are laid out:

| routes     | rows             | used for                                                       |
|------------|------------------|----------------------------------------------------------------|
| `Sorted`   | [pairs, in]      | training, long prompts, CPUs: one product for each expert hit  |
| `Gathered` | [pairs, 1, in]   | decoding a few rows on a GPU: each pair copies its own weights |
| `Complete` | [experts, N, in] | decoding on a GPU: every expert computes every token           |

The host must know how many rows an expert has to run `Sorted`. The other two have shapes that do
not depend on what the router chose, as a CUDA graph needs. All routes have these methods:

- ``spread`` returns for each row the values [N, size] of its token;
- ``pick`` returns for each row the values [experts, size] of its expert;
- ``multiply`` multiplies each row by its expert's weight, of [experts, out, in];
- ``keep`` sets rows to zero that the router did not choose;
- ``combine`` sums the rows of each token by its shares [N, K].
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mint.engine.model.context import BankedLora, TrainedLora, active
from mint.engine.model.linear import Copies, FrozenLinear, Pairs, Site, product_gradients
from mint.engine.model.precision import Precision, f32, multiply, multiply_gradient

_PROJECTIONS = ("gate_up_proj", "down_proj")
_GRAPH_ROWS = 512  # the most tokens that a decode step of fixed shape has
_GATHER_COST = 3  # a gathered weight is read, written and read again


class Sorted:
    """Rows in the order of their experts; differentiable."""

    def __init__(self, index: Tensor, experts: int) -> None:
        self.index = index.reshape(-1)
        self._shape = index.shape
        self._order = self.index.argsort(stable=True)
        self._tokens = self._order // index.shape[1]
        counts = torch.bincount(self.index, minlength=experts).tolist()
        self.groups: list[tuple[int, slice]] = []  # each expert that is hit, with its rows
        end = 0
        for expert, count in enumerate(counts):
            start, end = end, end + count
            if count:
                self.groups.append((expert, slice(start, end)))

    def spread(self, values: Tensor) -> Tensor:
        return values[self._tokens]

    def pick(self, values: Tensor) -> Tensor:
        return values[self.index[self._order]]

    def multiply(self, rows: Tensor, weights: Tensor, precision: Precision) -> Tensor:
        return _multiply_groups(rows, weights, self.groups, precision)

    def keep(self, rows: Tensor) -> Tensor:
        return rows

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        places = torch.empty_like(self._order)
        places[self._order] = torch.arange(len(places), device=places.device)
        return (rows[places].view(*self._shape, -1) * shares[..., None]).sum(1)


class Gathered:
    """One row at a time, each with a copy of its expert's weight."""

    def __init__(self, index: Tensor) -> None:
        self._shape, self._index = index.shape, index.reshape(-1)

    def spread(self, values: Tensor) -> Tensor:
        return values[:, None].expand(*self._shape, -1).reshape(len(self._index), 1, -1)

    def pick(self, values: Tensor) -> Tensor:
        return values[self._index][:, None]

    def multiply(self, rows: Tensor, weights: Tensor, precision: Precision) -> Tensor:
        return multiply(rows, weights[self._index], precision)

    def keep(self, rows: Tensor) -> Tensor:
        return rows

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        return (rows.view(*self._shape, -1) * shares[..., None]).sum(1)


class Complete:
    """Every token at every expert; the pairs that the router did not choose count for nothing."""

    def __init__(self, index: Tensor, experts: int) -> None:
        self._index, self._experts = index, experts
        chosen = torch.zeros(len(index), experts, dtype=torch.bool, device=index.device)
        self._chosen = chosen.scatter_(1, index, True)

    def spread(self, values: Tensor) -> Tensor:
        return values.expand(self._experts, *values.shape)

    def pick(self, values: Tensor) -> Tensor:
        return values[:, None]

    def multiply(self, rows: Tensor, weights: Tensor, precision: Precision) -> Tensor:
        if rows.stride(0):
            return multiply(rows, weights, precision)
        y = multiply(rows[0], weights.flatten(0, 1), precision)  # all experts read the same rows
        return y.view(len(y), self._experts, -1).transpose(0, 1)

    def keep(self, rows: Tensor) -> Tensor:
        return torch.where(self._chosen.T[..., None], rows, 0.0)

    def combine(self, rows: Tensor, shares: Tensor) -> Tensor:
        table = shares.new_zeros(self._chosen.shape).scatter_(1, self._index, shares)
        return torch.bmm(table[:, None], rows.transpose(0, 1)).squeeze(1)


Routes = Sorted | Gathered | Complete


def choose_routes(index: Tensor, experts: int) -> Routes:
    """Lay out the rows of a pass whose tokens use the experts in ``index`` [N, K]."""
    if not index.is_cuda or torch.is_grad_enabled() or len(index) > _GRAPH_ROWS:
        return Sorted(index, experts)
    if index.numel() * _GATHER_COST <= experts:
        return Gathered(index)
    return Complete(index, experts)


class ExpertsLinear(nn.Module):
    """The frozen linear layers of all experts of a layer, for one of its two projections.

    Adapters use it as they do a :class:`FrozenLinear`.
    """

    def __init__(
        self, site: Site, weight: Tensor, bias: Tensor | None, precision: Precision
    ) -> None:
        super().__init__()
        self.sites = [site]
        self.weight = weight.to(precision.weights).contiguous()  # [experts, out, in]
        self.bias = None if bias is None else bias.float()  # [experts, out]
        self.precision = precision
        self.pairs: tuple[Tensor, ...] = ()
        self.bank: tuple[Tensor, Tensor] | None = None  # [experts, slots * rank, in], [..., out]
        self._slots = 0

    def forward(self, rows: Tensor, routes: Routes) -> Tensor:
        y = self._product(rows, routes)
        return y if self.bias is None else y + routes.pick(self.bias)

    def _product(self, rows: Tensor, routes: Routes) -> Tensor:
        lora = active().lora
        scale = lora.scale if isinstance(lora, TrainedLora) and self.pairs else None
        if torch.is_grad_enabled():
            assert isinstance(routes, Sorted)
            settings, pair = (self.precision, scale, routes.groups), self.pairs
            return ExpertsProduct.apply(  # type: ignore[no-any-return, no-untyped-call]
                *settings, rows, self.weight, *(pair if scale is not None else ())
            )
        y = routes.multiply(rows, self.weight, self.precision)
        if scale is not None:
            a, b = split_experts(self.pairs, len(self.weight), self.precision.lora)
            inner = routes.multiply(rows, a, self.precision) * scale
            return y + routes.multiply(inner, b, self.precision)
        if isinstance(lora, BankedLora) and self.bank is not None:
            return y + self._banked(rows, routes, self.bank, lora)
        return y

    def _banked(
        self, rows: Tensor, routes: Routes, bank: tuple[Tensor, Tensor], lora: BankedLora
    ) -> Tensor:
        """Return the products of the adapters in the bank's first slots, each for its own rows."""
        height = bank[0].shape[1] // self._slots * lora.slots
        a, b = (tensor[:, :height] for tensor in bank)
        inner = routes.multiply(rows, a, self.precision)
        if lora.mask is not None:
            parts = inner.view(*inner.shape[:-1], lora.slots, -1)
            is_own = routes.spread(lora.mask)[..., None] != 0
            inner = torch.where(is_own, parts, 0.0).flatten(-2)
        return routes.multiply(inner, b.mT, self.precision)

    def new_bank(self, slots: int, rank: int) -> None:
        experts, outputs, inputs = self.weight.shape
        sizes = ((experts, slots * rank, size) for size in (inputs, outputs))
        a, b = (self.weight.new_zeros(size, dtype=self.precision.lora) for size in sizes)
        self.bank, self._slots = (a, b), slots

    def write_slot(self, slot: int, pairs: Pairs) -> Copies:
        assert self.bank is not None
        height = self.bank[0].shape[1] // self._slots
        a, b = (t[:, slot * height : (slot + 1) * height].zero_() for t in self.bank)
        if not (pair := pairs.get(self.sites[0].name)):
            return []
        own_a, own_b = split_experts(pair, len(self.weight), f32)
        rank = own_a.shape[1]
        return [(a[:, :rank], own_a), (b[:, :rank], own_b.mT)]


Product = FrozenLinear | ExpertsLinear


class FrozenExperts(nn.Module):
    """The experts of one layer, which replace transformers' module."""

    def __init__(self, sites: list[Site], module: nn.Module, precision: Precision) -> None:
        super().__init__()
        up, down = (
            ExpertsLinear(site, _weight(module, name), _bias(module, name), precision)
            for site, name in zip(sites, _PROJECTIONS, strict=True)
        )
        self.gate_up_proj, self.down_proj = up, down
        module._parameters.clear()  # the module lives on for its gate alone
        self._apply_gate: Any = module._apply_gate

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        routes = choose_routes(top_k_index, len(self.gate_up_proj.weight))
        return self.run(hidden_states, routes, top_k_weights)

    def run(self, x: Tensor, routes: Routes, shares: Tensor) -> Tensor:
        """Return the router-weighted sum of the experts' outputs for x [N, H]."""
        rows = self.gate_up_proj(routes.spread(x), routes)
        rows = self.down_proj(routes.keep(self._apply_gate(rows)), routes)
        return routes.combine(rows, shares.float())


class ExpertsProduct(torch.autograd.Function):
    """The products of sorted rows with their experts' weights and one adapter, if there is one.

    They are differentiable in the rows, A and B.
    """

    @staticmethod
    def forward(
        ctx: Any, precision: Precision, scale: Tensor | None, groups: list[tuple[int, slice]],
        x: Tensor, weight: Tensor, *pair: Tensor,
    ) -> Tensor:  # fmt: skip
        ctx.precision, ctx.scale, ctx.groups, ctx.weight = precision, scale, groups, weight
        y = _multiply_groups(x, weight, groups, precision)
        if scale is None:
            return y
        low = x.to(precision.lora)
        a, b = split_experts(pair, len(weight), precision.lora)
        inner = (_multiply_groups(low, a, groups, precision) * scale).to(precision.lora)
        ctx.save_for_backward(low, inner, *pair)
        return y.add_(_multiply_groups(inner, b, groups, precision))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        [grad], weight = grads, ctx.weight
        x_grad = torch.empty(len(grad), weight.shape[2], device=grad.device)
        saved = ctx.saved_tensors  # once: checkpoints unpack them only once
        if not saved:
            for expert, rows in ctx.groups:
                x_grad[rows] = multiply_gradient(grad[rows], weight[expert], ctx.precision)
            return None, None, None, x_grad, None
        low, inner, *pair = saved
        a, b = split_experts(pair, len(weight), ctx.precision.lora_gradients)
        a_grad, b_grad = (torch.zeros_like(tensor, dtype=f32) for tensor in (a, b))
        for expert, rows in ctx.groups:
            x_grad[rows], a_grad[expert], b_grad[expert] = product_gradients(
                ctx.precision, ctx.scale, [weight.shape[1]], grad[rows], low[rows],
                inner[rows], weight[expert], (a[expert], b[expert]),
            )  # fmt: skip
        return None, None, None, x_grad, None, *join_experts(a_grad, b_grad)


def find_expert_sites(name: str, module: nn.Module) -> list[Site]:
    """Return the projections of a module of experts that this file can run, none of others."""
    weights = [module._parameters.get(projection) for projection in _PROJECTIONS]
    is_known = getattr(module, "has_gate", False) and not getattr(
        module, "has_post_expert_norm", False
    )
    if not is_known or any(weight is None or weight.dim() != 3 for weight in weights):
        return []
    sites = []
    for projection in _PROJECTIONS:
        experts, outputs, inputs = _weight(module, projection).shape
        sites.append(Site(f"{name}.{projection}", "mlp", inputs, outputs, experts))
    return sites


def replace_experts(
    model: nn.Module, sites: list[Site], precision: Precision
) -> dict[str, ExpertsLinear]:
    """Replace the model's experts by ours; return each projection by its site's name."""
    products: dict[str, ExpertsLinear] = {}
    for up, down in zip(sites[::2], sites[1::2], strict=True):
        name = up.name.rpartition(".")[0]
        experts = FrozenExperts([up, down], model.get_submodule(name), precision)
        if experts.gate_up_proj.weight.is_cuda:
            # Not compiled: how many rows an expert has is known only as it runs.
            experts.forward = torch.compiler.disable(experts.forward)  # type: ignore[method-assign, no-untyped-call]
        model.set_submodule(name, experts)
        products |= {up.name: experts.gate_up_proj, down.name: experts.down_proj}
    return products


def _weight(module: nn.Module, projection: str) -> Tensor:
    """Return the weights of all experts as [experts, out, in]."""
    weight: Tensor = getattr(module, projection).detach()
    return weight.mT if module.is_transposed else weight


def _bias(module: nn.Module, projection: str) -> Tensor | None:
    bias: Tensor | None = getattr(module, f"{projection}_bias", None)
    return None if bias is None else bias.detach()


def split_experts(
    pair: Sequence[Tensor], experts: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return an adapter's pair as A [experts, rank, in] and B [experts, out, rank].

    PEFT keeps both as matrices: A's rows run over experts and then ranks, B's columns over ranks
    and then experts.
    """
    a, b = (tensor.to(dtype) for tensor in pair)
    each = b.view(b.shape[0], -1, experts).permute(2, 0, 1)
    return a.view(experts, -1, a.shape[1]), each.contiguous()


def join_experts(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Undo :func:`split_experts`."""
    return a.flatten(0, 1), b.permute(1, 2, 0).flatten(1)


def _multiply_groups(
    rows: Tensor, weights: Tensor, groups: list[tuple[int, slice]], precision: Precision
) -> Tensor:
    y = torch.empty(len(rows), weights.shape[1], device=rows.device)
    for expert, group in groups:
        y[group] = multiply(rows[group], weights[expert], precision)
    return y
