/* Training on a CPU: what torch does in many passes over memory, in one each.

   Everything is float32. A row is a token. Matrices are stored row by row; widths that vectors run
   along must be multiples of LANES (training.py's callers check them). */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16
#define TILE_ROWS 6
#define TILE_VECTORS 4
#define PANEL (TILE_VECTORS * LANES) /* columns that a tile of a product spans */

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4)));

static inline vec load(const float *p) { return *(const vec *)p; }
static inline void store(float *p, vec x) { *(vec *)p = x; }
/* a b + c, rounded once. */
static inline vec fused(vec a, vec b, vec c) {
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
static inline vec all(float x) { return (vec)_mm512_set1_ps(x); }
static inline vec choose(ivec mask, vec yes, vec no) {
    return (vec)(((ivec)yes & mask) | ((ivec)no & ~mask));
}
static inline float total(vec x) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += x[i];
    return sum;
}

/* e^x to about one unit in the last place; 0 below -87, at most e^88, NaN of NaN. */
static inline vec exponential(vec x) {
    const vec magic = all(12582912.0f);
    const float terms[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                           1.6666665459e-1f, 5.0000001201e-1f};
    ivec tiny = x < -87.0f;
    x = choose(tiny, (vec){0}, x);
    x = choose(x > 88.0f, all(88.0f), x);
    vec shifted = fused(x, all(1.44269504088896341f), magic);
    vec n = shifted - magic;
    vec r = fused(n, all(-0.693145751953125f), x);
    r = fused(n, all(-1.42860682030941723212e-6f), r);
    vec p = all(1.9875691500e-4f);
    for (int i = 0; i < 5; i++) p = fused(p, r, all(terms[i]));
    p = fused(p, r * r, r) + 1.0f;
    ivec power = ((ivec)shifted - (ivec)magic) << 23;
    vec result = choose(tiny, (vec){0}, (vec)((ivec)p + power));
    return choose(x != x, x, result);
}

/* ---- Products ------------------------------------------------------------------------------ */

/* C [rows, vectors * LANES] = A [rows, depth] B [depth, ...]; an element of A is at
   a[row * a_row + k * a_column]. */
