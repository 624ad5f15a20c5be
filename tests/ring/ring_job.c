#include "ring/ring_job.h"
#include "support/poison_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_state {
    ring_job *job;
    int rank;
    ra_comm *comm;
    ra_status status;
    ra_ring_info info;
    int64_t sent_bytes, peak_bytes, leaked_bytes;
    pthread_t thread;
} rank_state;

/* Copies between a global [batch][seq][width] tensor and a shard of its rows. */
static void copy_rows(const ra_rowset *rows, int64_t batch, int64_t seq, size_t width, void *global,
                      void *shard, bool to_shard)
{
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t x = 0; x < rows->row_count; ++x) {
            char *far = (char *)global + (size_t)(b * seq + ra_rowset_global(rows, x)) * width;
            char *near = (char *)shard + (size_t)(b * rows->row_count + x) * width;
            memcpy(to_shard ? near : far, to_shard ? far : near, width);
        }
}

typedef struct shard {
    void *data[9]; /* q k v dout out dq dk dv lse */
} shard;

static bool shard_init(const ring_job *job, const ra_rowset *rows, shard *s)
{
    const ra_ring_config *c = &job->config;
    size_t const item = ra_dtype_bytes(c->dtype), n = (size_t)(c->batch * rows->row_count);
    size_t const wide = (size_t)(c->heads * c->dim) * item;
    size_t const narrow = (size_t)(c->kv_heads * c->dim) * item;
    size_t const widths[9] = {
        wide, narrow, narrow, wide, wide, wide, narrow, narrow, (size_t)c->heads * sizeof(float)};
    const void *const inputs[4] = {job->q, job->k, job->v, job->dout};
    for (int i = 0; i < 9; ++i) {
        s->data[i] = malloc(n * widths[i] + 1);
        if (s->data[i] == NULL)
            return false;
        memset(s->data[i], 0xff, n * widths[i]); /* NaN: what is not written shows */
        if (i < 4 && inputs[i] != NULL)
            copy_rows(rows, c->batch, c->seq, widths[i], (void *)(uintptr_t)inputs[i], s->data[i],
                      true);
    }
    return true;
}

static void shard_collect(const ring_job *job, const ra_rowset *rows, const shard *s)
{
    const ra_ring_config *c = &job->config;
    size_t const item = ra_dtype_bytes(c->dtype);
    size_t const wide = (size_t)(c->heads * c->dim) * item;
    size_t const narrow = (size_t)(c->kv_heads * c->dim) * item;
    copy_rows(rows, c->batch, c->seq, wide, job->out, s->data[4], false);
    if (c->backward) {
        copy_rows(rows, c->batch, c->seq, wide, job->dq, s->data[5], false);
        copy_rows(rows, c->batch, c->seq, narrow, job->dk, s->data[6], false);
        copy_rows(rows, c->batch, c->seq, narrow, job->dv, s->data[7], false);
    }
    copy_rows(rows, c->batch * c->heads, c->seq, sizeof(float), job->lse, s->data[8], false);
}

/* Where the ring has memory of its own for keys and values, they are put there. */
static void place_keys(const ring_job *job, const ra_ring *ring, const shard *s,
                       ra_ring_tensors *tensors)
{
    const ra_ring_config *c = &job->config;
    ra_ring_keys const keys = ra_ring_key_memory(ring);
    size_t const row = (size_t)(c->kv_heads * c->dim) * ra_dtype_bytes(c->dtype);
    size_t const batch = (size_t)ra_ring_rows(ring)->row_count * row;
    if (keys.k == NULL)
        return;
    for (int64_t b = 0; b < c->batch; ++b) {
        size_t const to = (size_t)(b * keys.batch_rows) * row, from = (size_t)b * batch;
        memcpy((char *)keys.k + to, (char *)s->data[1] + from, batch);
        memcpy((char *)keys.v + to, (char *)s->data[2] + from, batch);
    }
    tensors->k = keys.k;
    tensors->v = keys.v;
}

static ra_status run_passes(rank_state *state, ra_ring *ring)
{
    const ring_job *job = state->job;
    const ra_rowset *rows = ra_ring_rows(ring);
    shard s = {{0}};
    ra_status status = shard_init(job, rows, &s) ? RA_OK : RA_ERR_NO_MEMORY;
    ra_ring_tensors tensors = {.q = s.data[0],
                               .k = s.data[1],
                               .v = s.data[2],
                               .dout = s.data[3],
                               .out = s.data[4],
                               .dq = s.data[5],
                               .dk = s.data[6],
                               .dv = s.data[7],
                               .lse = s.data[8]};
    if (status == RA_OK)
        place_keys(job, ring, &s, &tensors);
    if (status == RA_OK)
        status = ra_ring_forward(ring, &tensors);
    if (status == RA_OK && job->config.backward)
        status = ra_ring_backward(ring, &tensors);
    if (status == RA_OK)
        shard_collect(job, rows, &s);
    for (int i = 0; i < 9; ++i)
        free(s.data[i]);
    return status;
}

/* Passes with a trace, where one is wanted. */
static ra_status run_traced(rank_state *state, ra_pool *pool, ra_ring *ring)
{
    const ring_job *job = state->job;
    ra_trace *trace = NULL;
    if (job->trace_capacity == 0)
        return run_passes(state, ring);
    ra_status status = ra_trace_create(pool, job->trace_capacity, 0, &trace);
    if (status == RA_OK)
        status = ra_trace_align(trace, state->comm);
    ra_ring_set_trace(ring, trace);
    if (status == RA_OK)
        status = run_passes(state, ring);
    if (status == RA_OK)
        job->take_trace(job->trace_context, ring, state->rank, trace);
    ra_ring_set_trace(ring, NULL);
    ra_trace_destroy(trace);
    return status;
}

