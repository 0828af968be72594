/* One forward pass of a Llama-family decoder in 8-bit integers, by a few threads.

   Every row is computed by itself, in one fixed order: neither the number of rows, nor the length of
   the window, nor the number of threads can change a bit of it. Matrix products are sums of integers,
   which have no order. All else is float32, spelled out so that every instruction set rounds alike:
   products and sums are fused only where it says so, and numbers that are summed up stand in 16 lanes,
   however many a register has.

   A row of activations is a 16-bit integer vector and one scale. Its high and low bytes ("limbs") are
   two rows of one 8-bit product. */

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#if defined(__AMX_INT8__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__AVX512VNNI__) || defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

enum { LANES = 16, BLOCK = 8, DEPTH = 64, TILE = 256, MAX_BLOCKS = 4, MAX_ROWS = BLOCK * MAX_BLOCKS };

/* Numbers in a register. Wider vectors than the processor has would live in memory. */
#if defined(__AVX512F__)
enum { WIDTH = 16 };
#elif defined(__AVX2__)
enum { WIDTH = 8 };
#else
enum { WIDTH = 4 };
#endif
enum { SHARES = LANES / WIDTH }; /* registers of 16 lanes */

typedef float vec __attribute__((vector_size(WIDTH * 4)));
typedef float vecu __attribute__((vector_size(WIDTH * 4), aligned(4)));
typedef int32_t ivec __attribute__((vector_size(WIDTH * 4)));
typedef int32_t ivecu __attribute__((vector_size(WIDTH * 4), aligned(4)));
typedef int8_t bytes __attribute__((vector_size(WIDTH), aligned(1)));

typedef struct {
  int32_t num_out, num_in;   /* multiples of 16 and 64; what is added is zero */
  const int8_t *weights;     /* [out / 16][in / 64][16 x 4 inputs][16 outputs][4] */
  const float *scales;       /* [out] */
  const float *bias;         /* [out] or NULL */
} Matrix;

typedef struct {
  const float *attention_norm, *query_norm, *key_norm, *mlp_norm;
  Matrix qkv, output, gate_up, down;
} Layer;

typedef struct {
  int32_t num_layers, hidden, inner, num_heads, num_kv_heads, head_dim, vocab;
  float eps;
  const Layer *layers;
  const float *final_norm;
  Matrix head;
} Model;

/* The rows of one sequence. */
typedef struct {
  int32_t first, num_rows;   /* in the pass */
  int32_t start, num_tiles;  /* what its cache holds, and its size */
  uint16_t *keys;            /* bfloat16 [layers][tiles][KV][D][TILE] */
  uint16_t *values;          /* bfloat16 [layers][tiles][KV][TILE][D] */
  const int32_t *depths;     /* [rows] of a tree, or NULL: how far behind `start` each row stands */
  const int32_t (*paths)[MAX_ROWS]; /* [rows] of a tree, or NULL: the rows down to each, itself last */
} Part;

typedef struct {
  int32_t num_rows, num_parts, num_logits, most_tiles, num_threads;
  const Part *parts;
  const int32_t *scored;     /* [num_logits] rows whose logits are wanted */
  const float *cosines, *sines; /* [positions][D / 2] */
  float *hidden;             /* [MAX_ROWS][hidden], the residual stream */
  float *wide;               /* [MAX_ROWS][widest product] */
  float *attended;           /* [MAX_ROWS][heads x D] */
  int8_t *limbs;             /* [MAX_BLOCKS][deepest / 64][16][64] */
  float *row_scales;         /* [MAX_ROWS] */
  int32_t *limb_sums;        /* [MAX_BLOCKS][16], of each row of limbs */
  float *scores;             /* [threads][QUERIES][most_tiles x TILE] */
  float *logits;             /* [num_logits][vocab] */
  int32_t num_taps;
  const int32_t *taps;       /* [num_taps] ascending: how many layers a stream that is kept has passed */
  float *tapped;             /* [num_taps][num_rows][hidden] */
  const Model *model;
  _Atomic int32_t arrived, generation;
  int (*thread_num)(void), (*team_size)(void);
} Pass;

/* ---- float32, one order for all ------------------------------------------------------------- */

static inline vec splat(float x) {
#if defined(__AVX512F__)
  return (vec)_mm512_set1_ps(x);
#elif defined(__AVX2__)
  return (vec)_mm256_set1_ps(x);
#else
  return (vec){x, x, x, x};
#endif
}

/* a * b + c, rounded once. */
static inline vec fuse(vec a, vec b, vec c) {
#if defined(__AVX512F__)
  return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__)
  return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON)
  return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
  for (int i = 0; i < WIDTH; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
  return c;
#endif
}

/* To the nearest whole number, ties to even: the sum with 1.5 x 2^23 has no place for fractions. */
static inline vec whole(vec x) {
  vec big = splat(12582912.0f);
  return (x + big) - big;
}


