"""Triton kernels for training attention over a prefix forest, with their gradients.

The nodes of the forest are in depth-first order, and node i sees node j iff ``j <= i < ends[j]``.
A tile of queries therefore sees scattered tiles of keys: the path from its root. A first, tiny
kernel lists them (the *plan*), separating tiles that every query sees whole, which need no mask,
so that the attention loops only run over tiles with work to do. In the other direction, the
queries that see a tile of keys are contiguous, and need no list.

As in decoding, the query heads of one key head are rows of the same tile, and softmax runs in
base 2. The backward pass recomputes the weights from the saved logsumexp. It multiplies 16-bit
inputs in bfloat16 whatever the forward pass used, because gradients can leave float16's range: the
inputs are cast as they are loaded, and the results are bfloat16 too.
"""

# mypy: disable-error-code="import-not-found,import-untyped,misc,no-untyped-def,no-untyped-call"
# mypy: disable-error-code="untyped-decorator,unused-ignore,no-any-return"

import triton
import triton.language as tl

from .kernels import LOG2E, MASKED, base2_logits, softmax_start, softmax_step


@triton.jit(do_not_specialize=["nodes", "key_tiles"])
def plan_kernel(
    ends, roots, positions, plan, nodes, key_tiles,
    TOKENS: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr,
    TOKENS_PAD: tl.constexpr,
):  # fmt: skip
    """List the key tiles that a tile of queries sees.

    A row of the plan is: the number of whole tiles, the number of partial ones, then the whole
    ones from the left and the partial ones from the right.
    """
    tile = tl.program_id(0)
    row = plan + tile.to(tl.int64) * (key_tiles + 2)
    first = tile * TOKENS
    stop = tl.minimum(first + TOKENS, nodes)
    if WINDOW > 0:
        query = first + tl.arange(0, TOKENS_PAD)
        shallowest = tl.min(tl.load(positions + query, mask=query < stop, other=2**30), 0)
        deepest = tl.max(tl.load(positions + query, mask=query < stop, other=0), 0)
    whole_count = tl.zeros([], tl.int32)
    partial_count = tl.zeros([], tl.int32)
    for base in range(tl.load(roots + first) // KEYS, tl.cdiv(stop, KEYS), CHUNK):
        key_tile = base + tl.arange(0, CHUNK)
        key = key_tile[:, None] * KEYS + tl.arange(0, KEYS)[None, :]
        end = tl.load(ends + key, mask=key < stop, other=0)
        seen = tl.max(end, 1) > first
        whole = seen & (tl.min(end, 1) >= stop) & (key_tile * KEYS + KEYS - 1 <= first)
        if WINDOW > 0:
            near = tl.max(tl.load(positions + key, mask=key < stop, other=0), 1)
            far = tl.min(tl.load(positions + key, mask=key < stop, other=2**30), 1)
            seen &= shallowest - near < WINDOW
            whole &= seen & (deepest - far < WINDOW)
        partial = (seen & (whole == 0)).to(tl.int32)
        whole = whole.to(tl.int32)
        left = whole_count + tl.cumsum(whole, 0) - 1
        right = key_tiles - partial_count - tl.cumsum(partial, 0)
        tl.store(row + 2 + left, key_tile, mask=whole > 0)
        tl.store(row + 2 + right, key_tile, mask=partial > 0)
        whole_count += tl.sum(whole, 0)
        partial_count += tl.sum(partial, 0)
    tl.store(row, whole_count)
    tl.store(row + 1, partial_count)


@triton.jit
def _visible(token, key, end, place, positions, nodes, WINDOW: tl.constexpr):
    """Return which keys each query sees, broadcasting over the shapes of token and key."""
    visible = (key <= token) & (token < end)
    if WINDOW > 0:
        visible &= place - tl.load(positions + key, mask=key < nodes, other=0) < WINDOW
    return visible


@triton.jit
def _load_keys(base, tile, row_stride, dim, nodes, D: tl.constexpr, KEYS: tl.constexpr):
    """Load a tile of keys or values, as zeros beyond the last node."""
    local = tl.arange(0, KEYS)
    mask = (tile * KEYS + local < nodes)[:, None] & (dim < D)[None, :]
    start = base + (tile * KEYS).to(tl.int64) * row_stride
    return tl.load(start + (local[:, None] * row_stride + dim[None, :]), mask=mask, other=0.0)


@triton.jit
def _query_rows(tile, nodes, ROWS: tl.constexpr, GROUP: tl.constexpr):
    """Return the rows of a query tile: token in the tile, head in the group, and which exist."""
    rank = tl.arange(0, ROWS)
    TOKENS: tl.constexpr = ROWS // GROUP
    step = rank // GROUP
    real = (rank < TOKENS * GROUP) & (tile * TOKENS + step < nodes)
    return step, rank % GROUP, real


@triton.jit
def _query_places(base, first, kv_head, step, member, row, head, GROUP: tl.constexpr):
    """Return where the rows of a query tile begin, for these strides of tokens and heads."""
    return base + (first.to(tl.int64) * row + kv_head * GROUP * head) + (step * row + member * head)


@triton.jit
def _forward_step(
    queries, mixed, top, total, key_tile, keys_base, values_base, ends, positions,
    token, place, dim, nodes, scale, k_row, v_row,
    D: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Attend to one tile of keys; WHOLE: every query sees every key of it."""
    key = key_tile * KEYS + tl.arange(0, KEYS)
    keys = _load_keys(keys_base, key_tile, k_row, dim, nodes, D, KEYS)
    values = _load_keys(values_base, key_tile, v_row, dim, nodes, D, KEYS)
    logits = base2_logits(tl.dot(queries, tl.trans(keys), input_precision="ieee"), scale, SOFTCAP)
    if not WHOLE:
        end = tl.load(ends + key, mask=key < nodes, other=0)[None, :]
        visible = _visible(token[:, None], key[None, :], end, place, positions, nodes, WINDOW)
        logits = tl.where(visible, logits, MASKED)
    weights, decay, top, total = softmax_step(logits, top, total)
    mixed = tl.dot(weights.to(values.dtype), values, mixed * decay[:, None], input_precision="ieee")
    return mixed, top, total


@triton.jit(do_not_specialize=["nodes", "key_tiles"])
def forward_kernel(
    query, keys, values, ends, positions, sinks, plan, out, sums, scale, nodes, key_tiles,
    q_row, q_head, k_row, k_head, v_row, v_head,
    GROUP: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)  # in one long chain the last has most work
    TOKENS: tl.constexpr = ROWS // GROUP
    heads = tl.num_programs(0) * GROUP
    dim = tl.arange(0, DIM)
    step, member, real = _query_rows(tile, nodes, ROWS, GROUP)
    first = tile * TOKENS
    token = first + step
    tile_mask = real[:, None] & (dim < D)[None, :]
    places = _query_places(query, first, kv_head, step, member, q_row, q_head, GROUP)
    queries = tl.load(places[:, None] + dim[None, :], mask=tile_mask, other=0.0)
    queries = queries.to(keys.dtype.element_ty)
    place = tl.load(positions + token, mask=real, other=0)[:, None]
    top, total = softmax_start(sinks, kv_head * GROUP + member, real, ROWS, HAS_SINKS)
    mixed = tl.zeros([ROWS, DIM], tl.float32)

    row = plan + tile.to(tl.int64) * (key_tiles + 2)
    keys_base = keys + kv_head * k_head
    values_base = values + kv_head * v_head
    for index in range(tl.load(row)):
        mixed, top, total = _forward_step(
            queries, mixed, top, total, tl.load(row + 2 + index), keys_base, values_base,
            ends, positions, token, place, dim, nodes, scale, k_row, v_row,
            D, KEYS, WINDOW, SOFTCAP, True,
        )  # fmt: skip
    for index in range(tl.load(row + 1)):
        mixed, top, total = _forward_step(
            queries, mixed, top, total, tl.load(row + 1 + key_tiles - index), keys_base,
            values_base, ends, positions, token, place, dim, nodes, scale, k_row, v_row,
            D, KEYS, WINDOW, SOFTCAP, False,
        )  # fmt: skip
    places = _query_places(out, first, kv_head, step, member, heads * D, D, GROUP)
    tl.store(places[:, None] + dim[None, :], mixed / total[:, None], mask=tile_mask)
    places = _query_places(sums, first, kv_head, step, member, heads, 1, GROUP)
    tl.store(places, top + tl.log2(total), mask=real)


@triton.jit
def _logit_gradient(weights, logits, pulled, delta, SOFTCAP: tl.constexpr):
    """Return the gradient of the scaled dot products, before the soft cap."""
    gradient = weights * (pulled - delta)
    if SOFTCAP > 0:
        capped = logits * (1 / (SOFTCAP * LOG2E))
        gradient *= 1 - capped * capped
    return gradient


@triton.jit
def _load_queries(
    query, grad, sums, tile, kv_head, kv_heads, dim, nodes, q_row, q_head,
    GROUP: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Load what the backward pass needs of a tile of queries.

    Return the queries, the gradients of their outputs, and their logsumexp. Rows that do not exist
    have an infinite logsumexp: all their weights are zero.
    """
    step, member, real = _query_rows(tile, nodes, ROWS, GROUP)
    first = tile * (ROWS // GROUP)
    heads = kv_heads * GROUP
    mask = real[:, None] & (dim < D)[None, :]
    places = _query_places(query, first, kv_head, step, member, q_row, q_head, GROUP)
    queries = tl.load(places[:, None] + dim[None, :], mask=mask, other=0.0)
    places = _query_places(grad, first, kv_head, step, member, heads * D, D, GROUP)
    grads = tl.load(places[:, None] + dim[None, :], mask=mask, other=0.0)
    queries = queries.to(grads.dtype)
    places = _query_places(sums, first, kv_head, step, member, heads, 1, GROUP)
    row_sums = tl.load(places, mask=real, other=float("inf"))
    return queries, grads, row_sums


@triton.jit
def _query_step(
    queries, grads, sums, delta, d_query, key_tile, keys_base, values_base, ends, positions,
    token, place, dim, nodes, scale, k_row, v_row,
    D: tl.constexpr, KEYS: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """Add what one tile of keys contributes to the gradient of the queries."""
    key = key_tile * KEYS + tl.arange(0, KEYS)
    keys = _load_keys(keys_base, key_tile, k_row, dim, nodes, D, KEYS).to(grads.dtype)
    values = _load_keys(values_base, key_tile, v_row, dim, nodes, D, KEYS).to(grads.dtype)
    logits = base2_logits(tl.dot(queries, tl.trans(keys), input_precision="ieee"), scale, SOFTCAP)
    weights = tl.exp2(logits - sums[:, None])
    if not WHOLE:
        end = tl.load(ends + key, mask=key < nodes, other=0)[None, :]
        visible = _visible(token[:, None], key[None, :], end, place, positions, nodes, WINDOW)
        weights = tl.where(visible, weights, 0.0)
    pulled = tl.dot(grads, tl.trans(values), input_precision="ieee")
    gradient = _logit_gradient(weights, logits, pulled, delta[:, None], SOFTCAP)
    return tl.dot(gradient.to(keys.dtype), keys, d_query, input_precision="ieee")


@triton.jit(do_not_specialize=["nodes", "key_tiles"])
def query_kernel(
    query, keys, values, out, grad, sums, delta, ends, positions, plan, d_query, scale, nodes,
    key_tiles, q_row, q_head, k_row, k_head, v_row, v_head,
    GROUP: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of a tile of queries.

    Store also the dot product of each output with its gradient, which :func:`key_kernel` reads.
    """
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    TOKENS: tl.constexpr = ROWS // GROUP
    heads = tl.num_programs(0) * GROUP
    dim = tl.arange(0, DIM)
    step, member, real = _query_rows(tile, nodes, ROWS, GROUP)
    first = tile * TOKENS
    token = first + step
    place = tl.load(positions + token, mask=real, other=0)[:, None]
    queries, grads, row_sums = _load_queries(
        query, grad, sums, tile, kv_head, tl.num_programs(0), dim, nodes, q_row, q_head,
        GROUP, D, ROWS,
    )  # fmt: skip
    tile_mask = real[:, None] & (dim < D)[None, :]
    places = _query_places(out, first, kv_head, step, member, heads * D, D, GROUP)
    outputs = tl.load(places[:, None] + dim[None, :], mask=tile_mask, other=0.0)
    row_delta = tl.sum(grads.to(tl.float32) * outputs, 1)
    places = _query_places(delta, first, kv_head, step, member, heads, 1, GROUP)
    tl.store(places, row_delta, mask=real)
    gradient = tl.zeros([ROWS, DIM], tl.float32)

    row = plan + tile.to(tl.int64) * (key_tiles + 2)
    keys_base = keys + kv_head * k_head
    values_base = values + kv_head * v_head
    for index in range(tl.load(row)):
        gradient = _query_step(
            queries, grads, row_sums, row_delta, gradient, tl.load(row + 2 + index), keys_base,
            values_base, ends, positions, token, place, dim, nodes, scale, k_row, v_row,
            D, KEYS, WINDOW, SOFTCAP, True,
        )  # fmt: skip
    for index in range(tl.load(row + 1)):
        gradient = _query_step(
            queries, grads, row_sums, row_delta, gradient, tl.load(row + 1 + key_tiles - index),
            keys_base, values_base, ends, positions, token, place, dim, nodes, scale, k_row, v_row,
            D, KEYS, WINDOW, SOFTCAP, False,
        )  # fmt: skip
    places = _query_places(d_query, first, kv_head, step, member, heads * D, D, GROUP)
    tl.store(places[:, None] + dim[None, :], gradient * scale, mask=tile_mask)


@triton.jit
def _key_step(
    keys, values, d_key, d_value, tile, query, grad, sums, delta, positions, kv_head,
    kv_heads, key, end, dim, nodes, scale, q_row, q_head,
    GROUP: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Add what one tile of queries contributes to the gradients of the keys and values."""
    queries, grads, row_sums = _load_queries(
        query, grad, sums, tile, kv_head, kv_heads, dim, nodes, q_row, q_head, GROUP, D, ROWS
    )
    step, member, real = _query_rows(tile, nodes, ROWS, GROUP)
    first = tile * (ROWS // GROUP)
    places = _query_places(delta, first, kv_head, step, member, kv_heads * GROUP, 1, GROUP)
    row_delta = tl.load(places, mask=real, other=0.0)

    # All tiles are transposed here: keys are rows, queries columns.
    logits = base2_logits(tl.dot(keys, tl.trans(queries), input_precision="ieee"), scale, SOFTCAP)
    weights = tl.exp2(logits - row_sums[None, :])
    if not WHOLE:
        token = tile * (ROWS // GROUP) + tl.arange(0, ROWS) // GROUP
        place = tl.load(positions + token, mask=token < nodes, other=0)[None, :]
        visible = _visible(
            token[None, :], key[:, None], end[:, None], place, positions, nodes, WINDOW
        )
        weights = tl.where(visible, weights, 0.0)
    d_value = tl.dot(weights.to(grads.dtype), grads, d_value, input_precision="ieee")
    pulled = tl.dot(values, tl.trans(grads), input_precision="ieee")
    gradient = _logit_gradient(weights, logits, pulled, row_delta[None, :], SOFTCAP)
    d_key = tl.dot(gradient.to(queries.dtype), queries, d_key, input_precision="ieee")
    return d_key, d_value


@triton.jit(do_not_specialize=["nodes"])
def key_kernel(
    query, keys, values, grad, sums, delta, ends, positions, d_key, d_value, scale, nodes,
    q_row, q_head, k_row, k_head, v_row, v_head,
    GROUP: tl.constexpr, D: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of a tile of keys and values, from all heads that share them."""
    kv_head, key_tile = tl.program_id(0), tl.program_id(1)
    kv_heads = tl.num_programs(0)
    TOKENS: tl.constexpr = ROWS // GROUP
    dim = tl.arange(0, DIM)
    key = key_tile * KEYS + tl.arange(0, KEYS)
    end = tl.load(ends + key, mask=key < nodes, other=0)
    key_rows = _load_keys(keys + kv_head * k_head, key_tile, k_row, dim, nodes, D, KEYS)
    value_rows = _load_keys(values + kv_head * v_head, key_tile, v_row, dim, nodes, D, KEYS)
    key_rows = key_rows.to(grad.dtype.element_ty)
    value_rows = value_rows.to(grad.dtype.element_ty)
    key_grad = tl.zeros([KEYS, DIM], tl.float32)
    value_grad = tl.zeros([KEYS, DIM], tl.float32)

    # Query tiles whole_low..whole_high see every key; those around them need the mask.
    last = tl.minimum(key_tile * KEYS + KEYS, nodes) - 1
    low = key_tile * KEYS // TOKENS
    high = tl.cdiv(tl.max(end, 0), TOKENS)
    whole_low = tl.cdiv(last, TOKENS)
    if WINDOW > 0:
        nearest = tl.max(tl.load(positions + key, mask=key < nodes, other=0), 0)
        whole_high = whole_low
    else:
        nearest = 0
        whole_high = tl.min(tl.where(key < nodes, end, nodes), 0) // TOKENS
        whole_high = tl.maximum(whole_high, whole_low)
        for tile in range(whole_low, whole_high):
            key_grad, value_grad = _key_step(
                key_rows, value_rows, key_grad, value_grad, tile, query, grad, sums, delta,
                positions, kv_head, kv_heads, key, end, dim, nodes, scale, q_row, q_head,
                GROUP, D, WINDOW, SOFTCAP, ROWS, True,
            )  # fmt: skip
    for index in range(low, high - (whole_high - whole_low)):
        tile = tl.where(index < whole_low, index, index + whole_high - whole_low)
        if WINDOW > 0:
            token = tile * TOKENS + tl.arange(0, ROWS) // GROUP
            place = tl.load(positions + token, mask=token < nodes, other=2**30)
            near = tl.min(place, 0) - nearest < WINDOW
        else:
            near = True
        if near:
            key_grad, value_grad = _key_step(
                key_rows, value_rows, key_grad, value_grad, tile, query, grad, sums, delta,
                positions, kv_head, kv_heads, key, end, dim, nodes, scale, q_row, q_head,
                GROUP, D, WINDOW, SOFTCAP, ROWS, False,
            )  # fmt: skip
    flat = (key.to(tl.int64) * kv_heads + kv_head)[:, None] * D + dim[None, :]
    mask = (key < nodes)[:, None] & (dim < D)[None, :]
    tl.store(d_key + flat, key_grad * scale, mask=mask)
    tl.store(d_value + flat, value_grad, mask=mask)