static ra_status run_with_pool(rank_state *state, ra_pool *pool)
{
    const ring_job *job = state->job;
    ra_pattern *pattern;
    ra_kernel kernel;
    ra_ring *ring;
    ra_status status =
        ra_pattern_create(&job->pattern, job->config.seq, job->config.heads, pool, &pattern);
    if (status != RA_OK)
        return status;
    status = ra_kernel_init(job->kernel != NULL ? job->kernel : ra_kernel_cpu(RA_ISA_AUTO),
                            job->threads > 0 ? job->threads : 1, job->config.dim, pool, &kernel);
    if (status == RA_OK) {
        ra_ring_config config = job->config;
        config.cache = job->caches[state->rank];
        status = ra_ring_create(&config, pattern, state->comm, &kernel, pool, &ring);
        if (status == RA_OK) {
            ra_ring_read_info(ring, &state->info);
            ra_ring_set_mode(ring, job->mode);
            status = run_traced(state, pool, ring);
            if (job->standing != NULL)
                ra_ledger_read(ra_pool_ledger(pool), &job->standing[state->rank]);
            ra_ring_destroy(ring);
        }
        ra_kernel_fini(&kernel);
    }
    ra_pattern_destroy(pattern);
    return status;
}

static ra_status run_with_cache(rank_state *state, ra_pool *pool)
{
    ra_pattern_cache *cache = state->job->caches[state->rank];
    if (cache != NULL)
        ra_pattern_cache_attach(cache, pool);
    ra_status const status = run_with_pool(state, pool);
    if (cache != NULL)
        ra_pattern_cache_detach(cache);
    return status;
}

static void *run_rank(void *argument)
{
    rank_state *state = argument;
    ring_job *job = state->job;
    ra_ledger *ledger = NULL;
    ra_pool *pool = NULL;
    ra_memory memory = ra_memory_poison();
    if (job->wrap_memory != NULL)
        memory = job->wrap_memory(job->wrap_context, state->rank, memory);
    if (job->wrap_comm != NULL)
        state->comm = job->wrap_comm(job->wrap_context, state->rank, state->comm);
    state->status = ra_ledger_create(job->limit_bytes > 0 ? job->limit_bytes : INT64_MAX, &ledger);
    if (state->status == RA_OK)
        state->status =
            ra_pool_create(&(ra_pool_config){.memory = memory, .ledger = ledger}, &pool);
    if (state->status == RA_OK)
        state->status = run_with_cache(state, pool);
    if (state->status != RA_OK)
        ra_comm_abort(state->comm, 1);
    ra_comm_stats stats;
    ra_comm_read_stats(state->comm, &stats);
    state->sent_bytes = stats.sent_bytes;
    if (ledger != NULL) {
        ra_ledger_snapshot snapshot;
        ra_ledger_read(ledger, &snapshot);
        state->leaked_bytes = snapshot.reserved_bytes;
        state->peak_bytes = snapshot.reserved_peak_bytes;
    }
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    ra_comm_destroy(state->comm);
    return NULL;
}

void ring_job_run(ring_job *job)
{
    ra_comm *comms[RING_JOB_RANKS_MAX];
    rank_state states[RING_JOB_RANKS_MAX] = {0};
    job->sent_bytes = job->live_pairs = job->peak_bytes = job->leaked_bytes = 0;
    job->status = ra_comm_create_local_hosts(job->ranks, job->hosts,
                                             job->timeout_ms > 0 ? job->timeout_ms : 30000, comms);
    if (job->status != RA_OK)
        return;
    for (int r = 0; r < job->ranks; ++r) {
        states[r] = (rank_state){.job = job, .rank = r, .comm = comms[r]};
        pthread_create(&states[r].thread, NULL, run_rank, &states[r]);
    }
    for (int r = 0; r < job->ranks; ++r)
        pthread_join(states[r].thread, NULL);
    for (int r = 0; r < job->ranks; ++r) {
        if (job->status == RA_OK || (job->status == RA_ERR_PEER && states[r].status != RA_OK))
            job->status = states[r].status; /* a peer's failure is told by the peer */
        job->sent_bytes += states[r].sent_bytes;
        job->live_pairs += states[r].info.live_pairs;
        job->leaked_bytes += states[r].leaked_bytes;
        job->peak_bytes =
            states[r].peak_bytes > job->peak_bytes ? states[r].peak_bytes : job->peak_bytes;
    }
    job->info = states[0].info;
}

ring_job ring_job_plain(int ranks, int64_t seq, int32_t dim)
{
    ring_job job = {.config = {.batch = 1,
                               .seq = seq,
                               .heads = 1,
                               .kv_heads = 1,
                               .dim = dim,
                               .dtype = RA_F32,
                               .schedule = RA_SCHEDULE_DIRECT,
                               .comm_buffers = 2,
                               .backward = true},
                    .pattern = ra_pattern_config_dense(),
                    .ranks = ranks};
    size_t const count = (size_t)(seq * dim);
    void **const outputs[] = {&job.out, &job.dq, &job.dk, &job.dv};
    job.q = job.k = job.v = job.dout = calloc(count, sizeof(float));
    for (int i = 0; i < 4; ++i)
        *outputs[i] = calloc(count, sizeof(float));
    job.lse = calloc((size_t)seq, sizeof(float));
    return job;
}

void ring_job_free(ring_job *job)
{
    void *const all[] = {(void *)(uintptr_t)job->q, job->out, job->dq, job->dk, job->dv, job->lse};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); ++i)
        free(all[i]);
}
