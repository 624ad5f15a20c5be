/* Compares a kernel with the plain one on the same small problem. */
#include "ringattn/kernel_check.h"

#include "internal.h"
#include "sparse/check_side.h"
#include "sparse/cpu/dtype_bits.h"

#include <math.h>

/* A problem has the rows of one tile of the kernel, but of at most TILE_ROWS_MAX, and MORE_ROWS, so
   that a short tile follows. Kernels with small tiles get TILE_ROWS_LEAST and MORE_ROWS: so they,
   too, meet more than one block of keys. */
enum { MORE_ROWS = 9, TILE_ROWS_LEAST = 64, TILE_ROWS_MAX = 128 };

/* Least norm that linear attention's gradients are measured against, in the inputs' scale. */
static const double floors[] = {[RA_F32] = 0.05, [RA_F16] = 0.01, [RA_BF16] = 0.01};

/* Factors on the documented bounds against float64, because both sides have errors. */
static const double slack = 2, element_slack = 32;

/* ---- comparing ------------------------------------------------------------------------------- */

static void judge(const char *name, double error, double allowed, ra_kernel_verdict *worst)
{
    double const found = isnan(error) ? INFINITY : error;
    if (worst->tensor != NULL && found / allowed <= worst->error / worst->allowed)
        return;
    *worst = (ra_kernel_verdict){
        .agrees = found <= allowed, .tensor = name, .error = found, .allowed = allowed};
}

/* Relative to the plain kernel's mean square: the error of all elements, and of the worst one. */
static void compare_tensor(const char *name, const ra_check_side *tried, const ra_check_side *plain,
                           ra_check_tensor t, double bound, ra_kernel_verdict *worst)
{
    int64_t const count = ra_check_elements(plain->p, t);
    bool const may_cancel = plain->p->linear != RA_LINEAR_NONE && (t == CHECK_DQ || t == CHECK_DK);
    double const floor = may_cancel ? floors[plain->p->dtype] : 0;
    ra_dtype const dtype = ra_check_dtype(tried, t);
    double off = 0, base = 0, furthest = 0;
    for (int64_t i = 0; i < count; ++i) {
        double const want = (double)dtype_load(RA_F32, plain->seen[t], i);
        double const got = (double)dtype_load(dtype, tried->seen[t], i);
        double const far = fabs(got - want);
        off += far * far;
        base += want * want;
        furthest = far > furthest ? far : furthest; /* NaN is found by the sum */
    }
    base = fmax(base, floor * floor * (double)count);
    judge(name, sqrt(off / base), slack * bound, worst);
    judge(name, furthest / sqrt(base / (double)count), element_slack * slack * bound, worst);
}

static void compare_lse(const ra_check_side *tried, const ra_check_side *plain, double bound,
                        ra_kernel_verdict *worst)
{
    const float *got = (const float *)tried->seen[CHECK_LSE],
                *want = (const float *)plain->seen[CHECK_LSE];
    double furthest = 0;
    for (int64_t i = 0; i < ra_check_elements(plain->p, CHECK_LSE); ++i) {
        /* A row without a key has -Inf in both. */
        double const far = got[i] == want[i] ? 0 : fabs((double)got[i] - (double)want[i]);
        furthest = isnan(far) || far > furthest ? far : furthest;
    }
    judge("lse", furthest, slack * bound, worst);
}

static void compare(const ra_check_side *tried, const ra_check_side *plain,
                    ra_kernel_verdict *worst)
{
    static const double bounds[] = {[RA_F32] = 2e-6, [RA_F16] = 1e-3, [RA_BF16] = 8e-3};
    static const char *const names[] = {[CHECK_DQ] = "dq", [CHECK_DK] = "dk", [CHECK_DV] = "dv"};
    const ra_check_problem *p = plain->p;
    double const bound = bounds[p->dtype];
    bool const narrow = p->dim < 16; /* few terms: gradients may be twice as far */
    compare_tensor("o", tried, plain, CHECK_OUT, bound, worst);
    if (p->linear == RA_LINEAR_NONE)
        compare_lse(tried, plain, p->dtype == RA_F32 ? 1e-5 : 1e-3, worst);
    for (ra_check_tensor t = CHECK_DQ; t <= CHECK_DV && p->backward; ++t)
        compare_tensor(names[t], tried, plain, t, narrow ? 2 * bound : bound, worst);
}

/* ---- all together ---------------------------------------------------------------------------- */

/* One problem: the plain kernel in one step, the other in one and in two. Methods of linear
   attention have the same results: the plain kernel takes the one that needs the least. */
static ra_status problem_compare(const ra_check_problem *p, ra_check_place *tried,
                                 ra_check_place *plain, ra_kernel_verdict *worst)
{
    ra_check_problem reference = *p;
    ra_check_side want, got;
    reference.method = RA_LINEAR_CHUNKED;
    ra_status status = ra_check_side_run(&reference, plain, RA_F32, 1, NULL, &want);
    for (int steps = 1; steps <= CHECK_STEPS_MAX && status == RA_OK; ++steps) {
        status = ra_check_side_run(p, tried, p->dtype, steps, &want, &got);
        if (status == RA_OK)
            compare(&got, &want, worst);
        ra_check_side_free(&got);
    }
    ra_check_side_free(&want);
    return status;
}

