/*
 * Kernels for sampling on a CPU that has AVX-512 with products of bfloat16.
 *
 * The result of a row never depends on the other rows: each number is summed in one order, whatever
 * the number of rows, of threads, and of rows that share a tile. Threads divide the work by
 * numbers of the result, never the terms of one sum.
 *
 * Matrices are read as words of 32 bits: one float, or two neighbouring bfloat16 of one row.
 */
#include <immintrin.h>
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

enum {
    LANES = 16,        /* floats of a register */
    WIDE = 4,          /* registers of a wide panel; a narrow one has 1 */
    TILE = 6,          /* rows of a tile: 6 x 4 sums, 4 columns and a value are 29 of 32 registers */
    DEPTH = 1024,      /* words of a panel that are multiplied at a time: 256 KB stay in L2 */
    BLOCK = 16,        /* tokens of a block of keys and values */
    SLOTS = 17,        /* adapters: of the samplers of one pass, and of the run in training */
    ALONE = 1 << 15,   /* multiplications that are not worth waking other threads */
};

INLINE __mmask16 first_lanes(int64_t count) {
    return count <= 0 ? 0 : count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1);
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

/* exp(x) to about 1 ulp: 2^n times a Taylor polynomial of the rest, which is at most ln(2) / 2.
 * The bounds come first in min and max, so that NaN stays NaN. */
INLINE __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(200), _mm512_max_ps(_mm512_set1_ps(-200), x));
    __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x); /* ln(2) in two parts */
    x = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), x);
    __m512 sum = _mm512_set1_ps(1 / 5040.0f);
    const float terms[] = {1 / 720.0f, 1 / 120.0f, 1 / 24.0f, 1 / 6.0f, 0.5f, 1, 1};
    UNROLL for (int i = 0; i < 7; i++) sum = _mm512_fmadd_ps(sum, x, _mm512_set1_ps(terms[i]));
    return _mm512_scalef_ps(sum, n);
}

/* Memory of the calling thread that is valid until its next call. */
static void *scratch(size_t bytes) {
    static _Thread_local void *memory;
    static _Thread_local size_t size;
    if (bytes > size) {
        free(memory);
        size = bytes + bytes / 4;
        memory = aligned_alloc(64, (size + 63) / 64 * 64);
        if (!memory) abort();
    }
    return memory;
}

/* ---- products ------------------------------------------------------------------------------- */

/* Columns of the result that are computed together. Their words are contiguous: for each word of a
 * row, those of all columns of the panel. */
typedef struct {
    int32_t first, columns; /* of the result */
    int32_t padded;         /* where the panel begins, in columns that are padded to whole registers */
    int32_t wide;           /* registers: WIDE or 1 */
    int32_t site;           /* of several layers in one product, which one */
} Panel;

/* A frozen matrix, and the adapters that add to it. A of a slot is a [depth, sites * rank] matrix
 * of wide panels and one of what registers remain, B has the panels of the frozen one and a depth of
 * rank. */
typedef struct {
    const uint32_t *words;
    const Panel *panels;
    int64_t panel_count, inputs, depth, is_bf16, sites;
    const float *a[SLOTS], *b[SLOTS];
    int64_t rank[SLOTS];
} Matrix;

/* The rows of a pass by the slot of their adapter: group g has rows[starts[g]] and those up to the
 * next group. A slot of -1 is none. Without rows, all are one group. The products of the rows and
 * the adapter's A may be given, [rows, sites * rank], if all are one group. */
typedef struct {
    const float *inner;
    const int64_t *rows;
    int64_t groups;
    int64_t slots[SLOTS + 1], starts[SLOTS + 2];
} Rows;

typedef struct {
    int32_t first, count, slot;
} Tile;

typedef struct {
    const uint32_t *x[TILE], *w;
    const uint32_t *inner[TILE], *b; /* of the adapter */
    int64_t depth, rank;
    const uint32_t *ahead; /* to prefetch: what the next panel needs */
    int64_t pace;          /* words of it for each word of a row */
    float *y[TILE];
    const float *bias;
    int64_t columns;
    int adds; /* to what is in y */
} Task;