#define INLINE static inline __attribute__((always_inline))
INLINE void tile(int rows, int vectors, long depth, const float *a, long a_row, long a_column,
                 const float *b, long b_row, float *c, long c_row) {
    vec sums[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sums[i][j] = (vec){0};
    for (long k = 0; k < depth; k++, a += a_column, b += b_row) {
        vec right[TILE_VECTORS];
        for (int j = 0; j < vectors; j++) right[j] = load(b + j * LANES);
        for (int i = 0; i < rows; i++) {
            vec left = all(a[i * a_row]);
            for (int j = 0; j < vectors; j++) sums[i][j] = fused(left, right[j], sums[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) store(c + i * c_row + j * LANES, sums[i][j]);
}

#define TILE(R, V) case (R) * 8 + (V): \
    tile(R, V, depth, a, a_row, a_column, b, b_row, c, c_row); break;
#define TILES(R) TILE(R, 1) TILE(R, 2) TILE(R, 3) TILE(R, 4)

static void any_tile(int rows, int vectors, long depth, const float *a, long a_row, long a_column,
                     const float *b, long b_row, float *c, long c_row) {
    switch (rows * 8 + vectors) { TILES(1) TILES(2) TILES(3) TILES(4) TILES(5) TILES(6) }
}

static long lesser(long a, long b) { return a < b ? a : b; }

/* C [m, n] = A [m, depth] B [depth, n] on one thread. */
static void product(long m, long n, long depth, const float *a, long a_row, long a_column,
                    const float *b, long b_row, float *c, long c_row) {
    for (long j = 0; j < n; j += PANEL)
        for (long i = 0; i < m; i += TILE_ROWS)
            any_tile(lesser(m - i, TILE_ROWS), lesser(n - j, PANEL) / LANES, depth,
                     a + i * a_row, a_row, a_column, b + j, b_row, c + i * c_row + j, c_row);
}

/* The same on all threads. The order of every sum is that of one thread. */
void train_product(long m, long n, long depth, const float *a, long a_row, long a_column,
                  const float *b, long b_row, float *c, long c_row) {
    const long height = 16 * TILE_ROWS;
    #pragma omp parallel for collapse(2) schedule(static)
    for (long j = 0; j < n; j += PANEL)
        for (long i = 0; i < m; i += height)
            product(lesser(m - i, height), lesser(n - j, PANEL), depth, a + i * a_row, a_row,
                    a_column, b + j, b_row, c + i * c_row + j, c_row);
}

/* ---- Gradients of the RMS norm y = w x / sqrt(mean(x^2) + eps) and of silu(gate) * up ---------- */

/* dx = s (w dy - x s^2 mean(w dy x)), with s the scale of the row. */
void train_norm_backward(long rows, long width, const float *grad, const float *x,
                        const float *weight, const float *scales, float *out) {
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *from = x + i * width, *slope = grad + i * width;
        vec dot = {0};
        for (long j = 0; j < width; j += LANES)
            dot += load(weight + j) * load(slope + j) * load(from + j);
        float s = scales[i], mean = total(dot) / width * s * s;
        for (long j = 0; j < width; j += LANES)
            store(out + i * width + j, s * (load(weight + j) * load(slope + j) - load(from + j) * mean));
    }
}

/* With gate and up side by side. */
void train_gated_backward(long rows, long width, const float *grad, const float *both, float *out) {
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        const float *gate = both + i * 2 * width, *up = gate + width;
        float *gate_grad = out + i * 2 * width, *up_grad = gate_grad + width;
        for (long j = 0; j < width; j += LANES) {
            vec g = load(gate + j), d = load(grad + i * width + j);
            vec share = 1.0f / (1.0f + exponential(-g));
            store(gate_grad + j, d * load(up + j) * share * (1.0f + g * (1.0f - share)));
            store(up_grad + j, d * g * share);
        }
    }
}

/* ---- Softmax of logits, in place ------------------------------------------------------------- */

/* Rows become probabilities at a temperature; sums get the logsumexp of each row. */
void train_softmax(long rows, long width, float *logits, float temperature, float *sums) {
    float factor = 1.0f / temperature;
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++) {
        float *row = logits + i * width, peak = -INFINITY;
        vec peaks = all(-INFINITY);
        for (long j = 0; j < width; j += LANES) {
            vec x = load(row + j) * factor;
            store(row + j, x);
            peaks = choose(x > peaks, x, peaks);
        }
        for (int j = 0; j < LANES; j++) peak = peaks[j] > peak ? peaks[j] : peak;
        double whole = 0;
        for (long j = 0; j < width; j += 64 * LANES) {
            vec sum = {0};
            for (long at = j; at < lesser(j + 64 * LANES, width); at += LANES) {
                vec e = exponential(load(row + at) - peak);
                store(row + at, e);
                sum += e;
            }
            whole += total(sum);
        }
        sums[i] = peak + (float)log(whole);
        float share = (float)(1 / whole);
        for (long j = 0; j < width; j += LANES) store(row + j, load(row + j) * share);
    }
}

/* ---- Attention in a prefix forest ------------------------------------------------------------ */

/* Node i sees node j iff j <= i < ends[j] and, with a window, iff positions[i] - positions[j] <
   window. Queries are taken in blocks of neighbouring nodes [starts[b], starts[b + 1]); a block sees
   the nodes keys[offsets[b]..offsets[b + 1]), in ascending order. Query heads that share a key head
   are computed together: their rows are (node, head) pairs. */
typedef struct {
    int64_t nodes, heads, key_heads, size; /* size of a head */
    int64_t blocks, most_keys, most_rows;
    const int64_t *starts, *offsets, *keys, *ends, *positions;
    int64_t window;
    float scale;
    int32_t rounds; /* keys and values to float16, as those in the sampler's pool are */
} Forest;

typedef struct {
    float *data;
    int64_t node, head; /* strides */
} Heads;

static long padded(long count) { return (count + LANES - 1) / LANES * LANES; }

static float *take(float **at, long count) {
    float *start = *at;
    *at += padded(count);
    return start;
}

/* The rows of a block's queries, and their transpose [size, width], filled up with zeros. */
static void copy_rows(const Forest *f, const Heads *from, long start, long stop, long key_head,
                      float factor, float *to, float *columns) {
    long group = f->heads / f->key_heads, width = padded((stop - start) * group), row = 0;
    memset(columns, 0, f->size * width * sizeof(float));
    for (long i = start; i < stop; i++)
        for (long g = 0; g < group; g++, row++) {
            const float *x = from->data + i * from->node + (key_head * group + g) * from->head;
            for (long d = 0; d < f->size; d++)
                columns[d * width + row] = to[row * f->size + d] = x[d] * factor;
        }
}

/* The keys or values of some nodes. */
static void gather(const Forest *f, const Heads *from, const int64_t *keys, long count,
                   long key_head, float *to) {
    const vec most = all(65504.0f);
    for (long j = 0; j < count; j++) {
        const float *row = from->data + keys[j] * from->node + key_head * from->head;
        for (long d = 0; d < f->size; d += LANES) {
            vec x = load(row + d);
            if (f->rounds) {
                x = choose(x > most, most, choose(x < -most, -most, x));
                x = (vec)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)x, 0));
            }
            store(to + j * f->size + d, x);
        }
    }
}

