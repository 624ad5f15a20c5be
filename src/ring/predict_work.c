/*
 * What a pass does, in the terms that its time is made of. With D the head_dim, counts over batch
 * and heads:
 *     flash      4 D operations per live pair, backward 10 D; pairs are the live ones, rows those
 *                of chunks with a live pair, keys once for each tile of queries that meets them
 *     standard   4 D per pair, backward 8 D; pairs are all of a step, live or not, as its matrices
 *                have them; keys once for each block of queries
 *     linear     2 D^2 per row of queries and of keys, backward twice that; keys are their rows
 *     chunked    the same, 256 D more per row of queries for the products within a chunk of 64;
 *                backward 6 D^2 per row and 768 D
 *     recurrent  3 D^2 per row of queries, 2 D^2 per row of keys
 *     cumsum     2 D^2 per row; pairs are the floats of states that are stored and read, where
 *                those of one head pass the cache
 * Where a rank has more than one state, of segments or of ranks before it, a causal forward pass
 * goes over its keys once more, and so does the backward pass of several head groups.
 */
#include "internal.h"
#include "ring/predict_job.h"

enum { PRODUCT_ELEMENTS = 16 }; /* linear attention pads rows to a multiple of it */

ra_work ra_predict_work(const ra_predict_request *request)
{
    static const ra_work causal[] = {[RA_LINEAR_CHUNKED] = RA_WORK_CHUNKED,
                                     [RA_LINEAR_RECURRENT] = RA_WORK_RECURRENT,
                                     [RA_LINEAR_CUMSUM] = RA_WORK_CUMSUM};
    const ra_ring_config *c = &request->ring;
    if (c->linear == RA_LINEAR_CAUSAL)
        return causal[c->linear_method];
    if (c->linear == RA_LINEAR_BIDIRECTIONAL)
        return RA_WORK_LINEAR;
    return request->standard ? RA_WORK_STANDARD : RA_WORK_FLASH;
}

static const ra_pass_speed *speed_of(const ra_predict_request *r, bool backward)
{
    return &r->hardware->speeds[ra_predict_work(r)][backward][r->ring.dtype];
}

double ra_predict_rate(const ra_predict_request *r, bool backward)
{
    /* Only flash kernels compute in the elements' type. */
    bool const flash = ra_predict_work(r) == RA_WORK_FLASH;
    return r->hardware->peak_tflops[flash ? r->ring.dtype : RA_F32] *
           speed_of(r, backward)->efficiency;
}

bool ra_predict_knows_times(const ra_predict_request *r)
{
    return r->hardware != NULL && ra_predict_rate(r, false) > 0 &&
           (!r->ring.backward || ra_predict_rate(r, true) > 0);
}

double ra_predict_terms_ms(const ra_predict_request *r, bool backward, const ra_pass_terms *terms)
{
    const ra_pass_speed *speed = speed_of(r, backward);
    return 1e-3 * speed->start_us * terms->starts +
           1e-6 * (speed->pair_ns * terms->pairs + speed->row_element_ns * terms->rows +
                   speed->key_element_ns * terms->keys) +
           terms->flops / (ra_predict_rate(r, backward) * 1e9);
}

ra_pass_terms ra_predict_step_terms(const ra_predict_job *job, bool backward,
                                    const ra_map_size *map, int64_t rows, int32_t q_heads,
                                    int32_t groups)
{
    const ra_predict_request *r = job->request;
    double const batch = (double)r->ring.batch, dim = r->ring.dim;
    double const lines = batch * q_heads * (double)rows;
    if (map->runs <= 0)
        return (ra_pass_terms){0};
    if (!r->standard)
        return (ra_pass_terms){.starts = groups,
                               .rows = dim * batch * q_heads * (double)map->rows,
                               .pairs = batch * map->pairs,
                               .keys = dim * batch * map->keys,
                               .flops = (backward ? 10 : 4) * dim * batch * map->pairs};
    double const pairs = lines * (double)map->k_rows;
    double const blocks = (double)ra_div_ceil(rows, r->tile_rows);
    return (ra_pass_terms){.starts = groups,
                           .rows = dim * lines,
                           .pairs = pairs,
                           .keys = dim * batch * q_heads * blocks * (double)map->k_rows,
                           .flops = (backward ? 8 : 4) * dim * pairs};
}

