/*
 * Sampled rows of dk and dv: every rank adds what its own queries contribute, in float64, and the
 * rank that owns a key compares.
 */
#include "console.h"
#include "tensors.h"
#include "verify_reference.h"

#include "internal.h"

#include <math.h>
#include <string.h>

/* What queries add to a key; only doubles, so that it is reduced as it lies. */
typedef struct key_sums {
    double dk[RA_HEAD_DIM_MAX], dv[RA_HEAD_DIM_MAX];
    /* What errors of dk come to if they add up in one direction: those of float32 sums or, in 16
       bits, of a delta whose p are rounded. Of linear attention, what delta takes from dk. */
    double dk_aside[RA_HEAD_DIM_MAX];
    double dv_norms;             /* sum of p |do| */
    double dk_few, dv_few;       /* sums of score_square times the square of a query's terms */
    ra_verify_size of_dk, of_dv; /* growth: each query's times its terms, summed up */
    double seen;                 /* by so many queries that were added */
    double nonfinite;            /* queries whose inputs, or what they see, hold NaN or Inf */
    double suspect;              /* queries whose lse or o from the run is not finite */
} key_sums;

typedef struct sampled_key {
    int64_t row;
    double k[RA_HEAD_DIM_MAX], v[RA_HEAD_DIM_MAX];
    double k_norm, v_norm;
} sampled_key;

/* One (batch, kv head) and its keys. */
typedef struct key_group {
    int64_t batch;
    int32_t kv_head, head_begin, head_count;
    int64_t key_count;
    sampled_key *keys; /* [RA_VERIFY_MAX_KEYS] */
    key_sums *sums;    /* [RA_VERIFY_MAX_KEYS], this group's part */
} key_group;

static key_group group_begin(const ra_verify_job *job, const ra_verify_plan *plan, int64_t group,
                             sampled_key *keys, key_sums *sums)
{
    const ra_config *config = job->config;
    ra_verify_group const sampled = ra_verify_group_at(
        ra_mix64(config->seed + 1), group, plan->key_groups, config->batch * config->kv_heads);
    int32_t const heads = config->heads / config->kv_heads;
    key_group result = {.batch = sampled.at / config->kv_heads,
                        .kv_head = (int32_t)(sampled.at % config->kv_heads),
                        .head_count = heads,
                        .key_count = plan->key_rows,
                        .keys = keys,
                        .sums = sums + group * plan->key_rows};
    result.head_begin = result.kv_head * heads;
    for (int64_t i = 0; i < plan->key_rows; ++i)
        keys[i].row = ra_verify_sample_row(job, result.head_begin + (int32_t)(i % heads), &sampled,
                                           i, plan->key_rows);
    return result;
}

static ra_status load_group_keys(const ra_verify_job *job, key_group *group)
{
    ra_tensor_staging const alone = {0};
    int32_t const dim = job->config->head_dim;
    ra_status status = RA_OK;
    for (int64_t i = 0; i < group->key_count && status == RA_OK; ++i) {
        sampled_key *key = &group->keys[i];
        status = ra_tensor_source_rows(job->source, job->config, RA_TENSOR_K, group->batch,
                                       group->kv_head, key->row, 1, alone, key->k);
        if (status == RA_OK)
            status = ra_tensor_source_rows(job->source, job->config, RA_TENSOR_V, group->batch,
                                           group->kv_head, key->row, 1, alone, key->v);
        key->k_norm = sqrt(ra_reference_dot(key->k, key->k, dim));
        key->v_norm = sqrt(ra_reference_dot(key->v, key->v, dim));
        if (!ra_reference_finite(key->k, dim) || !ra_reference_finite(key->v, dim))
            group->sums[i].nonfinite += 1;
    }
    return status;
}

/* ---- contributions of this rank's queries ---------------------------------------------------- */

/* lse and delta of rows as the run left them; rows[i] has the local number locals[i]. */
static ra_status take_from_run(const ra_verify_job *job, int64_t batch, int32_t head,
                               const int64_t *locals, ra_reference_row *rows, int count)
{
    const ra_config *config = job->config;
    int64_t const own = job->rows->row_count;
    double out[RA_HEAD_DIM_MAX];
    ra_status status = RA_OK;
    for (int i = 0; i < count && status == RA_OK; ++i) {
        int64_t const first = ((batch * own + locals[i]) * config->heads + head) * config->head_dim;
        status = ra_verify_load(&job->results->o, first, config->head_dim, out);
        if (status != RA_OK)
            return status;
        rows[i].delta = ra_reference_dot(out, rows[i].dout, config->head_dim);
        double const out_norm = sqrt(ra_reference_dot(out, out, config->head_dim));
        rows[i].out_lean = ra_reference_sum_lean(fabs(rows[i].delta), rows[i].dout_norm * out_norm,
                                                 INFINITY); /* of which nothing is known */
        ra_reference_size_delta(&rows[i], out_norm, config->head_dim);
        rows[i].delta_noise = rows[i].delta_size; /* of an o that is rounded */
        rows[i].score_square = 0;                 /* lse is the run's own, so it has no error */
        if (job->has_lse)
            status =
                ra_verify_load(&job->results->lse, (batch * config->heads + head) * own + locals[i],
                               1, &rows[i].lse);
    }
    return status;
}