/* Scores of a block before softmax, [keys, width of rows], -inf where a node does not see a key. */
static void score(const Forest *f, long start, long stop, const int64_t *seen, long count,
                  const float *keys, const float *columns, float *scores) {
    long group = f->heads / f->key_heads, rows = (stop - start) * group, width = padded(rows);
    product(count, width, f->size, keys, f->size, 1, columns, width, scores, width);
    for (long j = 0; j < count; j++) {
        float *line = scores + j * width;
        long key = seen[j], first = key > start ? key - start : 0;
        long last = lesser(f->ends[key], stop) - start;
        for (long r = 0; r < first * group; r++) line[r] = -INFINITY;
        for (long r = last * group; r < rows; r++) line[r] = -INFINITY;
        for (long i = first; f->window && i < last; i++)
            if (f->positions[start + i] - f->positions[key] >= f->window)
                for (long g = 0; g < group; g++) line[i * group + g] = -INFINITY;
    }
}

static long work_size(const Forest *f, int matrices) {
    long rows = padded(f->most_rows);
    return 5 * rows * f->size + 2 * padded(f->most_keys * f->size) + matrices * f->most_keys * rows;
}

/* The place of a block's row in [nodes, heads]. */
static long place(const Forest *f, long start, long key_head, long row) {
    long group = f->heads / f->key_heads;
    return (start + row / group) * f->heads + key_head * group + row % group;
}

void train_attention(const Forest *f, const Heads *q, const Heads *k, const Heads *v, float *out,
                     float *sums) {
    long group = f->heads / f->key_heads, size = f->size;
    #pragma omp parallel
    {
        float *memory = aligned_alloc(64, work_size(f, 1) * sizeof(float)), *at = memory;
        if (!memory) abort();
        long most = padded(f->most_rows);
        float *rows = take(&at, most * size), *columns = take(&at, most * size);
        float *keys = take(&at, f->most_keys * size), *values = take(&at, f->most_keys * size);
        float *scores = take(&at, f->most_keys * most);
        #pragma omp for collapse(2) schedule(static)
        for (long h = 0; h < f->key_heads; h++)
            for (long b = 0; b < f->blocks; b++) {
                long start = f->starts[b], stop = f->starts[b + 1], m = (stop - start) * group;
                const int64_t *seen = f->keys + f->offsets[b];
                long count = f->offsets[b + 1] - f->offsets[b], width = padded(m);
                copy_rows(f, q, start, stop, h, f->scale, rows, columns);
                gather(f, k, seen, count, h, keys);
                gather(f, v, seen, count, h, values);
                score(f, start, stop, seen, count, keys, columns, scores);
                for (long r = 0; r < width; r += LANES) {
                    float *line = scores + r, peaks[LANES], totals[LANES];
                    vec peak = load(line), sum = {0};
                    for (long j = 1; j < count; j++) {
                        vec x = load(line + j * width);
                        peak = choose(x > peak, x, peak);
                    }
                    for (long j = 0; j < count; j++) {
                        vec e = exponential(load(line + j * width) - peak);
                        store(line + j * width, e);
                        sum += e;
                    }
                    vec share = 1.0f / sum;
                    for (long j = 0; j < count; j++)
                        store(line + j * width, load(line + j * width) * share);
                    store(peaks, peak);
                    store(totals, sum);
                    for (long i = 0; i < lesser(LANES, m - r); i++)
                        sums[place(f, start, h, r + i)] = peaks[i] + logf(totals[i]);
                }
                product(m, size, count, scores, 1, width, values, size, rows, size);
                for (long r = 0; r < m; r++)
                    memcpy(out + place(f, start, h, r) * size, rows + r * size,
                           size * sizeof(float));
            }
        free(memory);
    }
}

/* The gradients of queries, keys and values. The blocks are divided into parts; each adds the
   gradients of keys and values to its own [nodes, 2, key_heads, size] of partial, and those are
   added in order, so the result does not depend on which thread did what. */