enum { PROBLEMS = 3, BRANCHES = 2 };

static ra_status pattern_compare(const ra_pattern_config *config, ra_check_problem *p,
                                 ra_check_place *tried, ra_check_place *plain,
                                 ra_kernel_verdict *worst)
{
    ra_pattern *pattern = NULL;
    ra_status status = ra_pattern_create(config, p->rows, p->heads, plain->pool, &pattern);
    p->pattern = pattern;
    if (status == RA_OK)
        status = problem_compare(p, tried, plain, worst);
    ra_pattern_destroy(pattern);
    return status;
}

/* Dense (runs without a mask); bands with sinks, with heads that share keys; and if the job is
   dilated, branches as it has them: two that meet on rows, or one; the same for heads. */
static ra_status problems_compare(const ra_kernel_use *use, ra_check_place *tried,
                                  ra_check_place *plain, ra_kernel_verdict *worst)
{
    ra_pattern_config configs[PROBLEMS] = {ra_pattern_config_dense(), ra_pattern_config_dense(),
                                           ra_pattern_config_dense()};
    int32_t const heads[PROBLEMS] = {1, 2, use->shares_keys ? 2 : 1};
    int32_t const tile_rows = tried->kernel.ops->tile_rows(use->dtype, use->dim);
    int64_t const rows = ra_max_i64(TILE_ROWS_LEAST, ra_min_i64(tile_rows, TILE_ROWS_MAX));
    ra_check_problem p = {.rows = rows + MORE_ROWS,
                          .chunk_rows = (int32_t)rows,
                          .kv_heads = 1,
                          .dim = use->dim,
                          .dtype = use->dtype,
                          .backward = use->backward};
    int64_t const segments[BRANCHES] = {p.rows, p.rows / 2}, rates[BRANCHES] = {2, 1};
    configs[1].causal = true;
    configs[1].window_left = p.rows / 2;
    configs[1].sinks = 3;
    configs[2].causal = true;
    configs[2].segments = segments;
    configs[2].rates = rates;
    configs[2].branch_count = use->shares_rows && use->shares_keys ? BRANCHES : 1;
    ra_status status = RA_OK;
    for (int i = 0; i < (use->dilated ? PROBLEMS : PROBLEMS - 1) && status == RA_OK; ++i) {
        p.heads = heads[i];
        status = pattern_compare(&configs[i], &p, tried, plain, worst);
    }
    return status;
}

/* A chunk and a bit (two segments), with heads that share keys and without. */
static ra_status linear_compare(const ra_kernel_use *use, ra_check_place *tried,
                                ra_check_place *plain, ra_kernel_verdict *worst)
{
    ra_check_problem p = {.rows = RA_LINEAR_CHUNK + MORE_ROWS,
                          .kv_heads = 1,
                          .dim = use->dim,
                          .dtype = use->dtype,
                          .backward = use->backward,
                          .linear = use->linear,
                          .method = use->method};
    ra_status status = RA_OK;
    RA_ASSERT(tried->kernel.ops->linear != NULL);
    for (p.heads = 1; p.heads <= 2 && status == RA_OK; ++p.heads)
        status = problem_compare(&p, tried, plain, worst);
    return status;
}

/* Linear attention's problems have one kv head, and the plain kernel takes them in one segment: one
   task. Further threads would have none, and each pass would end when the last one has woken. */
static ra_kernel_use plain_use(const ra_kernel_use *use)
{
    ra_kernel_use plain = *use;
    if (use->linear != RA_LINEAR_NONE)
        plain.threads = 1;
    return plain;
}

ra_status ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                          const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                          ra_kernel_verdict *verdict_out)
{
    RA_ASSERT(use->dim >= 1 && use->dim <= RA_HEAD_DIM_MAX && use->threads >= 1);
    ra_check_place mine = {0}, theirs = {0};
    ra_kernel_verdict worst = {0};
    ra_kernel_use const theirs_use = plain_use(use);
    ra_status status = ra_check_place_make(plain, &theirs_use, &theirs);
    if (status == RA_OK)
        status = ra_check_place_make(ops, use, &mine);
    mine.kernel.poll = theirs.kernel.poll = poll;
    mine.kernel.poll_context = theirs.kernel.poll_context = poll_context;
    if (status == RA_OK)
        status = use->linear == RA_LINEAR_NONE ? problems_compare(use, &mine, &theirs, &worst)
                                               : linear_compare(use, &mine, &theirs, &worst);
    ra_check_place_free(&mine);
    ra_check_place_free(&theirs);
    if (status == RA_OK)
        *verdict_out = worst;
    return status;
}