/* A row that cannot be added is counted instead. */
static bool can_add(const ra_reference_row *row, key_sums *sums)
{
    bool const is_suspect = !row->nonfinite && !(isfinite(row->lse) && isfinite(row->delta));
    sums->nonfinite += row->nonfinite;
    sums->suspect += is_suspect;
    return !row->nonfinite && !is_suspect;
}

/*
 * A query's terms: of dv p do, of dk (dp - delta) times a vector of the norm `slope`. `least` and
 * `least_slope`: as p and slope, see ra_verify_least.
 */
typedef struct key_term {
    double p, slope, least, least_slope, dp, score_square;
} key_term;

static void add_sizes(const ra_reference_row *row, const sampled_key *key, const key_term *term,
                      int32_t dim, key_sums *sums)
{
    double const dout = row->dout_norm * row->dout_norm, p = term->p * term->p;
    double const slope = term->slope * term->slope;
    double const dp_size = ra_reference_product_size(term->dp, row->dout_norm, key->v_norm, dim);
    double const sides = 2 * (dp_size * dp_size + row->delta_size * row->delta_size);
    double const difference = term->dp - row->delta, growth = fmax(1, term->score_square);
    sums->dk_few += term->score_square * slope * sides * slope * sides;
    sums->dv_few += term->score_square * p * dout * p * dout;
    sums->of_dk.terms += slope * sides;
    sums->of_dk.rounded += slope * (difference * difference + row->delta_noise * row->delta_noise);
    sums->of_dk.least += term->least_slope * term->least_slope * sides;
    sums->of_dk.growth += growth * slope * sides;
    sums->dv_norms += term->p * row->dout_norm;
    sums->of_dv.terms += p * dout;
    sums->of_dv.rounded += p * dout;
    sums->of_dv.least += term->least * term->least * dout;
    sums->of_dv.growth += growth * p * dout;
    sums->seen += 1;
}

static void add_row(const ra_reference *reference, const ra_reference_row *row,
                    int32_t multiplicity, const sampled_key *key, key_sums *sums)
{
    int32_t const dim = reference->dim;
    double const score = reference->scale * ra_reference_dot(row->q, key->k, dim);
    double const p = multiplicity * exp(score - row->lse);
    double const dp = ra_reference_dot(row->dout, key->v, dim);
    double const q_norm = reference->scale * row->q_norm;
    double const score_size = ra_reference_score_size(score, q_norm, key->k_norm, dim);
    double const lean =
        reference->config->dtype == RA_F32
            ? ra_reference_product_lean(dp, row->dout_norm, key->v_norm, dim) + row->delta_lean
            : row->delta_noise;
    ra_reference_add(reference->scale * p * (dp - row->delta), row->q, sums->dk, dim);
    ra_reference_add(reference->scale * p * lean, row->q, sums->dk_aside, dim);
    ra_reference_add(p, row->dout, sums->dv, dim);
    double const least = ra_verify_least(reference->config->dtype);
    add_sizes(row, key,
              &(key_term){.p = p,
                          .slope = p * q_norm,
                          .least = least,
                          .least_slope = least * q_norm,
                          .dp = dp,
                          .score_square =
                              fmax(ra_reference_score_square(score_size, dim), row->score_square)},
              dim, sums);
}

/* The same for linear attention, whose rows hold features and what weights are divided by. */
static void add_row_linear(const ra_reference *reference, const ra_reference_row *row,
                           const sampled_key *key, key_sums *sums)
{
    int32_t const dim = reference->dim;
    double phi[RA_HEAD_DIM_MAX], slope_size = 0;
    memcpy(phi, key->k, (size_t)dim * sizeof(double));
    ra_reference_features(phi, dim);
    double const p = ra_reference_dot(row->q, phi, dim) / row->sum;
    double const dp = ra_reference_dot(row->dout, key->v, dim);
    for (int32_t d = 0; d < dim; ++d) {
        double const slope = row->q[d] * fmin(phi[d], 1) / row->sum;
        sums->dk[d] += (dp - row->delta) * slope;
        sums->dk_aside[d] += copysign(row->delta_size, row->delta) * slope;
        slope_size += slope * slope;
    }
    ra_reference_add(p, row->dout, sums->dv, dim);
    add_sizes(row, key, &(key_term){.p = p, .slope = sqrt(slope_size), .dp = dp}, dim, sums);
}