void train_attention_backward(const Forest *f, const Heads *q, const Heads *k, const Heads *v,
                              const float *out, const float *sums, const Heads *grad,
                              const Heads *q_grad, const Heads *k_grad, const Heads *v_grad,
                              float *partial, int64_t parts) {
    long group = f->heads / f->key_heads, size = f->size, span = f->key_heads * size;
    #pragma omp parallel for schedule(static)
    for (long part = 0; part < parts; part++) {
        float *memory = aligned_alloc(64, (work_size(f, 2) + 2 * padded(f->most_rows)) * 4);
        float *at = memory;
        if (!memory) abort();
        long most = padded(f->most_rows), tasks = f->key_heads * f->blocks;
        float *rows = take(&at, most * size), *columns = take(&at, most * size);
        float *slopes = take(&at, most * size), *slope_columns = take(&at, most * size);
        float *result = take(&at, most * size);
        float *keys = take(&at, f->most_keys * size), *values = take(&at, f->most_keys * size);
        float *scores = take(&at, f->most_keys * most), *changes = take(&at, f->most_keys * most);
        float *logs = take(&at, most), *dots = take(&at, most);
        float *own = partial + part * f->nodes * 2 * span;
        memset(own, 0, f->nodes * 2 * span * sizeof(float));
        for (long task = part * tasks / parts; task < (part + 1) * tasks / parts; task++) {
            long h = task / f->blocks, b = task % f->blocks;
            long start = f->starts[b], stop = f->starts[b + 1], m = (stop - start) * group;
            const int64_t *seen = f->keys + f->offsets[b];
            long count = f->offsets[b + 1] - f->offsets[b], width = padded(m);
            copy_rows(f, q, start, stop, h, f->scale, rows, columns);
            copy_rows(f, grad, start, stop, h, 1.0f, slopes, slope_columns);
            gather(f, k, seen, count, h, keys);
            gather(f, v, seen, count, h, values);
            score(f, start, stop, seen, count, keys, columns, scores);
            product(count, width, size, values, size, 1, slope_columns, width, changes, width);
            for (long r = 0; r < m; r++) {
                const float *output = out + place(f, start, h, r) * size;
                vec dot = {0};
                for (long d = 0; d < size; d += LANES)
                    dot = fused(load(slopes + r * size + d), load(output + d), dot);
                dots[r] = total(dot);
                logs[r] = sums[place(f, start, h, r)];
            }
            for (long r = m; r < width; r++) logs[r] = dots[r] = 0.0f;
            for (long j = 0; j < count; j++)
                for (long r = 0; r < width; r += LANES) {
                    float *p = scores + j * width + r, *change = changes + j * width + r;
                    vec weight = exponential(load(p) - load(logs + r));
                    store(p, weight);
                    store(change, weight * (load(change) - load(dots + r)));
                }
            product(m, size, count, changes, 1, width, keys, size, result, size);
            for (long r = 0; r < m; r++) {
                float *to = q_grad->data + (start + r / group) * q_grad->node +
                            (h * group + r % group) * q_grad->head;
                for (long d = 0; d < size; d += LANES)
                    store(to + d, load(result + r * size + d) * f->scale);
            }
            /* Keys and values are read no more: their rows hold the gradients now. */
            product(count, size, m, changes, width, 1, rows, size, keys, size);
            product(count, size, m, scores, width, 1, slopes, size, values, size);
            for (long j = 0; j < count; j++) {
                float *to = own + seen[j] * 2 * span + h * size;
                for (long d = 0; d < size; d += LANES) {
                    store(to + d, load(to + d) + load(keys + j * size + d));
                    store(to + span + d, load(to + span + d) + load(values + j * size + d));
                }
            }
        }
        free(memory);
    }
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < f->nodes; i++)
        for (long h = 0; h < 2 * f->key_heads; h++) {
            const Heads *to = h < f->key_heads ? k_grad : v_grad;
            float *row = to->data + i * to->node + h % f->key_heads * to->head;
            for (long d = 0; d < size; d += LANES) {
                vec sum = {0};
                for (long part = 0; part < parts; part++)
                    sum += load(partial + ((part * f->nodes + i) * 2 * f->key_heads + h) * size + d);
                store(row + d, sum);
            }
        }
}

/* Rotary positions of the first heads of each row, in place; backwards for gradients. */
void train_turn(long rows, long heads, long size, float *x, long x_row, const float *cosine,
                const float *sine, int backwards) {
    long half = size / 2;
    #pragma omp parallel for schedule(static)
    for (long i = 0; i < rows; i++)
        for (long h = 0; h < heads; h++) {
            float *low = x + i * x_row + h * size, *high = low + half;
            const float *c = cosine + i * size, *s = sine + i * size;
            for (long d = 0; d < half; d += LANES) {
                vec a = load(low + d), b = load(high + d);
                vec from_high = load(s + d), from_low = load(s + half + d);
                if (backwards) {
                    vec other = -from_high;
                    from_high = -from_low;
                    from_low = other;
                }
                store(low + d, a * load(c + d) - b * from_high);
                store(high + d, b * load(c + half + d) + a * from_low);
            }
        }
}