/* The sum of 16 lanes, in the order of a tree. */
static inline float lane_sum(const vec shares[SHARES]) {
  float v[LANES];
  memcpy(v, shares, sizeof v);
  for (int half = LANES / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

static inline int32_t whole_lane_sum(ivec v) {
  int32_t sum = 0;
  for (int i = 0; i < WIDTH; i++) sum += v[i];
  return sum;
}

static inline float lane_max(vec v) {
  for (int half = WIDTH / 2; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] = v[i] > v[i + half] ? v[i] : v[i + half];
  return v[0];
}

static inline vec vmax(vec a, vec b) {
  ivec mask = a > b;
  return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
}

/* e to the power of x, which is kept within -87 and 88; Cephes' expf: 2^n times a polynomial on [-ln 2 / 2, ln 2 / 2]. */
static inline vec exponential(vec x) {
  x = -vmax(-vmax(x, splat(-87.0f)), splat(-88.0f));
  vec n = whole(x * 1.44269504088896341f);
  x = fuse(n, splat(-0.693359375f), x);
  x = fuse(n, splat(2.12194440e-4f), x);
  vec y = splat(1.9875691500e-4f);
  y = fuse(y, x, splat(1.3981999507e-3f));
  y = fuse(y, x, splat(8.3334519073e-3f));
  y = fuse(y, x, splat(4.1665795894e-2f));
  y = fuse(y, x, splat(1.6666665459e-1f));
  y = fuse(y, x, splat(5.0000001201e-1f));
  y = fuse(y, x * x, x + 1.0f);
  ivec power = __builtin_convertvector(n, ivec);
  return y * (vec)((power + 127) << 23);
}

/* x in the first `num` lanes, `other` in those behind. */
static inline vec first_lanes(vec x, int num, float other) {
  static const int32_t counted[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  ivec mask = *(const ivecu *)counted < num;
  return (vec)((mask & (ivec)x) | (~mask & (ivec)splat(other)));
}

/* Numbers from bfloat16: bit for bit what stands last, in forms that compilers find hard to see. */
static inline vec widened(const uint16_t *source) {
#if defined(__AVX512F__)
  __m512i bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)source));
  return (vec)_mm512_slli_epi32(bits, 16);
#elif defined(__AVX2__)
  __m256i bits = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)source));
  return (vec)_mm256_slli_epi32(bits, 16);
#else
  typedef uint16_t half __attribute__((vector_size(WIDTH * 2), aligned(2)));
  ivec bits = __builtin_convertvector(*(const half *)source, ivec);
  return (vec)(bits << 16);
#endif
}

static inline uint16_t narrowed(float x) {
  uint32_t bits;
  memcpy(&bits, &x, 4);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16); /* to the nearest, ties to even */
}

static inline float inverse_rms(const float *row, int num, float eps) {
  vec sums[SHARES] = {};
  for (int i = 0; i < num; i += LANES)
    for (int share = 0; share < SHARES; share++) {
      vec x = *(const vecu *)(row + i + share * WIDTH);
      sums[share] = fuse(x, x, sums[share]);
    }
  return 1.0f / sqrtf(lane_sum(sums) / (float)num + eps);
}

/* Split a row of activations into two rows of limbs; the scale of a row of zeros is zero. */
static void split(const Pass *p, int r, const float *row, int num, int depth) {
  int at = r % BLOCK;
  int8_t *limbs = p->limbs + (size_t)(r / BLOCK) * depth * 2 * BLOCK * DEPTH;
  int32_t *sums = p->limb_sums + r / BLOCK * 2 * BLOCK + at;
  vec most = {};
  for (int i = 0; i < num; i += WIDTH) {
    vec x = *(const vecu *)(row + i);
    most = vmax(most, vmax(x, -x));
  }
  float largest = lane_max(most);
  float inverse = largest > 0 ? 32512.0f / largest : 0.0f;
  p->row_scales[r] = largest / 32512.0f;
  ivec high_sum = {}, low_sum = {};
  for (int chunk = 0; chunk < depth; chunk++) {
    int8_t *high = limbs + (size_t)chunk * 2 * BLOCK * DEPTH + at * DEPTH;
    int8_t *low = high + BLOCK * DEPTH;
    for (int i = 0; i < DEPTH; i += WIDTH) {
      int k = chunk * DEPTH + i;
      vec x = k < num ? *(const vecu *)(row + k) : (vec){};
      ivec q = __builtin_convertvector(whole(x * inverse), ivec);
      ivec h = (q + 128) >> 8;
      *(bytes *)(high + i) = __builtin_convertvector(h, bytes);
      *(bytes *)(low + i) = __builtin_convertvector(q - (h << 8), bytes);
      high_sum += h;
      low_sum += q - (h << 8);
    }
  }
  sums[0] = whole_lane_sum(high_sum);
  sums[BLOCK] = whole_lane_sum(low_sum);
}

