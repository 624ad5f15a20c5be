/* Sampling rows of the results and comparing them with the float64 reference. */
#include "console.h"
#include "tensors.h"
#include "verify_reference.h"

#include "internal.h"

#include <float.h>
#include <math.h>
#include <stddef.h>

#define WORK_MAX      1e9 /* multiply-adds per rank, if lse and delta come from inputs */
#define WORK_PER_PART 2e8 /* for each of: queries, keys */
#define WORK_PER_PAIR 12  /* what asking for a pair's multiplicity costs, in multiply-adds */
#define LEAST_SAMPLES 8   /* of queries, and of keys, per group */

const char *const ra_result_names[RA_RESULT_COUNT] = {"o", "lse", "dq", "dk", "dv"};
_Static_assert(offsetof(ra_errors, lse) == sizeof(double) &&
                   offsetof(ra_errors, dv) == (RA_RESULT_COUNT - 1) * sizeof(double),
               "members of ra_errors are in the order of the names");

static const double float32_bound = 2e-6, float32_lse_bound = 1e-5;

ra_errors ra_error_bounds(ra_dtype dtype, int32_t head_dim)
{
    static const double bounds[] = {[RA_F32] = float32_bound, [RA_F16] = 1e-3, [RA_BF16] = 8e-3};
    double const out = bounds[dtype], grad = dtype != RA_F32 && head_dim < 16 ? 2 * out : out;
    return (ra_errors){.o = out,
                       .lse = dtype == RA_F32 ? float32_lse_bound : 1e-3,
                       .dq = grad,
                       .dk = grad,
                       .dv = grad};
}

double ra_verify_least(ra_dtype dtype)
{
    return dtype == RA_F16 ? 0x1p-14 : 0x1p-24;
}

/* ---- what is sampled ------------------------------------------------------------------------- */

/* The ends are parts of their own: what they shared one with would never be sampled. */
static ra_range part_of(int64_t index, int64_t count, int64_t total)
{
    int64_t const ends = count >= 3;
    if (ends && (index == 0 || index == count - 1))
        return (ra_range){index == 0 ? 0 : total - 1, 1, 1};
    int64_t const at = index - ends, parts = count - 2 * ends, between = total - 2 * ends;
    int64_t const part = between / parts, rest = between % parts;
    return (ra_range){ends + part * at + ra_min_i64(at, rest), 1, part + (at < rest)};
}

static int64_t pick(ra_range part, uint64_t seed, int64_t index)
{
    return part.begin + (int64_t)(ra_mix64(seed ^ (uint64_t)index) % (uint64_t)part.count);
}

int64_t ra_verify_sample(uint64_t seed, int64_t index, int64_t count, int64_t total)
{
    return pick(part_of(index, count, total), seed, index);
}

ra_verify_group ra_verify_group_at(uint64_t seed, int64_t index, int64_t count, int64_t total)
{
    return (ra_verify_group){seed, ra_verify_sample(seed, index, count, total), index, count};
}

/* A group's share of a part: together those of all groups are the part, and the seed turns them. */
static ra_range share_of(ra_range part, int64_t index, const ra_verify_group *group)
{
    uint64_t const by = ra_mix64(group->seed ^ (uint64_t)index) % (uint64_t)group->count;
    int64_t const turned = (group->index + (int64_t)by) % group->count;
    int64_t const begin = part.count * turned / group->count;
    int64_t const end = part.count * (turned + 1) / group->count;
    return begin < end ? (ra_range){part.begin + begin, 1, end - begin} : part;
}

int64_t ra_verify_sample_row(const ra_verify_job *job, int32_t head, const ra_verify_group *group,
                             int64_t index, int64_t count)
{
    enum { NEARBY = 4096 };
    uint64_t const seed = ra_mix64(group->seed ^ (uint64_t)group->at);
    ra_range const part = part_of(index, count, job->config->seq);
    int64_t const row = pick(share_of(part, index, group), seed, index);
    if (ra_mix64(~seed ^ (uint64_t)index) % 4 == 0)
        return row;
    for (int64_t i = 0; i < ra_min_i64(part.count, NEARBY); ++i) {
        int64_t const near = part.begin + (row - part.begin + i) % part.count;
        if (ra_pattern_multiplicity(job->pattern, head, near, near) != 0)
            return near;
    }
    return row;
}