/* The rows in reference->rows, each of which sees a key of the group. */
static ra_status add_rows(const ra_verify_job *job, bool lse_from_run, int32_t head,
                          ra_reference *reference, const int64_t *locals, int count,
                          key_group *group)
{
    ra_reference_row *rows = reference->rows;
    ra_status status = ra_reference_load(reference, group->batch, head, true, rows, count);
    bool const linear = ra_config_linear(job->config) != RA_LINEAR_NONE;
    if (status == RA_OK && lse_from_run) {
        status = take_from_run(job, group->batch, head, locals, rows, count);
        if (status == RA_OK && linear)
            status = ra_reference_sum_linear(reference, group->batch, head, rows, count);
    } else if (status == RA_OK)
        status =
            ra_reference_attend(reference, group->batch, head, RA_REFERENCE_DELTA, rows, count);
    if (status != RA_OK)
        return status;
    for (int64_t j = 0; j < group->key_count; ++j)
        for (int i = 0; i < count; ++i) {
            int32_t const multiplicity =
                ra_pattern_multiplicity(job->pattern, head, rows[i].row, group->keys[j].row);
            if (multiplicity == 0 || !can_add(&rows[i], &group->sums[j]))
                continue;
            if (linear)
                add_row_linear(reference, &rows[i], &group->keys[j], &group->sums[j]);
            else
                add_row(reference, &rows[i], multiplicity, &group->keys[j], &group->sums[j]);
        }
    return RA_OK;
}

static bool sees_group(const ra_verify_job *job, int32_t head, int64_t row, const key_group *group)
{
    for (int64_t j = 0; j < group->key_count; ++j)
        if (ra_pattern_multiplicity(job->pattern, head, row, group->keys[j].row) != 0)
            return true;
    return false;
}

static ra_status add_head(const ra_verify_job *job, bool lse_from_run, int32_t head,
                          ra_reference *reference, key_group *group)
{
    int64_t locals[RA_REFERENCE_ROWS];
    int count = 0;
    for (int64_t p = 0; p < job->rows->piece_count; ++p) {
        ra_row_piece const piece = job->rows->pieces[p];
        for (int64_t i = 0; i < piece.rows.count; ++i) {
            int64_t const row = piece.rows.begin + piece.rows.stride * i;
            if (!sees_group(job, head, row, group))
                continue;
            locals[count] = piece.first + i;
            reference->rows[count++].row = row;
            if (count < RA_REFERENCE_ROWS)
                continue;
            ra_status const status =
                add_rows(job, lse_from_run, head, reference, locals, count, group);
            if (status != RA_OK)
                return status;
            count = 0;
        }
    }
    return add_rows(job, lse_from_run, head, reference, locals, count, group);
}

/* ---- comparing ------------------------------------------------------------------------------- */

/* The mean of what terms bring, and more where these are few. */
static double key_growth(const ra_verify_size *size, double few)
{
    double const square = size->terms * size->terms;
    double const more = square > 0 && isfinite(square) ? few / square : 0;
    return size->terms > 0 ? size->growth / size->terms + RA_REFERENCE_FEW * more : 1;
}

/* Its growth, and for linear attention both sums of dk, made by states. What rounding to 16 bits
   leaves is as alike from query to query as these are: by do, which dv sums. */
static void end_key(key_sums *key, const ra_config *config)
{
    int32_t const dim = config->head_dim;
    key->of_dk.growth = key_growth(&key->of_dk, key->dk_few);
    key->of_dv.growth = key_growth(&key->of_dv, key->dv_few);
    double const dv = ra_reference_dot(key->dv, key->dv, dim);
    double const lean = ra_reference_sum_lean(sqrt(dv), key->dv_norms, key->seen);
    double const aside = ra_reference_dot(key->dk_aside, key->dk_aside, dim);
    key->of_dv.coherent += lean * lean * dv;
    if (ra_config_linear(config) == RA_LINEAR_NONE && config->dtype != RA_F32) {
        double const norms = key->dv_norms * key->dv_norms;
        key->of_dk.rounded += norms > 0 ? dv / norms * aside : 0;
        return;
    }
    key->of_dk.coherent += aside;
    if (ra_config_linear(config) == RA_LINEAR_NONE)
        return;
    for (int32_t d = 0; d < dim; ++d) {
        double const plus = key->dk[d] + key->dk_aside[d];
        key->of_dk.coherent += plus * plus;
    }
    /* States sum rows of do in chunks. */
    double const chunk = fmax(1, ra_reference_sum_lean(sqrt(dv), key->dv_norms, RA_LINEAR_CHUNK));
    key->of_dk.coherent *= chunk * chunk;
}