INLINE void add_products(const int bf16, const int rows, const int wide, int64_t depth,
                         const uint32_t *const *x, const uint32_t *w, const uint32_t *ahead,
                         int64_t pace, __m512 sum[TILE][WIDE]) {
    for (int64_t k = 0; k < depth; k++) {
        __m512i column[WIDE];
        UNROLL for (int j = 0; j < wide; j++)
            column[j] = _mm512_loadu_si512(w + (k * wide + j) * LANES);
        if (bf16) _mm_prefetch((const char *)(ahead + k * pace), _MM_HINT_T1);
        UNROLL for (int i = 0; i < rows; i++) {
            __m512i value = _mm512_set1_epi32((int)x[i][k]);
            UNROLL for (int j = 0; j < wide; j++)
                sum[i][j] = bf16 ? _mm512_dpbf16_ps(sum[i][j], (__m512bh)value, (__m512bh)column[j])
                                 : _mm512_fmadd_ps((__m512)value, (__m512)column[j], sum[i][j]);
        }
    }
}

INLINE void run_task(const int bf16, const int rows, const int wide, const Task *task) {
    __m512 sum[TILE][WIDE];
    UNROLL for (int i = 0; i < rows; i++)
        UNROLL for (int j = 0; j < wide; j++) sum[i][j] = _mm512_setzero_ps();
    add_products(bf16, rows, wide, task->depth, task->x, task->w, task->ahead, task->pace, sum);
    add_products(0, rows, wide, task->rank, task->inner, task->b, NULL, 0, sum);
    UNROLL for (int j = 0; j < wide; j++) {
        __mmask16 mask = first_lanes(task->columns - j * LANES);
        UNROLL for (int i = 0; i < rows; i++) {
            float *y = task->y[i] + j * LANES;
            __m512 value = sum[i][j];
            if (task->bias)
                value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, task->bias + j * LANES));
            if (task->adds) value = _mm512_add_ps(value, _mm512_maskz_loadu_ps(mask, y));
            _mm512_mask_storeu_ps(y, mask, value);
        }
    }
}

#define TASK(bf16, rows, wide) \
    static void task_##bf16##_##rows##_##wide(const Task *task) { run_task(bf16, rows, wide, task); }
#define TASKS(bf16, wide) TASK(bf16, 1, wide) TASK(bf16, 2, wide) TASK(bf16, 6, wide)
TASKS(0, 1)
TASKS(0, 2)
TASKS(0, 3)
TASKS(0, 4)
TASKS(1, 1)
TASKS(1, 4)

static void (*const task_of[2][WIDE][3])(const Task *) = {
    {{task_0_1_1, task_0_2_1, task_0_6_1}, {task_0_1_2, task_0_2_2, task_0_6_2},
     {task_0_1_3, task_0_2_3, task_0_6_3}, {task_0_1_4, task_0_2_4, task_0_6_4}},
    {[0] = {task_1_1_1, task_1_2_1, task_1_6_1}, [3] = {task_1_1_4, task_1_2_4, task_1_6_4}},
};

INLINE void dispatch(int bf16, int wide, int rows, const Task *task) {
    task_of[bf16][wide - 1][rows == TILE ? 2 : rows - 1](task);
}

/* Lay out a weight, whose element [column, k] is at column * row_stride + k * column_stride. */
void mint_pack(const Matrix *m, const void *weight, int64_t row_stride, int64_t column_stride,
               uint32_t *words, int threads) {
    const uint16_t *halves = weight;
    const uint32_t *floats = weight;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < m->panel_count; p++) {
        Panel panel = m->panels[p];
        uint32_t *out = words + panel.padded * m->depth;
        for (int64_t k = 0; k < m->depth; k++)
            for (int64_t c = 0; c < panel.wide * LANES; c++) {
                int64_t at = (panel.first + c) * row_stride;
                uint32_t word = 0;
                if (c < panel.columns && !m->is_bf16) word = floats[at + k * column_stride];
                if (c < panel.columns && m->is_bf16) {
                    word = halves[at + 2 * k * column_stride];
                    if (2 * k + 1 < m->inputs)
                        word |= (uint32_t)halves[at + (2 * k + 1) * column_stride] << 16;
                }
                *out++ = word;
            }
    }
}

static void round_row(const float *x, int64_t count, uint32_t *words) {
    uint16_t *out = (uint16_t *)words;
    for (int64_t k = 0; k < count; k += LANES) {
        __mmask16 mask = first_lanes(count - k);
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, x + k));
        _mm256_mask_storeu_epi16(out + k, mask, rounded);
    }
    if (count % 2) out[count] = 0;
}

/* One panel of the result, for some tiles of rows. The thread then needs the words at `after`; `next`
 * is the matrix that follows the last panel, and NULL for others. */