/* ---- 8-bit products ---------------------------------------------------------------------------- */

/* The sums of one column of 16 outputs. `multiply` makes those of some rows, in blocks of 8 (16 limbs
   each), with as many neighbouring columns as it takes at once. */
typedef int32_t Sums[MAX_BLOCKS][2 * BLOCK][LANES] __attribute__((aligned(64)));

#if defined(__AMX_INT8__)

enum { COLUMNS = 1 };

static inline void multiply(const int8_t *limbs, const int32_t *limb_sums, const int8_t *weights,
                            int depth, int num_rows, int num_columns, Sums *sums) {
  size_t stride = (size_t)depth * 2 * BLOCK * DEPTH;
  int num_blocks = (num_rows + BLOCK - 1) / BLOCK;
  (void)limb_sums, (void)num_columns;
  _tile_zero(0);
  if (num_blocks > 1) _tile_zero(1);
  if (num_blocks > 2) _tile_zero(2);
  if (num_blocks > 3) _tile_zero(3);
  for (int chunk = 0; chunk < depth; chunk++) {
    const int8_t *a = limbs + (size_t)chunk * 2 * BLOCK * DEPTH;
    _tile_loadd(7, weights + (size_t)chunk * 1024, 64);
    _tile_loadd(4, a, 64);
    _tile_dpbssd(0, 4, 7);
    if (num_blocks > 1) { _tile_loadd(5, a + stride, 64); _tile_dpbssd(1, 5, 7); }
    if (num_blocks > 2) { _tile_loadd(6, a + 2 * stride, 64); _tile_dpbssd(2, 6, 7); }
    if (num_blocks > 3) { _tile_loadd(4, a + 3 * stride, 64); _tile_dpbssd(3, 4, 7); }
  }
  _tile_stored(0, (*sums)[0], 64);
  if (num_blocks > 1) _tile_stored(1, (*sums)[1], 64);
  if (num_blocks > 2) _tile_stored(2, (*sums)[2], 64);
  if (num_blocks > 3) _tile_stored(3, (*sums)[3], 64);
}

#elif defined(__AVX512VNNI__) || defined(__AVX2__) || defined(__ARM_NEON)

/* Columns and rows of a tile, whose sums all stay in registers, and what is added to each weight:
   the products of VNNI want one side without signs. */
#if defined(__AVX512VNNI__)
typedef __m512i reg;
enum { COLUMNS = 2, TILE_ROWS = 4, ADDED = 128 };
static inline reg load(const void *p) { return _mm512_loadu_si512(p); }
static inline reg load_weights(const int8_t *p) { return _mm512_xor_si512(load(p), _mm512_set1_epi8((char)0x80)); }
static inline void store(void *p, reg x) { _mm512_storeu_si512(p, x); }
static inline reg everywhere(int32_t x) { return _mm512_set1_epi32(x); }
static inline reg dot(reg sum, reg w, reg x) { return _mm512_dpbusd_epi32(sum, w, x); }
#elif defined(__ARM_NEON)
typedef int32x4_t reg;
enum { COLUMNS = 1, TILE_ROWS = 2, ADDED = 0 };
static inline reg load_weights(const int8_t *p) { return vreinterpretq_s32_s8(vld1q_s8(p)); }
static inline void store(void *p, reg x) { vst1q_s32(p, x); }
static inline reg everywhere(int32_t x) { return vdupq_n_s32(x); }
static inline reg dot(reg sum, reg w, reg x) {
  int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, a, b);
#else
  int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_s8(vget_high_s8(a), vget_high_s8(b));
  return vpadalq_s16(sum, vpaddq_s16(low, high)); /* two products fit 16 bits, see below */
#endif
}
#else
typedef __m256i reg;
static inline reg load(const void *p) { return _mm256_loadu_si256(p); }
static inline void store(void *p, reg x) { _mm256_storeu_si256(p, x); }
static inline reg everywhere(int32_t x) { return _mm256_set1_epi32(x); }
#if defined(__AVXVNNI__)
enum { COLUMNS = 1, TILE_ROWS = 2, ADDED = 128 };
static inline reg load_weights(const int8_t *p) { return _mm256_xor_si256(load(p), _mm256_set1_epi8((char)0x80)); }
static inline reg dot(reg sum, reg w, reg x) { return _mm256_dpbusd_avx_epi32(sum, w, x); }
#else
enum { COLUMNS = 1, TILE_ROWS = 2, ADDED = 0 };
static inline reg load_weights(const int8_t *p) { return load(p); }
/* A pair of products is 2 x 128 x 127 at most, as no weight is -128: that fits 16 bits. */
static inline reg dot(reg sum, reg w, reg x) {
  reg pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(w, x));
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
#endif
#endif
enum { REGS = LANES * 4 / sizeof(reg) }; /* of a column */

