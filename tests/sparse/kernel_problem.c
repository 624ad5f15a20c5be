/* Problems, what the oracle makes of them, and whether a table came to the same. */
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

/* Small, dense, with a backward pass. */
kernel_case kernel_base_case(void)
{
    return (kernel_case){.shape = {.batch = 1, .n = 140, .heads = 2, .kv_heads = 2, .dim = 32},
                         .pattern = ra_pattern_config_dense(),
                         .dtype = RA_F32,
                         .seed = 1,
                         .dout_factor = 1,
                         .threads = 2,
                         .steps = 1};
}

/* ---- problems ---------------------------------------------------------------------------------
 */

void kernel_problem_solve(kernel_problem *p)
{
    const oracle_shape *s = &p->c.shape;
    int64_t const q_count = s->batch * s->n * s->heads * s->dim;
    int64_t const k_count = s->batch * s->n * s->kv_heads * s->dim;
    oracle_load(p->c.dtype, p->q, q_count, p->memory[0]);
    oracle_load(p->c.dtype, p->k, k_count, p->memory[1]);
    oracle_load(p->c.dtype, p->v, k_count, p->memory[2]);
    oracle_load(p->c.dtype, p->dout, q_count, p->memory[3]);
    oracle_inputs const in = {.q = p->memory[0],
                              .k = p->memory[1],
                              .v = p->memory[2],
                              .dout = p->c.dout_factor != 0 ? p->memory[3] : NULL};
    oracle_attend(s, &p->c.pattern, &in, &p->want);
}

kernel_problem kernel_problem_draw(const kernel_case *c)
{
    kernel_problem p = {.c = *c};
    const oracle_shape *s = &c->shape;
    int64_t const q_count = s->batch * s->n * s->heads * s->dim;
    int64_t const k_count = s->batch * s->n * s->kv_heads * s->dim;
    int64_t const counts[9] = {q_count, k_count, k_count,
                               q_count, q_count, s->batch * s->n * s->heads,
                               q_count, k_count, k_count};
    for (int i = 0; i < 9; ++i)
        p.memory[i] = kernel_zeros(counts[i] * (int64_t)sizeof(double));
    int64_t const bytes = (int64_t)ra_dtype_bytes(c->dtype);
    p.q = kernel_zeros(q_count * bytes);
    p.k = kernel_zeros(k_count * bytes);
    p.v = kernel_zeros(k_count * bytes);
    p.dout = kernel_zeros(q_count * bytes);
    uint64_t random = c->seed;
    oracle_fill(&random, c->dtype, 1, q_count, p.q, NULL);
    oracle_fill(&random, c->dtype, 1, k_count, p.k, NULL);
    oracle_fill(&random, c->dtype, 1, k_count, p.v, NULL);
    oracle_fill(&random, c->dtype, c->dout_factor, q_count, p.dout, NULL);
    p.want = (oracle_outputs){.o = p.memory[4],
                              .lse = p.memory[5],
                              .dq = p.memory[6],
                              .dk = p.memory[7],
                              .dv = p.memory[8]};
    return p;
}

kernel_problem kernel_problem_make(const kernel_case *c)
{
    kernel_problem p = kernel_problem_draw(c);
    kernel_problem_solve(&p);
    return p;
}

ra_pattern_config kernel_long_pattern(void)
{
    enum { SIZE = 128, BLOCKS = (KERNEL_LONG_TOKENS + SIZE - 1) / SIZE };
    static int32_t pairs[2 * BLOCKS][2];
    ra_pattern_config config = ra_pattern_config_dense();
    for (int32_t i = 0; i < BLOCKS; ++i) {
        pairs[i][1] = i;
        pairs[BLOCKS + i][0] = pairs[BLOCKS + i][1] = i;
    }
    config.blocks_kind = RA_BLOCKS_LIST;
    config.block_size = SIZE;
    config.block_pairs = pairs;
    config.block_pair_count = 2 * BLOCKS;
    return config;
}

void kernel_problem_rise(kernel_problem *p)
{
    static const float bits[] = {0, 3, 12, 17, 40};
    oracle_shape *const s = &p->c.shape;
    ra_dtype const dtype = p->c.dtype;
    float const noise = 1 / sqrtf((float)s->dim);
    cr_assert_leq(s->n, 5 * KERNEL_RISE_KEYS);
    s->scale = log(2);
    for (int64_t x = 0; x < s->batch * s->n * s->heads * s->dim; ++x)
        ra_dtype_store(dtype, p->q, x, x % s->dim == 0 ? 1 : noise * ra_dtype_load(dtype, p->q, x));
    for (int64_t row = 0; row < s->batch * s->n * s->kv_heads; ++row)
        ra_dtype_store(dtype, p->k, row * s->dim,
                       bits[row / s->kv_heads % s->n / KERNEL_RISE_KEYS]);
}