/* A number of samples that costs about `work`, from at least `low` to at most `high`. */
static int64_t affordable(double work, double cost, int64_t low, int64_t high, int64_t total)
{
    double const count = floor(work / cost);
    int64_t const kept = count < (double)high ? ra_max_i64((int64_t)count, low) : high;
    return ra_min_i64(kept, total);
}

/* As many rows as of a few heads, but of all heads, if each gets some: equally many. */
static void spread(int64_t rows, int64_t heads, int64_t few, int64_t most, int64_t *groups_out,
                   int64_t *rows_out)
{
    *groups_out = ra_min_i64(heads, rows / few);
    *rows_out = ra_min_i64(most, rows / *groups_out);
}

/* `live`: keys of an average query, and queries of an average key. */
static void plan_queries(const ra_verify_job *job, double live, ra_verify_plan *plan)
{
    const ra_config *config = job->config;
    double const work = WORK_PER_PART * (double)ra_comm_size(job->comm);
    double const row_cost =
        (double)config->seq * WORK_PER_PAIR + live * config->head_dim * (config->backward ? 5 : 2);
    int64_t const heads = config->batch * config->heads;
    int64_t const few = ra_min_i64(LEAST_SAMPLES, config->seq);
    int64_t const most = ra_min_i64(RA_VERIFY_MAX_QUERIES, config->seq);
    int64_t const groups = ra_min_i64(RA_VERIFY_MAX_GROUPS, heads);
    int64_t const rows = affordable(work, row_cost, groups * few, groups * most, groups * most);
    spread(rows, heads, few, most, &plan->query_groups, &plan->query_rows);
}

/* Collective. Keys of a few heads are planned first: what sees them says what more heads cost. */
static ra_status plan_keys(const ra_verify_job *job, double live, void *work, ra_verify_plan *plan)
{
    const ra_config *config = job->config;
    double const seq = (double)config->seq, dim = config->head_dim;
    double const ranks = (double)ra_comm_size(job->comm), own_rows = ceil(seq / ranks);
    int64_t const heads = config->batch * config->kv_heads;
    plan->key_groups = ra_min_i64(RA_VERIFY_MAX_GROUPS, heads);
    int64_t const query_heads = config->heads / config->kv_heads * plan->key_groups;
    double const key_cost =
        (double)query_heads * (own_rows * WORK_PER_PAIR + live / ranks * dim * 4);
    plan->key_rows =
        affordable(WORK_PER_PART, key_cost, LEAST_SAMPLES, RA_VERIFY_MAX_KEYS, config->seq);
    /* Each query that sees a sampled key is a whole row of attention. */
    int64_t rows;
    ra_status const status = ra_verify_count_seeing(job, plan, work, &rows);
    if (status != RA_OK)
        return status;
    double const group_cost = fmax((double)rows * (seq * WORK_PER_PAIR + live * (2 * dim + 10)), 1);
    spread(plan->key_groups * plan->key_rows, heads, ra_min_i64(LEAST_SAMPLES, config->seq),
           ra_min_i64(RA_VERIFY_MAX_KEYS, config->seq), &plan->key_groups, &plan->key_rows);
    plan->lse_groups = affordable(WORK_MAX, group_cost, 0, plan->key_groups, plan->key_groups);
    return RA_OK;
}

/* Collective. `work`: as of ra_verify_keys. */
static ra_status make_plan(const ra_verify_job *job, void *work, ra_verify_plan *plan)
{
    ra_range const all = {0, 1, job->config->seq};
    double const live =
        (double)ra_pattern_area(job->pattern, all) / (double)all.count / job->config->heads;
    *plan = (ra_verify_plan){0};
    plan_queries(job, live, plan);
    return job->config->backward ? plan_keys(job, live, work, plan) : RA_OK;
}