void ra_predict_add_terms(const ra_pass_terms *from, ra_pass_terms *to)
{
    to->starts += from->starts;
    to->rows += from->rows;
    to->pairs += from->pairs;
    to->keys += from->keys;
    to->flops += from->flops;
}

/* ---- linear attention ------------------------------------------------------------------------ */

typedef struct linear_rows {
    double queries, keys; /* over batch and heads */
    double state;         /* elements of a state in one row's product with it */
    double dim;           /* padded */
} linear_rows;

/* Sums of keys that come before the pass proper. */
static void add_sums(const linear_rows *n, ra_pass_terms *t)
{
    t->keys += n->dim * n->keys;
    t->flops += 2 * n->state * n->keys;
}

/* Floats of states that go through memory, if those of a head do not stay in the cache: in, and
   out, once for all query heads that share them. */
static double states_moved(const ra_predict_request *r, const linear_rows *n, int64_t rows)
{
    int64_t const floats = ra_linear_state_floats(r->ring.dim);
    int64_t const cache = r->hardware != NULL ? r->hardware->cache_bytes : 0;
    bool const stay = rows * floats * (int64_t)sizeof(float) <= cache;
    return stay ? 0 : 2 * (double)floats * n->keys;
}

static ra_pass_terms forward_terms(ra_work work, const linear_rows *n)
{
    enum { CHUNK_PRODUCTS = 2 * 2 * RA_LINEAR_CHUNK };
    ra_pass_terms t = {.rows = n->dim * n->queries, .keys = n->dim * n->keys};
    t.flops = 2 * n->state * (n->queries + n->keys);
    if (work == RA_WORK_CHUNKED)
        t.flops += CHUNK_PRODUCTS * n->dim * n->queries;
    if (work == RA_WORK_RECURRENT)
        t.flops += n->state * n->queries;
    return t;
}

static ra_pass_terms backward_terms(ra_work work, const linear_rows *n)
{
    enum { CHUNK_PRODUCTS = 6 * 2 * RA_LINEAR_CHUNK };
    bool const chunked = work == RA_WORK_CHUNKED;
    ra_pass_terms t = {.rows = n->dim * n->queries, .keys = n->dim * n->keys};
    t.flops = (chunked ? 6 : 4) * n->state * (n->queries + n->keys);
    if (chunked)
        t.flops += CHUNK_PRODUCTS * n->dim * n->queries;
    return t;
}

ra_pass_terms ra_predict_linear_terms(const ra_predict_job *job, bool backward, int64_t rows,
                                      bool sums_first)
{
    const ra_ring_config *c = &job->request->ring;
    ra_work const work = ra_predict_work(job->request);
    int64_t const dim = ra_div_ceil(c->dim, PRODUCT_ELEMENTS) * PRODUCT_ELEMENTS;
    linear_rows const n = {.queries = (double)(c->batch * rows) * c->heads,
                           .keys = (double)(c->batch * rows) * c->kv_heads,
                           .state = (double)(dim * dim),
                           .dim = (double)dim};
    ra_pass_terms t = backward ? backward_terms(work, &n) : forward_terms(work, &n);
    bool const again = !backward || job->groups > 1; /* states of one group are at hand */
    if (work != RA_WORK_LINEAR && sums_first && again)
        add_sums(&n, &t);
    if (work == RA_WORK_LINEAR && backward && again)
        add_sums(&n, &t);
    if (work == RA_WORK_CUMSUM)
        t.pairs = states_moved(job->request, &n, rows);
    t.starts = job->groups;
    return t;
}

static ra_status count_slice(void *context, const ra_slice *slice)
{
    (void)slice;
    ++*(double *)context;
    return RA_OK;
}

ra_status ra_predict_slices(const ra_predict_job *job, double *slices_out)
{
    const ra_rowset *rows = &job->rows[job->ranks / 2];
    double slices = 0;
    for (int32_t i = 0; i < ra_pattern_layer_count(job->pattern) && rows->piece_count > 0; ++i) {
        ra_range const all = rows->pieces[0].rows;
        int64_t const count = ra_min_i64(all.count, job->request->tile_rows);
        ra_status const status =
            ra_pattern_visit(job->pattern, i, all.begin + all.stride * ((all.count - count) / 2),
                             all.stride * (count - 1) + 1, count_slice, &slices);
        if (status != RA_OK)
            return status;
    }
    *slices_out = slices;
    return RA_OK;
}