static void multiply_panel(const Matrix *m, Panel panel, const uint32_t *after, const Matrix *next,
                           const Tile *tiles, int64_t count, const int64_t *rows,
                           const uint32_t *words, int64_t stride, const float *inner,
                           int64_t height, const float *bias, float *y, int64_t ldy, int adds) {
    const uint32_t *w = m->words + panel.padded * m->depth;
    int64_t width = panel.wide * LANES;
    for (int64_t at = 0; at < m->depth; at += DEPTH) {
        int is_last = at + DEPTH >= m->depth;
        for (int64_t t = 0; t < count; t++) {
            Tile tile = tiles[t];
            Task task = {.w = w + at * width, .depth = least(DEPTH, m->depth - at)};
            /* Each tile prefetches a part of what comes next, at an even pace: memory delivers a
             * panel in the time that all of its tiles take, not in that of a few. Few tiles leave
             * some lines to the processor's own prefetching. */
            const float *a = next && tile.slot >= 0 ? next->a[tile.slot] : NULL;
            int64_t half = a && count > WIDE ? count / 2 : 0, others = count - half;
            if (t < half) { /* of the last panel: the next product begins with the adapter's A */
                int64_t size = next->rank[tile.slot] * next->sites * next->inputs;
                task.pace = least(LANES, size / (half * task.depth) + 1);
                task.ahead = (const uint32_t *)a + t * task.pace * task.depth;
            } else {
                task.pace = count > WIDE ? (width + others - 1) / others : width;
                task.ahead = is_last ? after : task.w + task.depth * width;
                task.ahead += count > WIDE ? (t - half) * task.pace * task.depth : t * LANES;
            }
            task.columns = panel.columns;
            task.adds = adds || at;
            task.bias = is_last && bias ? bias + panel.first : NULL;
            if (is_last && tile.slot >= 0 && m->a[tile.slot]) {
                task.rank = m->rank[tile.slot];
                task.b = (const uint32_t *)m->b[tile.slot] + panel.padded * task.rank;
                if (!t || tiles[t - 1].slot != tile.slot)
                    for (int64_t k = 0; k < task.rank * width; k += LANES)
                        _mm_prefetch((const char *)(task.b + k), _MM_HINT_T0);
            }
            for (int i = 0; i < tile.count; i++) {
                int64_t row = tile.first + i;
                int64_t own = rows ? rows[row] : row;
                task.x[i] = words + (m->is_bf16 ? row : own) * stride + at;
                task.inner[i] = (const uint32_t *)inner + row * height + panel.site * task.rank;
                task.y[i] = y + own * ldy + panel.first;
            }
            dispatch((int)m->is_bf16, panel.wide, tile.count, &task);
        }
    }
}

/* The product of some rows and a panel of an adapter's A, from a given column. */
static void multiply_inner(const Matrix *m, Tile tile, int64_t column, const int64_t *rows,
                           const float *x, int64_t ldx, float *inner, int64_t height) {
    int64_t columns = m->rank[tile.slot] * m->sites;
    Task task = {.w = (const uint32_t *)m->a[tile.slot] + column * m->inputs, .depth = m->inputs};
    task.columns = columns - column;
    for (int i = 0; i < tile.count; i++) {
        int64_t row = tile.first + i;
        task.x[i] = (const uint32_t *)x + (rows ? rows[row] : row) * ldx;
        task.y[i] = inner + row * height + column;
    }
    dispatch(0, (int)least(WIDE, (task.columns + LANES - 1) / LANES), tile.count, &task);
}

/* The words that a thread multiplies from some tile of rows on, of all panels and tiles. */
INLINE const uint32_t *words_of(const Matrix *m, int64_t item, int64_t tile_count) {
    int64_t panel = item / tile_count;
    return m->words + (panel < m->panel_count ? m->panels[panel].padded * m->depth : 0);
}

/* y = W x + B A x + bias for each row of x, or onto what is in y. The same rows are then multiplied
 * by the matrix `next`. */