/* Products of the limbs of a few rows with a few columns. The columns that come next are fetched
   meanwhile, as the processor does not foresee where they are. */
static inline __attribute__((always_inline)) void tile(const int8_t *limbs, const int32_t *limb_sums,
                                                       const int8_t *weights, int depth, int row,
                                                       const int num_rows, const int num_columns, Sums *sums) {
  int block = row / BLOCK, at = row % BLOCK;
  const int8_t *first = limbs + (size_t)block * depth * 2 * BLOCK * DEPTH + at * DEPTH;
  size_t column = (size_t)depth * 1024;
  reg sum[COLUMNS * REGS][2 * TILE_ROWS], w[COLUMNS * REGS];
  for (int i = 0; i < num_columns * REGS; i++)
    for (int r = 0; r < 2 * num_rows; r++)
      sum[i][r] = everywhere(-ADDED * limb_sums[block * 2 * BLOCK + r % 2 * BLOCK + at + r / 2]);
  for (int chunk = 0; chunk < depth; chunk++) {
    const int8_t *a = first + (size_t)chunk * 1024, *b = weights + (size_t)chunk * 1024;
    for (int k = 0; k < DEPTH / 4; k++) {
      for (int c = 0; c < num_columns; c++) {
        __builtin_prefetch(b + (num_columns + c) * column + k * 64, 0, 2);
        for (int i = 0; i < REGS; i++) w[c * REGS + i] = load_weights(b + c * column + k * 64 + i * sizeof(reg));
      }
      for (int r = 0; r < 2 * num_rows; r++) {
        int32_t four;
        memcpy(&four, a + (r % 2 * BLOCK + r / 2) * DEPTH + k * 4, 4);
        for (int i = 0; i < num_columns * REGS; i++) sum[i][r] = dot(sum[i][r], w[i], everywhere(four));
      }
    }
  }
  for (int i = 0; i < num_columns * REGS; i++)
    for (int r = 0; r < 2 * num_rows; r++)
      store(sums[i / REGS][block][r % 2 * BLOCK + at + r / 2] + i % REGS * (LANES / REGS), sum[i][r]);
}

/* Sums of all rows, as many in a tile as there are. */
static inline __attribute__((always_inline)) void tiles(const int8_t *limbs, const int32_t *limb_sums,
                                                        const int8_t *weights, int depth, int num_rows,
                                                        const int num_columns, Sums *sums) {
  for (int row = 0; row < num_rows; row += TILE_ROWS) {
    int left = num_rows - row;
    if (left == 1) tile(limbs, limb_sums, weights, depth, row, 1, num_columns, sums);
    else if (left == 2) tile(limbs, limb_sums, weights, depth, row, 2, num_columns, sums);
    else tile(limbs, limb_sums, weights, depth, row, TILE_ROWS, num_columns, sums);
  }
}

/* Columns together save loads of limbs; where the rows fit one tile, weights as one stream are faster. */
static inline void multiply(const int8_t *limbs, const int32_t *limb_sums, const int8_t *weights,
                            int depth, int num_rows, int num_columns, Sums *sums) {
  if (num_columns == COLUMNS && num_rows > TILE_ROWS)
    tiles(limbs, limb_sums, weights, depth, num_rows, COLUMNS, sums);
  else
    for (int c = 0; c < num_columns; c++)
      tiles(limbs, limb_sums, weights + (size_t)c * depth * 1024, depth, num_rows, 1, sums + c);
}

#else

enum { COLUMNS = 1 };

static inline void multiply(const int8_t *limbs, const int32_t *limb_sums, const int8_t *weights,
                            int depth, int num_rows, int num_columns, Sums *sums) {
  (void)limb_sums, (void)num_columns;
  memset(*sums, 0, sizeof *sums);
  for (int row = 0; row < num_rows; row++)
    for (int limb = 0; limb < 2; limb++) {
      const int8_t *a = limbs + (size_t)(row / BLOCK) * depth * 1024 + (limb * BLOCK + row % BLOCK) * DEPTH;
      int32_t *own = (*sums)[row / BLOCK][limb * BLOCK + row % BLOCK];
      for (int chunk = 0; chunk < depth; chunk++)
        for (int k = 0; k < DEPTH / 4; k++)
          for (int o = 0; o < LANES; o++)
            for (int i = 0; i < 4; i++)
              own[o] += a[(size_t)chunk * 1024 + k * 4 + i] * weights[(size_t)chunk * 1024 + k * 64 + o * 4 + i];
    }
}

#endif