/* ---- queries: o, lse, dq --------------------------------------------------------------------- */

/* Small reads at scattered places. */
enum { WINDOW_BYTES = 256 << 10 };

static ra_verify_tensor tensor_open(const ra_result_tensors *results, const void *data,
                                    ra_dtype dtype, int64_t elements)
{
    int64_t const bytes = data != NULL ? elements * (int64_t)ra_dtype_bytes(dtype) : 0;
    return (ra_verify_tensor){ra_shard_window_open(results->memory, data, bytes, WINDOW_BYTES),
                              dtype};
}

static ra_verify_tensors tensors_open(const ra_config *config, int64_t own,
                                      const ra_result_tensors *results)
{
    int64_t const lines = config->batch * own * config->heads;
    int64_t const q = lines * config->head_dim;
    int64_t const k = config->batch * own * config->kv_heads * config->head_dim;
    return (ra_verify_tensors){.o = tensor_open(results, results->o, config->dtype, q),
                               .lse = tensor_open(results, results->lse, RA_F32, lines),
                               .dq = tensor_open(results, results->dq, config->dtype, q),
                               .dk = tensor_open(results, results->dk, config->dtype, k),
                               .dv = tensor_open(results, results->dv, config->dtype, k)};
}

static void tensors_close(ra_verify_tensors *t)
{
    ra_verify_tensor *const all[] = {&t->o, &t->lse, &t->dq, &t->dk, &t->dv};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i)
        ra_shard_window_close(&all[i]->window);
}

ra_status ra_verify_load(ra_verify_tensor *tensor, int64_t first, int32_t count, double *values)
{
    const void *data = NULL;
    int64_t const element = (int64_t)ra_dtype_bytes(tensor->dtype);
    ra_status const status =
        ra_shard_window_read(&tensor->window, first * element, count * element, &data);
    for (int32_t d = 0; d < count && status == RA_OK; ++d)
        values[d] = (double)ra_dtype_load(tensor->dtype, data, d);
    return status;
}

bool ra_verify_blurred(const ra_verify_size *size)
{
    return float32_bound * sqrt(size->growth) >= 1;
}

/*
 * Results are sums of terms that may cancel: gradients down to nothing for a query that sees one
 * key. What rounding of terms leaves is then relative to them, not to their sum: a bound holds for
 * a quarter of their root sum of squares.
 */
#define SHARE 0.25

static double size_of(const ra_verify_size *size, double reference, double bound)
{
    double const share = SHARE * SHARE;
    double const of_dtype = fmax(fmax(reference, share * size->rounded), size->least);
    double const of_float32 =
        fmax(reference, share * (size->terms + size->coherent)) * size->growth;
    return fmax(of_dtype, of_float32 * (float32_bound / bound) * (float32_bound / bound));
}

/* What is off beyond what the dtype cannot hold; NaN stays NaN. Infinity is right if a number
   within the bound rounds to it. */
static double off_by(ra_dtype dtype, double found, double reference, double bound)
{
    double const free = dtype == RA_F16 ? 0x1p-25 : (double)FLT_MIN;
    double const off = fabs(found - reference);
    float nearest[1];
    if (isinf(found)) {
        ra_dtype_store(dtype, nearest, 0, (float)(reference * (1 + bound)));
        return (double)ra_dtype_load(dtype, nearest, 0) == found ? 0 : INFINITY;
    }
    return off <= free ? 0 : off - free;
}

ra_status ra_verify_compare(ra_verify_tensor *tensor, int64_t first, const double *reference,
                            int32_t dim, const ra_verify_size *size, double bound,
                            ra_verify_sum *sum)
{
    double found[RA_HEAD_DIM_MAX], diff = 0;
    ra_status const status = ra_verify_load(tensor, first, dim, found);
    if (status != RA_OK)
        return status;
    for (int32_t d = 0; d < dim; ++d) {
        double const off = off_by(tensor->dtype, found[d], reference[d], bound);
        diff += off * off;
    }
    double const own = size_of(size, ra_reference_dot(reference, reference, dim), bound);
    double const weight = fmax(own, size->terms);
    if (!isfinite(diff) || (own == 0 && diff != 0)) {
        sum->diff = INFINITY;
    } else if (own > 0 && !ra_verify_blurred(size)) {
        sum->diff += diff / weight;
        sum->size += own / weight;
    }
    return RA_OK;
}