static void multiply(const Matrix *m, const Matrix *next, const Rows *by_slot, const float *x,
                     int64_t ldx, int64_t count, const float *bias, float *y, int64_t ldy, int adds,
                     int threads) {
    Rows groups = *by_slot;
    const int64_t *rows = groups.rows;
    if (!rows) groups.starts[1] = count;
    int64_t tile_count = 0, height = 0;
    for (int64_t g = 0; g < groups.groups; g++) {
        int64_t slot = groups.slots[g];
        if (slot >= 0 && m->a[slot]) height = most(height, m->rank[slot] * m->sites);
    }
    size_t words_size = ((size_t)(count * m->depth * 4 * m->is_bf16) + 63) & ~63ul;
    size_t inner_size = ((size_t)(count * height * 4) + 63) & ~63ul;
    char *memory = scratch(words_size + inner_size + (size_t)count * sizeof(Tile) + 64);
    float *computed = (float *)(memory + words_size);
    const float *inner = groups.inner ? groups.inner : computed;
    Tile *tiles = (Tile *)(memory + words_size + inner_size);
    for (int64_t g = 0; g < groups.groups; g++)
        for (int64_t at = groups.starts[g], end = groups.starts[g + 1], size; at < end; at += size) {
            size = end - at >= TILE ? TILE : end - at >= 2 ? 2 : 1;
            tiles[tile_count++] = (Tile){(int32_t)at, (int32_t)size, (int32_t)groups.slots[g]};
        }
    if (!tile_count) return;
    const uint32_t *words = m->is_bf16 ? (uint32_t *)memory : (const uint32_t *)x;
    int64_t stride = m->is_bf16 ? m->depth : ldx;
    int64_t a_panels = groups.inner ? 0 : (height + WIDE * LANES - 1) / (WIDE * LANES);
    if (count * m->depth * m->panel_count < ALONE) threads = 1;
#pragma omp parallel num_threads(threads)
    {
        if (m->is_bf16) {
#pragma omp for schedule(static) nowait
            for (int64_t row = 0; row < count; row++)
                round_row(x + (rows ? rows[row] : row) * ldx, m->inputs,
                          (uint32_t *)memory + row * m->depth);
        }
#pragma omp for schedule(static)
        for (int64_t item = 0; item < a_panels * tile_count; item++) {
            Tile tile = tiles[item % tile_count];
            int64_t column = item / tile_count * WIDE * LANES;
            if (tile.slot >= 0 && m->a[tile.slot] && column < m->rank[tile.slot] * m->sites)
                multiply_inner(m, tile, column, rows, x, ldx, computed, height);
        }
        /* Panel by panel, so that one stays in L2 for all tiles; equal shares of tiles. */
        int64_t items = m->panel_count * tile_count, team = omp_get_num_threads();
        int64_t number = omp_get_thread_num(), at = items * number / team;
        int64_t end = items * (number + 1) / team;
        int64_t next_item = next->panel_count * tile_count * number / team;
        const uint32_t *later = words_of(next, next_item, tile_count);
        while (at < end) {
            int64_t first = at % tile_count, share = least(tile_count - first, end - at);
            const uint32_t *after = at + share < end ? words_of(m, at + share, tile_count) : later;
            multiply_panel(m, m->panels[at / tile_count], after, at + share < end ? NULL : next,
                           tiles + first, share, rows, words, stride, inner, height, bias, y, ldy,
                           adds);
            at += share;
        }
    }
}

void mint_multiply(const Matrix *m, const Rows *by_slot, const float *x, int64_t ldx, int64_t count,
                   const float *bias, float *y, int64_t ldy, int adds, int threads) {
    multiply(m, m, by_slot, x, ldx, count, bias, y, ldy, adds, threads);
}

/* ---- norms, activations, positions ---------------------------------------------------------- */

/* Returns 1 / sqrt(mean(x^2) + epsilon). */
static float normalize(const float *x, int64_t size, const float *weight, float epsilon, float *y) {
    __m512 squares = _mm512_setzero_ps();
    for (int64_t k = 0; k < size; k += LANES) {
        __m512 value = _mm512_maskz_loadu_ps(first_lanes(size - k), x + k);
        squares = _mm512_fmadd_ps(value, value, squares);
    }
    float factor = 1 / sqrtf(_mm512_reduce_add_ps(squares) / (float)size + epsilon);
    for (int64_t k = 0; k < size; k++) y[k] = weight[k] * (x[k] * factor);
    return factor;
}

/* RMSNorm of each row, and the factor of each unless factors is NULL. */
void mint_norm(const float *x, int64_t count, int64_t size, const float *weight, float epsilon,
               float *y, float *factors, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < count; row++) {
        float factor = normalize(x + row * size, size, weight, epsilon, y + row * size);
        if (factors) factors[row] = factor;
    }
}

/* silu(gate) * up, of rows that hold both one after the other. */
void mint_gate(const float *x, int64_t count, int64_t size, float *y, int threads) {
    const __m512 one = _mm512_set1_ps(1);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < count; row++)
        for (int64_t k = 0; k < size; k += LANES) {
            __mmask16 mask = first_lanes(size - k);
            __m512 gate = _mm512_maskz_loadu_ps(mask, x + row * 2 * size + k);
            __m512 up = _mm512_maskz_loadu_ps(mask, x + (row * 2 + 1) * size + k);
            __m512 below = _mm512_add_ps(one, exp16(_mm512_sub_ps(_mm512_setzero_ps(), gate)));
            _mm512_mask_storeu_ps(y + row * size + k, mask,
                                  _mm512_mul_ps(_mm512_div_ps(gate, below), up));
        }
}