/* Rows times a matrix, this thread's share of the outputs; added to `out` or stored. */
static void product(const Pass *p, int thread, const Matrix *m, int num_rows, float *out, int stride,
                    int num_out, int adds) {
  int depth = m->num_in / DEPTH, columns = m->num_out / LANES;
  int begin = (int)((int64_t)columns * thread / p->num_threads);
  int end = (int)((int64_t)columns * (thread + 1) / p->num_threads);
  Sums sums[COLUMNS];
  for (int column = begin; column < end; column++) {
    int own = (column - begin) % COLUMNS, left = end - column;
    if (own == 0)
      multiply(p->limbs, p->limb_sums, m->weights + (size_t)column * depth * 1024, depth, num_rows,
               left < COLUMNS ? left : COLUMNS, sums);
    int width = num_out - column * LANES < LANES ? num_out - column * LANES : LANES;
    if (width <= 0) break;
    for (int row = 0; row < num_rows; row++) {
      const int32_t *high = sums[own][row / BLOCK][row % BLOCK], *low = high + BLOCK * LANES;
      float *target = out + (size_t)row * stride + column * LANES;
      for (int o = 0; o < width; o += WIDTH) {
        vec scales = *(const vecu *)(m->scales + column * LANES + o);
        vec h = __builtin_convertvector(*(const ivecu *)(high + o), vec);
        vec l = __builtin_convertvector(*(const ivecu *)(low + o), vec);
        vec y = fuse(h, splat(256.0f), l) * (scales * p->row_scales[row]);
        if (m->bias) y += *(const vecu *)(m->bias + column * LANES + o);
        if (width - o >= WIDTH) {
          if (adds) y += *(vecu *)(target + o);
          *(vecu *)(target + o) = y;
        } else {
          for (int i = 0; i < width - o; i++) target[o + i] = adds ? target[o + i] + y[i] : y[i];
        }
      }
    }
  }
}

/* ---- the steps of a layer; rows or heads are shared out among threads --------------------------- */

static void barrier(Pass *p) {
  if (p->num_threads == 1) return;
  int32_t generation = atomic_load_explicit(&p->generation, memory_order_acquire);
  if (atomic_fetch_add_explicit(&p->arrived, 1, memory_order_acq_rel) == p->num_threads - 1) {
    atomic_store_explicit(&p->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&p->generation, generation + 1, memory_order_release);
    return;
  }
  for (int spins = 0; atomic_load_explicit(&p->generation, memory_order_acquire) == generation; spins++) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
#if defined(__linux__) || defined(__APPLE__)
    extern int sched_yield(void);
    if (spins > 2000) sched_yield(); /* the other may wait for this core */
#endif
  }
}

/* All rows, or those that `rows` names. */
static void norm_and_split(Pass *p, int thread, const float *weight, const Matrix *next,
                           const int32_t *rows, int num_rows) {
  int num = p->model->hidden, depth = next->num_in / DEPTH;
  for (int r = thread; r < num_rows; r += p->num_threads) {
    const float *source = p->hidden + (size_t)(rows ? rows[r] : r) * num;
    float *row = p->wide + (size_t)r * num; /* free until the product that follows */
    vec inverse = splat(inverse_rms(source, num, p->model->eps));
    for (int i = 0; i < num; i += WIDTH)
      *(vecu *)(row + i) = *(const vecu *)(source + i) * inverse * *(const vecu *)(weight + i);
    split(p, r, row, num, depth);
  }
}

/* Turn pairs (i, i + D / 2) of a head by its position's angle. */
static void rotate(float *head, int dim, const float *cosines, const float *sines, const float *norm,
                   float eps) {
  if (norm) {
    float inverse = inverse_rms(head, dim, eps);
    for (int i = 0; i < dim; i++) head[i] = head[i] * inverse * norm[i];
  }
  for (int i = 0; i < dim / 2; i++) {
    float a = head[i], b = head[i + dim / 2];
    float ac = a * cosines[i], bs = b * sines[i], bc = b * cosines[i], as = a * sines[i];
    head[i] = ac - bs;
    head[i + dim / 2] = bc + as;
  }
}

static const Part *part_of(const Pass *p, int row) {
  const Part *part = p->parts;
  while (row >= part->first + part->num_rows) part++;
  return part;
}

/* Rows are stored one after the other; in a tree several stand at one position. */
static inline int depth_of(const Part *part, int row) { return part->depths ? part->depths[row] : row; }

static void place(Pass *p, int thread, int layer) {
  const Model *m = p->model;
  const Layer *l = m->layers + layer;
  int dim = m->head_dim, queries = m->num_heads, kv = m->num_kv_heads, width = (queries + 2 * kv) * dim;
  for (int task = thread; task < p->num_rows * (queries + kv); task += p->num_threads) {
    int row = task / (queries + kv), head = task % (queries + kv);
    const Part *part = part_of(p, row);
    float *x = p->wide + (size_t)row * width + head * dim;
    size_t turn = (size_t)(part->start + depth_of(part, row - part->first)) * (dim / 2);
    rotate(x, dim, p->cosines + turn, p->sines + turn, head < queries ? l->query_norm : l->key_norm, m->eps);
    if (head < queries) continue;
    int at = part->start + row - part->first, tile = at / TILE, offset = at % TILE;
    size_t base = (((size_t)layer * part->num_tiles + tile) * kv + head - queries) * TILE * dim;
    const float *value = x + kv * dim;
    for (int d = 0; d < dim; d++) {
      part->keys[base + (size_t)d * TILE + offset] = narrowed(x[d]);
      part->values[base + (size_t)offset * dim + d] = narrowed(value[d]);
    }
  }
}