static double lse_error(double found, double reference)
{
    if (found == reference) /* also if no key is seen: -INFINITY */
        return 0;
    double const off = fabs(found - reference);
    return isnan(off) ? INFINITY : off;
}

/* An error in lse, divided by how far float32's bound passes the dtype's. */
static double lse_share(double error, double growth, double bound)
{
    return error / fmax(1, sqrt(growth) * float32_lse_bound / bound);
}

static ra_status compare_query(const ra_verify_job *job, int64_t batch, int32_t head, int64_t local,
                               const ra_reference_row *row, ra_verify_sums *sums, double *worst_lse)
{
    const ra_config *config = job->config;
    int64_t const own = job->rows->row_count;
    int64_t const first = ((batch * own + local) * config->heads + head) * config->head_dim;
    if (row->nonfinite) {
        sums->skipped += 1;
        if (job->inputs_finite) /* what is read now is not what the run had */
            sums->o.diff = INFINITY;
        return RA_OK;
    }
    bool const blurred = ra_verify_blurred(&row->of_out);
    sums->blurred += blurred;
    sums->queries += row->sum > 0 && !blurred;
    ra_status status = ra_verify_compare(&job->results->o, first, row->out, config->head_dim,
                                         &row->of_out, job->bounds.o, &sums->o);
    if (status == RA_OK && job->has_lse) {
        double found = 0;
        status = ra_verify_load(&job->results->lse, (batch * config->heads + head) * own + local, 1,
                                &found);
        *worst_lse = fmax(*worst_lse, lse_share(lse_error(found, row->lse),
                                                fmax(1, row->score_square), job->bounds.lse));
    }
    if (status == RA_OK && config->backward)
        status = ra_verify_compare(&job->results->dq, first, row->dq, config->head_dim, &row->of_dq,
                                   job->bounds.dq, &sums->dq);
    return status;
}

/* This rank's samples of one (batch, head), as many at a time as the reference holds. */
static ra_status verify_query_group(const ra_verify_job *job, const ra_verify_plan *plan,
                                    int64_t group, ra_reference *reference, ra_verify_sums *sums,
                                    double *worst_lse)
{
    const ra_config *config = job->config;
    ra_verify_group const sampled =
        ra_verify_group_at(config->seed, group, plan->query_groups, config->batch * config->heads);
    int64_t const batch = sampled.at / config->heads;
    int32_t const head = (int32_t)(sampled.at % config->heads);
    bool const backward = config->backward;
    int64_t locals[RA_REFERENCE_ROWS];
    for (int64_t sample = 0; sample < plan->query_rows;) {
        int count = 0;
        for (; sample < plan->query_rows && count < RA_REFERENCE_ROWS; ++sample) {
            int64_t const row = ra_verify_sample_row(job, head, &sampled, sample, plan->query_rows);
            locals[count] = ra_rowset_local(job->rows, row);
            reference->rows[count].row = row;
            count += locals[count] >= 0;
        }
        ra_status status =
            ra_reference_load(reference, batch, head, backward, reference->rows, count);
        if (status == RA_OK)
            status = ra_reference_attend(reference, batch, head,
                                         backward ? RA_REFERENCE_GRADIENT : RA_REFERENCE_OUT,
                                         reference->rows, count);
        for (int i = 0; i < count && status == RA_OK; ++i)
            status =
                compare_query(job, batch, head, locals[i], &reference->rows[i], sums, worst_lse);
        if (status != RA_OK)
            return status;
    }
    return RA_OK;
}