/* The sizes of an attention layer. */
typedef struct {
    int64_t heads, key_heads, size, window; /* a window of 0 is none */
    float scale, softcap;
    const float *sinks;
    uint16_t *keys, *values; /* the pool: [block, key head, size, BLOCK] and [block, key head, BLOCK, size] */
} Layer;

/* The pool holds float16: larger numbers are cut to its largest, and NaN stays NaN. */
INLINE __m512 from_halves(__mmask16 mask, const uint16_t *halves) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, halves));
}

static void to_halves(const float *x, int64_t count, uint16_t *halves) {
    const __m512 bound = _mm512_set1_ps(65504);
    for (int64_t k = 0; k < count; k += LANES) {
        __mmask16 mask = first_lanes(count - k);
        __m512 value = _mm512_maskz_loadu_ps(mask, x + k);
        value = _mm512_min_ps(bound, _mm512_max_ps(_mm512_sub_ps(_mm512_setzero_ps(), bound), value));
        _mm256_mask_storeu_epi16(halves + k, mask, _mm512_cvtps_ph(value, 0));
    }
}

static void turn(float *x, int64_t turned, const float *cosine, const float *sine) {
    int64_t half = turned / 2;
    for (int64_t k = 0; k < half; k++) {
        float a = x[k], b = x[k + half];
        x[k] = a * cosine[k] - b * sine[k];
        x[k + half] = b * cosine[k + half] + a * sine[k + half];
    }
}

/* Normalize and turn the heads of queries and keys, all optional; store keys and values.
 * A row of x has queries, keys and values; slots say where in the pool its token is. */
void mint_store(const Layer *layer, float *x, int64_t ldx, int64_t count, const float *query_norm,
                const float *key_norm, float epsilon, const float *cosine, const float *sine,
                int64_t turned, const int64_t *slots, int threads) {
    int64_t size = layer->size, heads = layer->heads, key_heads = layer->key_heads;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < count; row++) {
        for (int64_t h = 0; h < heads + key_heads; h++) {
            float *head = x + row * ldx + h * size;
            const float *norm = h < heads ? query_norm : key_norm;
            if (norm) normalize(head, size, norm, epsilon, head);
            turn(head, turned, cosine + row * turned, sine + row * turned);
        }
        int64_t block = slots[row] / BLOCK, offset = slots[row] % BLOCK;
        for (int64_t h = 0; h < key_heads; h++) {
            const float *key = x + row * ldx + (heads + h) * size, *value = key + key_heads * size;
            uint16_t *halves = scratch((size_t)size * 2);
            uint16_t *keys = layer->keys + (block * key_heads + h) * size * BLOCK;
            uint16_t *values = layer->values + (block * key_heads + h) * size * BLOCK;
            to_halves(key, size, halves);
            for (int64_t k = 0; k < size; k++) keys[k * BLOCK + offset] = halves[k];
            to_halves(value, size, values + offset * size);
        }
    }
}

/* ---- attention ------------------------------------------------------------------------------ */

enum { QUERIES = 4 }; /* that go through a block of keys together */

typedef struct {
    const float *q;
    float *sum; /* of the values, weighted */
    float peak;
    int64_t position;
    float totals[LANES]; /* of the weights: the k-th of each block */
} Query;

INLINE __m512 tanh16(__m512 x) { /* 1 - 2 / (exp(2x) + 1) */
    __m512 one = _mm512_set1_ps(1);
    __m512 below = _mm512_add_ps(exp16(_mm512_add_ps(x, x)), one);
    return _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), below));
}

/* Add some columns of a block's values to the sums of the queries. */
INLINE void add_values(const int count, const int wide, const Layer *layer, Query *queries,
                       const uint16_t *values, int64_t next, int64_t column, int first, int last,
                       float weights[QUERIES][BLOCK]) {
    __m512 sums[QUERIES][WIDE];
    __mmask16 mask = first_lanes(layer->size - column); /* of the last register */
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < wide; j++)
            sums[i][j] = _mm512_maskz_loadu_ps(mask, queries[i].sum + column + j * LANES);
    for (int at = first; at <= last; at++) {
        __m512 value[WIDE];
        UNROLL for (int j = 0; j < wide; j++) {
            int64_t place = at * layer->size + j * LANES;
            value[j] = from_halves(mask, values + place);
            if (j % 2 == 0) _mm_prefetch((const char *)(layer->values + next + place), _MM_HINT_T0);
        }
        UNROLL for (int i = 0; i < count; i++) {
            __m512 weight = _mm512_set1_ps(weights[i][at]);
            UNROLL for (int j = 0; j < wide; j++)
                sums[i][j] = _mm512_fmadd_ps(weight, value[j], sums[i][j]);
        }
    }
    UNROLL for (int i = 0; i < count; i++)
        UNROLL for (int j = 0; j < wide; j++)
            _mm512_mask_storeu_ps(queries[i].sum + column + j * LANES, mask, sums[i][j]);
}