/* Queries that read a key or a value together, and registers that each of them has its sums in. */
#if defined(__AVX2__) && !defined(__AVX512F__)
enum { QUERIES = 6, PART = 2 };
#else
enum { QUERIES = 6, PART = 4 };
#endif

typedef struct {
  int last;                  /* of the positions that any query sees */
  int lasts[QUERIES];
  int start;                 /* of the pass */
  const int32_t *path;       /* of a tree: where the keys from `start` on are stored, or NULL */
  const float *queries[QUERIES];
  float *scores[QUERIES];    /* [tiles x TILE] */
  float *targets[QUERIES];
  const uint16_t *keys, *values; /* of the first tile */
  size_t tile_stride;
} Attention;

static inline int positions_in(int last, int tile) {
  int num = last - tile * TILE + 1;
  return num < TILE ? num : TILE;
}

/* Scores of a tree's row come in the order of storage; bring those of its path into its order. */
static void follow_path(const Attention *a, int queries, vec largest[QUERIES]) {
  int num = a->last - a->start + 1;
  for (int q = 0; q < queries; q++) {
    float own[MAX_ROWS];
    for (int i = 0; i < num; i++) own[i] = a->scores[q][a->start + a->path[i]];
    for (int i = 0; i < num; i++) {
      a->scores[q][a->start + i] = own[i];
      largest[q] = vmax(largest[q], splat(own[i]));
    }
  }
}

/* Scores of all queries and the largest of each. */
static inline __attribute__((always_inline)) void score(const Attention *a, int dim, const int queries,
                                                        vec largest[QUERIES]) {
  float scale = 1.0f / sqrtf((float)dim);
  int stored = a->path ? a->start + a->path[a->last - a->start] : a->last;
  for (int q = 0; q < queries; q++) largest[q] = splat(-INFINITY);
  for (int tile = 0; tile <= stored / TILE; tile++) {
    const uint16_t *keys = a->keys + tile * a->tile_stride;
    int num = positions_in(stored, tile);
    for (int at = 0; at < num; at += PART * WIDTH) {
      vec sums[QUERIES][PART] = {};
      for (int d = 0; d < dim; d++) {
        const uint16_t *key = keys + (size_t)d * TILE + at;
        for (int i = 0; i < PART * WIDTH; i += 32) __builtin_prefetch(key + PART * WIDTH + i);
        for (int i = 0; i < PART; i++) {
          vec wide = widened(key + i * WIDTH);
          for (int q = 0; q < queries; q++) sums[q][i] = fuse(splat(a->queries[q][d]), wide, sums[q][i]);
        }
      }
      for (int q = 0; q < queries; q++)
        for (int i = 0; i < PART; i++) {
          int first = tile * TILE + at + i * WIDTH, end = a->path ? a->start : a->lasts[q] + 1;
          vec s = sums[q][i] * scale;
          largest[q] = vmax(largest[q], first_lanes(s, end - first, -INFINITY));
          *(vecu *)(a->scores[q] + first) = s;
        }
    }
  }
  if (a->path) follow_path(a, queries, largest);
}

/* Turn the scores of a query into weights, zero where it sees nothing; return one over their sum. */
static float weigh(const Attention *a, int q, vec largest) {
  vec most = splat(lane_max(largest)), totals[SHARES] = {};
  for (int at = 0; at <= a->last; at += LANES)
    for (int share = 0; share < SHARES; share++) {
      int first = at + share * WIDTH;
      vec w = exponential(*(vecu *)(a->scores[q] + first) - most);
      w = first_lanes(w, a->lasts[q] + 1 - first, 0.0f); /* what lies behind may be anything */
      totals[share] += w;
      *(vecu *)(a->scores[q] + first) = w;
    }
  return 1.0f / lane_sum(totals);
}

/* Weighted sums of `num` registers of each value, from its d-th number on. */
static inline __attribute__((always_inline)) void gather(const Attention *a, int d, int dim, const int num,
                                                         const int queries, const float norms[QUERIES]) {
  vec sums[QUERIES][PART] = {};
  for (int tile = 0; tile <= a->last / TILE; tile++) {
    for (int at = 0; at < positions_in(a->last, tile); at++) {
      int position = tile * TILE + at, slot = position;
      if (a->path && position >= a->start) slot = a->start + a->path[position - a->start];
      const uint16_t *values = a->values + slot / TILE * a->tile_stride + (size_t)(slot % TILE) * dim + d;
      for (int i = 0; i < num; i++) {
        vec value = widened(values + i * WIDTH);
        for (int q = 0; q < queries; q++)
          sums[q][i] = fuse(splat(a->scores[q][position]), value, sums[q][i]);
      }
    }
  }
  for (int q = 0; q < queries; q++)
    for (int i = 0; i < num; i++) *(vecu *)(a->targets[q] + d + i * WIDTH) = sums[q][i] * norms[q];
}