/* ---- all together ---------------------------------------------------------------------------- */

static double relative_error(double rows, const ra_verify_sum *sum)
{
    if (sum->diff == 0)
        return rows > 0 ? 0 : -1;
    return sum->size > 0 ? sqrt(sum->diff / sum->size) : INFINITY;
}

static ra_status reduce_errors(const ra_verify_job *job, const ra_verify_plan *plan,
                               ra_verify_sums *sums, double worst_lse, ra_errors *errors_out)
{
    ra_status status = ra_comm_reduce_f64(job->comm, "sums of verification", RA_SUM, &sums->o.diff,
                                          (int)(sizeof(*sums) / sizeof(double)));
    if (status == RA_OK)
        status = ra_comm_reduce_f64(job->comm, "sums of verification", RA_MAX, &worst_lse, 1);
    if (status != RA_OK)
        return status;
    *errors_out =
        (ra_errors){.o = relative_error(sums->queries, &sums->o),
                    .lse = worst_lse,
                    .dq = job->config->backward ? relative_error(sums->queries, &sums->dq) : -1,
                    .dk = relative_error(sums->keys, &sums->dk),
                    .dv = relative_error(sums->keys, &sums->dv),
                    .query_count = (int64_t)sums->queries,
                    .key_count = (int64_t)sums->keys,
                    .skipped_count = (int64_t)sums->skipped,
                    .blurred_count = (int64_t)sums->blurred,
                    .key_heads = (int32_t)plan->key_groups,
                    .lse_from_run = (int32_t)(plan->key_groups - plan->lse_groups)};
    return RA_OK;
}

/* Memory for rows of all heads, of which one is picked out; for a file only. */
static int64_t staging_bytes(const ra_config *config)
{
    enum { MOST_BYTES = 1 << 20 };
    int64_t const rows = ra_min_i64(RA_REFERENCE_KEYS, config->seq);
    int64_t const bytes = rows * ra_tensor_row_bytes(config, RA_TENSOR_Q);
    return config->input != NULL ? ra_min_i64(MOST_BYTES, bytes) : 0;
}

int64_t ra_verify_bytes(const ra_config *config)
{
    return ra_reference_bytes(config) + (config->backward ? ra_verify_keys_bytes(config) : 0) +
           staging_bytes(config);
}

ra_status ra_verify(const ra_config *config, const ra_pattern *pattern, ra_comm *comm,
                    const ra_tensor_source *source, bool inputs_finite, const ra_rowset *rows,
                    const ra_result_tensors *results, void *work, ra_errors *errors_out)
{
    ra_verify_tensors tensors = tensors_open(config, rows->row_count, results);
    ra_verify_job job = {.config = config,
                         .pattern = pattern,
                         .comm = comm,
                         .source = source,
                         .rows = rows,
                         .results = &tensors,
                         .bounds = ra_error_bounds(config->dtype, config->head_dim),
                         .inputs_finite = inputs_finite,
                         .has_lse = results->lse != NULL};
    ra_verify_plan plan;
    ra_verify_sums sums = {0};
    double worst_lse = -1;
    ra_reference reference;
    char *const of_keys = (char *)work + ra_reference_bytes(config);
    ra_reference_init(config, pattern, source, work, &reference);
    reference.staging = (ra_tensor_staging){
        of_keys + (config->backward ? ra_verify_keys_bytes(config) : 0), staging_bytes(config)};
    ra_console_hold();
    ra_status status = make_plan(&job, of_keys, &plan);
    for (int64_t group = 0; status == RA_OK && group < plan.query_groups; ++group)
        status = verify_query_group(&job, &plan, group, &reference, &sums, &worst_lse);
    status = ra_console_agree(comm, "agreement on verification", status);
    if (status == RA_OK && plan.key_groups > 0)
        status = ra_verify_keys(&job, &plan, &reference, of_keys, &sums);
    if (status == RA_OK)
        status = reduce_errors(&job, &plan, &sums, worst_lse, errors_out);
    tensors_close(&tensors);
    return status;
}