/* Let some queries attend to one block of keys. A block that a query does not see changes nothing,
 * so the result does not depend on which queries share a call. */
INLINE void attend_block(const int count, const Layer *layer, Query *queries, int64_t place,
                         int64_t next, int64_t start) {
    const uint16_t *keys = layer->keys + place, *values = layer->values + place;
    __m512 scores[QUERIES], others[QUERIES];
    float weights[QUERIES][BLOCK];
    __mmask16 visible[QUERIES], any = 0;
    /* Even and odd terms have sums of their own: one addition need not wait for another. */
    UNROLL for (int i = 0; i < count; i++) scores[i] = others[i] = _mm512_setzero_ps();
    for (int64_t k = 0; k < layer->size; k += 2) {
        int64_t other = k + 1 < layer->size ? k + 1 : k;
        __m512 key = from_halves(0xffff, keys + k * BLOCK);
        __m512 other_key = from_halves(other > k ? 0xffff : 0, keys + other * BLOCK);
        _mm_prefetch((const char *)(layer->keys + next + k * BLOCK), _MM_HINT_T0);
        UNROLL for (int i = 0; i < count; i++) {
            scores[i] = _mm512_fmadd_ps(_mm512_set1_ps(queries[i].q[k]), key, scores[i]);
            others[i] = _mm512_fmadd_ps(_mm512_set1_ps(queries[i].q[other]), other_key, others[i]);
        }
    }
    UNROLL for (int i = 0; i < count; i++) {
        Query *query = queries + i;
        int64_t last = query->position - start;
        visible[i] = first_lanes(last + 1);
        if (layer->window) visible[i] &= (__mmask16)~first_lanes(last - layer->window + 1);
        any |= visible[i];
        __m512 score = _mm512_mul_ps(_mm512_add_ps(scores[i], others[i]), _mm512_set1_ps(layer->scale));
        if (layer->softcap > 0) {
            __m512 cap = _mm512_set1_ps(layer->softcap);
            score = _mm512_mul_ps(cap, tanh16(_mm512_div_ps(score, cap)));
        }
        __m512 totals = _mm512_loadu_ps(query->totals), before = _mm512_set1_ps(query->peak);
        if (_mm512_mask_cmp_ps_mask(visible[i], score, before, _CMP_NLE_UQ)) { /* also when NaN */
            float peak = _mm512_mask_reduce_max_ps(visible[i], score);
            float factor = query->peak == -INFINITY ? 0 : expf(query->peak - peak);
            totals = _mm512_mul_ps(totals, _mm512_set1_ps(factor));
            for (int64_t k = 0; k < layer->size; k++) query->sum[k] *= factor;
            query->peak = peak;
        }
        score = exp16(_mm512_sub_ps(score, _mm512_set1_ps(query->peak)));
        score = _mm512_maskz_mov_ps(visible[i], score);
        _mm512_storeu_ps(query->totals, _mm512_add_ps(totals, score));
        _mm512_storeu_ps(weights[i], score);
    }
    if (!any) return;
    /* Masked values may be uninitialised: skip them, since 0 * NaN is NaN. */
    int first = __builtin_ctz(any), last = 31 - __builtin_clz(any);
    int64_t k = 0;
    for (; k + WIDE * LANES <= layer->size; k += WIDE * LANES)
        add_values(count, WIDE, layer, queries, values + k, next + k, k, first, last, weights);
    for (; k < layer->size; k += LANES)
        add_values(count, 1, layer, queries, values + k, next + k, k, first, last, weights);
}

INLINE int64_t place(const Layer *layer, int64_t head, int64_t block) {
    return (block * layer->key_heads + head) * layer->size * BLOCK;
}

/* Attend to some blocks of a sequence. The first queries prefetch the next block, line by line, or at
 * the end the one that comes after: blocks are scattered over more memory than the caches hold. */