/* The query heads that share keys and values, of all rows of a part, in groups of QUERIES. What a query
   sees does not depend on its group: what others see beyond that has weight zero. In a tree each row
   sees other keys: its heads are groups of their own. */
static int num_sets(const Part *part) { return part->paths ? part->num_rows : 1; }

static int num_groups(const Model *m, const Part *part) {
  int num = part->num_rows * (m->num_heads / m->num_kv_heads) / num_sets(part);
  return (num + QUERIES - 1) / QUERIES;
}

static inline __attribute__((always_inline)) void attend_together(const Attention *a, int dim, const int queries) {
  vec largest[QUERIES];
  float norms[QUERIES];
  score(a, dim, queries, largest);
  for (int q = 0; q < queries; q++) norms[q] = weigh(a, q, largest[q]);
  int d = 0;
  for (; d + PART * WIDTH <= dim; d += PART * WIDTH) gather(a, d, dim, PART, queries, norms);
  for (; d < dim; d += WIDTH) gather(a, d, dim, 1, queries, norms);
}

static void attend_group(Pass *p, int thread, int layer, const Part *part, int task) {
  const Model *m = p->model;
  int dim = m->head_dim, kv = m->num_kv_heads, share = m->num_heads / kv;
  int width = (m->num_heads + 2 * kv) * dim, groups = num_groups(m, part);
  int set = task / (kv * groups), shared = task / groups % kv, first = task % groups * QUERIES;
  int num = part->num_rows * share / num_sets(part);
  size_t base = ((size_t)layer * part->num_tiles * kv + shared) * TILE * dim;
  Attention a = {.keys = part->keys + base, .values = part->values + base, .start = part->start,
                 .tile_stride = (size_t)kv * TILE * dim, .path = part->paths ? part->paths[set] : NULL};
  for (int q = 0; q < QUERIES; q++) {
    int at = first + q < num ? first + q : num - 1; /* a group that is not full repeats the last */
    int own = set + at / share, row = part->first + own, head = shared * share + at % share;
    a.last = a.lasts[q] = part->start + depth_of(part, own);
    a.queries[q] = p->wide + (size_t)row * width + head * dim;
    a.scores[q] = p->scores + ((size_t)thread * QUERIES + q) * p->most_tiles * TILE;
    a.targets[q] = p->attended + ((size_t)row * m->num_heads + head) * dim;
  }
  if (num - first <= QUERIES / 2) attend_together(&a, dim, QUERIES / 2);
  else attend_together(&a, dim, QUERIES);
}

static void attend(Pass *p, int thread, int layer) {
  int task = 0;
  for (const Part *part = p->parts; part < p->parts + p->num_parts; part++) {
    int num = num_sets(part) * p->model->num_kv_heads * num_groups(p->model, part);
    for (int own = 0; own < num; own++, task++)
      if (task % p->num_threads == thread) attend_group(p, thread, layer, part, own);
  }
}

static void split_attended(Pass *p, int thread, const Matrix *next) {
  int num = p->model->num_heads * p->model->head_dim, depth = next->num_in / DEPTH;
  for (int r = thread; r < p->num_rows; r += p->num_threads)
    split(p, r, p->attended + (size_t)r * num, num, depth);
}

/* silu(gate) * up, and split */
static void gate(Pass *p, int thread, const Matrix *next) {
  int num = p->model->inner, depth = next->num_in / DEPTH;
  for (int r = thread; r < p->num_rows; r += p->num_threads) {
    float *row = p->wide + (size_t)r * 2 * num;
    for (int i = 0; i < num; i += WIDTH) {
      vec g = *(vecu *)(row + i), u = *(vecu *)(row + num + i);
      *(vecu *)(row + i) = g / (1.0f + exponential(-g)) * u;
    }
    split(p, r, row, num, depth);
  }
}

/* Shape the matrix unit's registers for this thread, where there is one. */
static void configure(void) {
#if defined(__AMX_INT8__)
  struct { uint8_t palette, start_row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } tiles;
  memset(&tiles, 0, sizeof tiles);
  tiles.palette = 1;
  for (int i = 0; i < 8; i++) tiles.bytes[i] = 64, tiles.rows[i] = 16;
  _tile_loadconfig(&tiles);
#endif
}

static void release(void) {
#if defined(__AMX_INT8__)
  _tile_release();
#endif
}