void kernel_problem_shift(kernel_problem *p, int qk, int v, int dout)
{
    oracle_shape *const s = &p->c.shape;
    int64_t const queries = s->batch * s->n * s->heads * s->dim;
    int64_t const keys = s->batch * s->n * s->kv_heads * s->dim;
    void *const tensors[] = {p->q, p->k, p->v, p->dout};
    int64_t const counts[] = {queries, keys, keys, queries};
    int const shifts[] = {qk, qk, v, dout};
    p->shift = v - qk;
    s->scale = ldexp(s->scale != 0 ? s->scale : 1 / sqrt((double)s->dim), -2 * qk);
    for (int i = 0; i < 4; ++i)
        for (int64_t x = 0; x < counts[i]; ++x)
            ra_dtype_store(p->c.dtype, tensors[i], x,
                           ldexpf(ra_dtype_load(p->c.dtype, tensors[i], x), shifts[i]));
}

void kernel_problem_free(kernel_problem *p)
{
    for (int i = 0; i < 9; ++i)
        free(p->memory[i]);
    free(p->q);
    free(p->k);
    free(p->v);
    free(p->dout);
}

/* ---- checking ---------------------------------------------------------------------------------
 */

/* Gradients may cancel: what is left is measured by output gradients, shifted as they are. */
static double gradient_norm(const kernel_problem *p, int shift)
{
    const oracle_shape *s = &p->c.shape;
    double sum = 0;
    for (int64_t x = 0; x < s->batch * s->n * s->heads * s->dim; ++x)
        sum += p->memory[3][x] * p->memory[3][x];
    return ldexp(sqrt(sum), shift);
}

static void check_tensor(const ra_kernel_ops *ops, const kernel_problem *p, const char *name,
                         const void *got, const double *want, int64_t count, double bound,
                         const char *what)
{
    const oracle_shape *s = &p->c.shape;
    double const dout = gradient_norm(p, want == p->want.dv ? 0 : p->shift);
    double const error =
        oracle_stored_error(p->c.dtype, got, want, count, want == p->want.o ? NULL : &dout, 1);
    cr_assert(error <= bound,
              "%s %s: %s is off by %g, bound %g (batch %lld n %lld heads %d kv %d dim %d %s "
              "threads %d steps %d striped %d padded %d seed %llu)",
              ops->name, what, name, error, bound, (long long)s->batch, (long long)s->n, s->heads,
              s->kv_heads, s->dim, ra_dtype_name(p->c.dtype), p->c.threads, p->c.steps,
              p->c.striped, p->c.padded, (unsigned long long)p->c.seed);
}

void kernel_check(const ra_kernel_ops *ops, const kernel_problem *p, const kernel_result *r,
                  const char *what)
{
    const oracle_shape *s = &p->c.shape;
    int64_t const rows = s->batch * s->heads * s->n;
    int64_t const q_count = rows * s->dim, k_count = s->batch * s->n * s->kv_heads * s->dim;
    check_tensor(ops, p, "o", r->o, p->want.o, q_count, oracle_output_bound(p->c.dtype), what);
    double const lse = oracle_max_error(RA_F32, r->lse, p->want.lse, rows);
    cr_assert(lse <= oracle_lse_bound(p->c.dtype), "%s %s: lse is off by %g (seed %llu)", ops->name,
              what, lse, (unsigned long long)p->c.seed);
    if (p->c.dout_factor == 0)
        return;
    double const bound = oracle_gradient_bound(p->c.dtype, s->dim);
    check_tensor(ops, p, "dq", r->dq, p->want.dq, q_count, bound, what);
    check_tensor(ops, p, "dk", r->dk, p->want.dk, k_count, bound, what);
    check_tensor(ops, p, "dv", r->dv, p->want.dv, k_count, bound, what);
}

/* GPUs have one pass backward, and two that repeat bit for bit: see ra_cuda_has_single. Of all
   tables, only those that have them go by keys. */
static bool has_two_ways(const ra_kernel_ops *ops, const kernel_case *c)
{
    return ops->maps_by_keys && c->dout_factor != 0 && c->dtype == RA_BF16 && c->shape.dim <= 128;
}

static void check_run(const ra_kernel_ops *ops, const kernel_problem *problem, const char *what)
{
    kernel_result result = kernel_run(ops, problem);
    kernel_check(ops, problem, &result, what);
    kernel_result_free(&result);
}

void kernel_check_table(const ra_kernel_ops *ops, kernel_problem *problem, const char *what)
{
    double const dout_factor = problem->c.dout_factor;
    bool const by_chunks = problem->c.steps > 1 && ops->takes_chunk_steps;
    int const ways = by_chunks || has_two_ways(ops, &problem->c) ? 2 : 1;
    for (int way = 0; way < ways; ++way) {
        problem->c.deterministic = problem->c.all_rows = way == 1;
        check_run(ops, problem, what);
    }
    if (dout_factor == 0 || problem->c.dtype == RA_F32)
        return;
    problem->c.deterministic = problem->c.all_rows = false;
    problem->c.dout_factor = 0; /* a GPU's sums of 16 bits are rescaled less often then */
    check_run(ops, problem, what);
    problem->c.dout_factor = dout_factor;
}

void kernel_check_problem(kernel_problem *problem, const char *what)
{
    for (int i = 0; i < KERNEL_TABLE_COUNT; ++i) {
        const ra_kernel_ops *ops = kernel_table(i);
        if (ops != NULL)
            kernel_check_table(ops, problem, what);
    }
}

void kernel_check_case(const kernel_case *c, const char *what)
{
    kernel_problem problem = kernel_problem_make(c);
    kernel_check_problem(&problem, what);
    kernel_problem_free(&problem);
}