static void attend_blocks(const Layer *layer, int64_t head, Query *queries, int64_t count,
                          const int64_t *blocks, int64_t from, int64_t to, int64_t after) {
    for (int64_t b = from; b < to; b++) {
        int64_t at = place(layer, head, blocks[b]);
        int64_t next = place(layer, head, b + 1 < to ? blocks[b + 1] : after);
        for (int64_t i = 0, size; i < count; i += size, next = at) {
            size = least(count - i, QUERIES);
            Query *some = queries + i;
            if (size == 4) attend_block(4, layer, some, at, next, b * BLOCK);
            if (size == 3) attend_block(3, layer, some, at, next, b * BLOCK);
            if (size == 2) attend_block(2, layer, some, at, next, b * BLOCK);
            if (size == 1) attend_block(1, layer, some, at, next, b * BLOCK);
        }
    }
}

/* Rows that have their first blocks in common: those of group g are rows[starts[g]] and following,
 * and they share common[g] blocks. The blocks of a row begin at tables + table_of[row]. */
typedef struct {
    const int64_t *rows, *starts, *common, *tables, *table_of, *positions;
    int64_t groups, largest; /* group, in rows */
} Layout;

/* Attention of each row of x, which begins with its queries, to the blocks of its sequence. */
void mint_attend(const Layer *layer, const Layout *layout, const float *x, int64_t ldx, float *y,
                 int threads) {
    int64_t repeat = layer->heads / layer->key_heads, size = layer->size;
    int64_t room = layout->largest * repeat;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t item = 0; item < layout->groups * layer->key_heads; item++) {
        int64_t group = item / layer->key_heads, head = item % layer->key_heads;
        const int64_t *rows = layout->rows + layout->starts[group];
        int64_t count = layout->starts[group + 1] - layout->starts[group], earliest = INT64_MAX;
        float *sums = scratch((size_t)room * (sizeof(Query) + (size_t)size * 4));
        Query *queries = (Query *)(sums + room * size);
        memset(sums, 0, (size_t)(count * repeat * size) * 4);
        for (int64_t i = 0; i < count * repeat; i++) {
            int64_t row = rows[i / repeat], h = head * repeat + i % repeat;
            queries[i] = (Query){x + row * ldx + h * size, sums + i * size, -INFINITY,
                                 layout->positions[row], {0}};
            if (layer->sinks) queries[i].peak = layer->sinks[h], queries[i].totals[0] = 1;
            earliest = least(earliest, queries[i].position);
        }
        int64_t from = layer->window ? most(0, earliest - layer->window + 1) / BLOCK : 0;
        int64_t common = layout->common[group];
        const int64_t *blocks = layout->tables + layout->table_of[rows[0]];
        attend_blocks(layer, head, queries, count * repeat, blocks, least(from, common), common, 0);
        from = most(from, common);
        for (int64_t i = 0; i < count; i++) {
            blocks = layout->tables + layout->table_of[rows[i]];
            int64_t next = i + 1 < count ? layout->positions[rows[i + 1]] / BLOCK : -1;
            int64_t after = next < from ? 0 : layout->tables[layout->table_of[rows[i + 1]] + from];
            attend_blocks(layer, head, queries + i * repeat, repeat, blocks, from,
                          layout->positions[rows[i]] / BLOCK + 1, after);
        }
        for (int64_t i = 0; i < count * repeat; i++) {
            float *out = y + (rows[i / repeat] * layer->heads + head * repeat + i % repeat) * size;
            float total = _mm512_reduce_add_ps(_mm512_loadu_ps(queries[i].totals));
            for (int64_t k = 0; k < size; k++) out[k] = queries[i].sum[k] / total;
        }
    }
}

/* ---- decoder layers --------------------------------------------------------------------------- */

/* A decoder layer of Llama's kind. Norms of heads and biases may be NULL. */
typedef struct {
    const float *attention_norm, *mlp_norm, *query_norm, *key_norm;
    const Matrix *qkv, *out, *gate_up, *down;
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
    Layer attention;
    float epsilon;
    int32_t is_turned; /* whether queries and keys have rotary positions */
} Decoder;

/* Run the rows x [count, hidden] through decoder layers, in place. The work is of count times the
 * widest input of a product and the widest result, narrow and wide. */