static ra_status compare_key(const ra_verify_job *job, const key_group *group, int64_t at,
                             ra_verify_sums *sums)
{
    const ra_config *config = job->config;
    key_sums *key = &group->sums[at];
    int32_t const dim = config->head_dim;
    int64_t const local = ra_rowset_local(job->rows, group->keys[at].row);
    if (local < 0)
        return RA_OK;
    /* Only NaN or Inf in the inputs excuses a run whose lse is not finite. */
    if (key->nonfinite > 0 || (key->suspect > 0 && !job->inputs_finite)) {
        sums->skipped += 1;
        if (job->inputs_finite) /* what is read now is not what the run had */
            sums->dk.diff = sums->dv.diff = INFINITY;
        return RA_OK;
    }
    int64_t const first =
        ((group->batch * job->rows->row_count + local) * config->kv_heads + group->kv_head) * dim;
    end_key(key, config);
    bool const blurred = ra_verify_blurred(&key->of_dk) || ra_verify_blurred(&key->of_dv);
    sums->blurred += blurred;
    sums->keys += key->seen > 0 && !blurred;
    ra_status status = ra_verify_compare(&job->results->dk, first, key->dk, dim, &key->of_dk,
                                         job->bounds.dk, &sums->dk);
    if (status == RA_OK)
        status = ra_verify_compare(&job->results->dv, first, key->dv, dim, &key->of_dv,
                                   job->bounds.dv, &sums->dv);
    if (key->suspect > 0)
        sums->dk.diff = sums->dv.diff = INFINITY;
    return status;
}

static ra_status add_all(const ra_verify_job *job, const ra_verify_plan *plan,
                         ra_reference *reference, sampled_key *keys, key_sums *sums)
{
    ra_status status = RA_OK;
    for (int64_t g = 0; g < plan->key_groups && status == RA_OK; ++g) {
        key_group group = group_begin(job, plan, g, keys, sums);
        status = load_group_keys(job, &group);
        for (int32_t h = 0; h < group.head_count && status == RA_OK; ++h)
            status = add_head(job, g >= plan->lse_groups, group.head_begin + h, reference, &group);
    }
    return status;
}

int64_t ra_verify_keys_bytes(const ra_config *config)
{
    int64_t const groups = ra_min_i64(RA_VERIFY_MAX_GROUPS, config->batch * config->kv_heads);
    int64_t const rows = ra_min_i64(RA_VERIFY_MAX_KEYS, config->seq);
    size_t const bytes =
        RA_VERIFY_MAX_KEYS * sizeof(sampled_key) + (size_t)(groups * rows) * sizeof(key_sums);
    return (int64_t)ra_round_up(bytes, 64);
}

ra_status ra_verify_count_seeing(const ra_verify_job *job, const ra_verify_plan *plan, void *work,
                                 int64_t *rows_out)
{
    sampled_key *keys = work;
    int64_t most = 0;
    for (int64_t g = 0; g < plan->key_groups; ++g) {
        key_group const group =
            group_begin(job, plan, g, keys, (key_sums *)(keys + RA_VERIFY_MAX_KEYS));
        int64_t rows = 0;
        for (int32_t h = 0; h < group.head_count; ++h) {
            ra_comm_beat(job->comm);
            for (int64_t i = 0; i < job->rows->row_count; ++i)
                rows +=
                    sees_group(job, group.head_begin + h, ra_rowset_global(job->rows, i), &group);
        }
        most = ra_max_i64(most, rows);
    }
    *rows_out = most;
    return ra_comm_reduce_i64(job->comm, "work of verification", RA_MAX, rows_out, 1);
}

ra_status ra_verify_keys(const ra_verify_job *job, const ra_verify_plan *plan,
                         ra_reference *reference, void *work, ra_verify_sums *sums)
{
    static const char operation[] = "gradients of sampled keys";
    int64_t const count = plan->key_groups * plan->key_rows;
    sampled_key *keys = work;
    key_sums *added = (key_sums *)(keys + RA_VERIFY_MAX_KEYS);
    memset(added, 0, (size_t)count * sizeof(*added));
    ra_console_hold();
    ra_status status =
        ra_console_agree(job->comm, operation, add_all(job, plan, reference, keys, added));
    if (status == RA_OK)
        status = ra_comm_reduce_f64(job->comm, operation, RA_SUM, added->dk,
                                    (int)(count * (int64_t)(sizeof(key_sums) / sizeof(double))));
    if (status != RA_OK)
        return status;
    ra_console_hold();
    for (int64_t g = 0; g < plan->key_groups && status == RA_OK; ++g) {
        key_group const group = group_begin(job, plan, g, keys, added);
        for (int64_t i = 0; i < group.key_count && status == RA_OK; ++i)
            status = compare_key(job, &group, i, sums);
    }
    return ra_console_agree(job->comm, operation, status);
}