/* Return this thread's number. A team may be smaller than was asked for, as by OMP_THREAD_LIMIT; its
   threads all write its true size, before the first of them waits for the others. */
static int join(Pass *p) {
  if (!p->thread_num) return 0;
  p->num_threads = p->team_size();
  return p->thread_num();
}

/* Keep the residual stream as it is behind so many layers, if somebody wants it. */
static void tap(Pass *p, int thread, int num_layers) {
  size_t hidden = (size_t)p->model->hidden;
  for (int at = 0; at < p->num_taps; at++) {
    if (p->taps[at] != num_layers) continue;
    float *kept = p->tapped + (size_t)at * p->num_rows * hidden;
    for (int r = thread; r < p->num_rows; r += p->num_threads)
      memcpy(kept + r * hidden, p->hidden + r * hidden, hidden * sizeof(float));
  }
}

static void run(void *argument) {
  Pass *p = argument;
  const Model *m = p->model;
  int t = join(p), hidden = m->hidden;
  configure();
  tap(p, t, 0);
  for (int layer = 0; layer < m->num_layers; layer++) {
    const Layer *l = m->layers + layer;
    int heads = (m->num_heads + 2 * m->num_kv_heads) * m->head_dim;
    norm_and_split(p, t, l->attention_norm, &l->qkv, NULL, p->num_rows);
    barrier(p);
    product(p, t, &l->qkv, p->num_rows, p->wide, heads, heads, 0);
    barrier(p);
    place(p, t, layer);
    barrier(p);
    attend(p, t, layer);
    barrier(p);
    split_attended(p, t, &l->output);
    barrier(p);
    product(p, t, &l->output, p->num_rows, p->hidden, hidden, hidden, 1);
    barrier(p);
    norm_and_split(p, t, l->mlp_norm, &l->gate_up, NULL, p->num_rows);
    barrier(p);
    product(p, t, &l->gate_up, p->num_rows, p->wide, 2 * m->inner, 2 * m->inner, 0);
    barrier(p);
    gate(p, t, &l->down);
    barrier(p);
    product(p, t, &l->down, p->num_rows, p->hidden, hidden, hidden, 1);
    barrier(p);
    tap(p, t, layer + 1);
  }
  if (p->num_logits) {
    norm_and_split(p, t, m->final_norm, &m->head, p->scored, p->num_logits);
    barrier(p);
    product(p, t, &m->head, p->num_logits, p->logits, m->vocab, m->vocab, 0);
  }
  release();
}

static void run_product(void *argument) {
  Pass *p = argument;
  const Model *m = p->model;
  int t = join(p);
  configure();
  for (int r = t; r < p->num_rows; r += p->num_threads)
    split(p, r, p->hidden + (size_t)r * m->hidden, m->hidden, m->head.num_in / DEPTH);
  barrier(p);
  product(p, t, &m->head, p->num_rows, p->logits, m->vocab, m->vocab, 0);
  release();
}

/* The sums of up to 8 rows with `columns` x 16 outputs, for tests: sums [columns][16 limbs][16]. */
void specengine_multiply(const int8_t *limbs, const int8_t *weights, int depth, int num_rows, int columns,
                         int32_t *sums) {
  Sums own[COLUMNS];
  int32_t limb_sums[2 * BLOCK] = {};
  for (int r = 0; r < 2 * BLOCK; r++)
    for (int k = 0; k < depth * DEPTH; k++)
      limb_sums[r] += limbs[(size_t)(k / DEPTH) * 2 * BLOCK * DEPTH + r * DEPTH + k % DEPTH];
  configure();
  for (int column = 0; column < columns; column += COLUMNS) {
    int left = columns - column < COLUMNS ? columns - column : COLUMNS;
    multiply(limbs, limb_sums, weights + (size_t)column * depth * 1024, depth, num_rows, left, own);
    for (int c = 0; c < left; c++)
      memcpy(sums + (size_t)(column + c) * 2 * BLOCK * LANES, own[c][0], sizeof own[c][0]);
  }
  release();
}

/* Ask the system for the matrix unit; returns whether it may be used. */
int specengine_prepare(void) {
#if defined(__AMX_INT8__)
  return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#else
  return 1;
#endif
}

/* The rows in `hidden` times the head alone, into `logits`. */
void specengine_product(Pass *p, void (*parallel)(void (*)(void *), void *, unsigned, unsigned)) {
  if (p->num_threads > 1)
    parallel(run_product, p, (unsigned)p->num_threads, 0);
  else
    run_product(p);
}

/* `parallel` is GOMP_parallel of the runtime that torch uses too, so that no two teams spin. */
void specengine_pass(Pass *p, void (*parallel)(void (*)(void *), void *, unsigned, unsigned)) {
  if (p->num_threads > 1)
    parallel(run, p, (unsigned)p->num_threads, 0);
  else
    run(p);
}