void mint_decode(const Decoder *layers, int64_t layer_count, const Rows *by_slot,
                 const Layout *layout, float *x, int64_t count, const float *cosine,
                 const float *sine, int64_t turned, const int64_t *slots, float *narrow, float *wide,
                 int threads) {
    for (const Decoder *layer = layers; layer < layers + layer_count; layer++) {
        const Layer *attention = &layer->attention;
        const Matrix *following = (layer + 1 < layers + layer_count ? layer + 1 : layers)->qkv;
        int64_t hidden = layer->qkv->inputs, inside = layer->down->inputs;
        int64_t attended = attention->heads * attention->size;
        int64_t joint = attended + 2 * attention->key_heads * attention->size;
        mint_norm(x, count, hidden, layer->attention_norm, layer->epsilon, narrow, NULL, threads);
        multiply(layer->qkv, layer->out, by_slot, narrow, hidden, count, layer->qkv_bias, wide,
                 joint, 0, threads);
        mint_store(attention, wide, joint, count, layer->query_norm, layer->key_norm,
                   layer->epsilon, cosine, sine, layer->is_turned ? turned : 0, slots, threads);
        mint_attend(attention, layout, wide, joint, narrow, threads);
        multiply(layer->out, layer->gate_up, by_slot, narrow, attended, count, layer->out_bias, x,
                 hidden, 1, threads);
        mint_norm(x, count, hidden, layer->mlp_norm, layer->epsilon, narrow, NULL, threads);
        multiply(layer->gate_up, layer->down, by_slot, narrow, hidden, count, layer->gate_up_bias,
                 wide, 2 * inside, 0, threads);
        mint_gate(wide, count, inside, narrow, threads);
        multiply(layer->down, following, by_slot, narrow, inside, count, layer->down_bias, x, hidden,
                 1, threads);
    }
}

/* ---- picking -------------------------------------------------------------------------------- */

enum { PIECE = 256 }; /* tokens whose weights are summed in one go */

INLINE __m512 scaled16(const float *logits, int64_t left, __m512 temperature) {
    __m512 none = _mm512_set1_ps(-INFINITY);
    return _mm512_div_ps(_mm512_mask_loadu_ps(none, first_lanes(left), logits), temperature);
}

/* Pick a token of each row by inverting the cumulative distribution at a number in [0, 1), or the
 * likeliest one at temperature 0; return its logprob too. Never picks a token of weight 0. */
void mint_pick(const float *logits, int64_t count, int64_t size, const float *temperatures,
               const float *numbers, int64_t *tokens, float *logprobs, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t row = 0; row < count; row++) {
        const float *own = logits + row * size;
        int is_greedy = temperatures[row] == 0;
        __m512 heat = _mm512_set1_ps(is_greedy ? 1 : temperatures[row]), tops = scaled16(own, 0, heat);
        for (int64_t k = 0; k < size; k += LANES)
            tops = _mm512_max_ps(tops, scaled16(own + k, size - k, heat));
        __m512 peak = _mm512_set1_ps(_mm512_reduce_max_ps(tops));
        double *sums = scratch((size_t)(size / PIECE + 1) * 8), total = 0;
        for (int64_t k = 0; k < size; k += PIECE) {
            __m512 sum = _mm512_setzero_ps();
            for (int64_t at = k; at < least(k + PIECE, size); at += LANES)
                sum = _mm512_add_ps(sum, exp16(_mm512_sub_ps(scaled16(own + at, size - at, heat), peak)));
            sums[k / PIECE] = total += _mm512_reduce_add_ps(sum);
        }
        double target = numbers[row] * total, running = 0;
        int64_t piece = 0, token = size - 1, seen = -1;
        while (!is_greedy && piece < (size - 1) / PIECE && !(sums[piece] > target)) piece++;
        if (piece) running = sums[piece - 1];
        for (int64_t k = is_greedy ? 0 : piece * PIECE; k < size; k += LANES) {
            float weights[LANES];
            __m512 value = scaled16(own + k, size - k, heat);
            __mmask16 top = _mm512_cmp_ps_mask(value, peak, _CMP_EQ_OQ);
            if (is_greedy && !top) continue;
            if (is_greedy) {
                token = seen = k + __builtin_ctz(top);
                break;
            }
            _mm512_storeu_ps(weights, exp16(_mm512_sub_ps(value, peak)));
            int found = 0;
            for (int i = 0; i < LANES && k + i < size && !found; i++) {
                if (weights[i] > 0) token = seen = k + i;
                running += weights[i];
                found = seen >= 0 && running > target;
            }
            /* Rounding may leave the target beyond the piece's own sum: stay in it. */
            if (found || (seen >= 0 && k + LANES >= least((piece + 1) * PIECE, size))) break;
        }
        tokens[row] = token;
        float above = _mm512_cvtss_f32(_mm512_sub_ps(scaled16(own + token, 1, heat), peak));
        logprobs[row] = above - (float)log(total);
    }
}
