#include "ring/ring_job.h"
#include "comm/comm_internal.h"
#include "ring/ring_internal.h"
#include "support/poison_memory.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank_state {
    ring_job *job;
    int rank;
    ra_comm *comm;
    ra_memory memory; /* the kernel's */
    ra_pool *pool, *host_pool;
    ra_kernel kernel;
    ra_status status;
    ra_ring_info info;
    int64_t sent_bytes, peak_bytes, leaked_bytes;
    bool in_pass, failed_together, poll_stayed, left_comm;
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

/* q k v dout out dq dk dv lse, on the host and where the kernel reads and writes them. */
typedef struct shard {
    void *data[9], *there[9];
    size_t bytes[9];
} shard;

/* A tensor's place in the kernel's memory, with what is in `data`. */
static bool place(rank_state *state, shard *s, int i)
{
    const ra_memory *memory = &state->memory;
    size_t const bytes = memory->ops->round(memory, s->bytes[i] + 1);
    s->there[i] = s->data[i];
    if (ra_memory_is_host(memory))
        return true;
    s->there[i] = NULL;
    return memory->ops->alloc(memory, bytes, &s->there[i]) == RA_OK &&
           ra_memory_write(memory, state->kernel.stream, s->there[i], s->data[i], s->bytes[i]) ==
               RA_OK;
}

static bool shard_init(rank_state *state, const ra_rowset *rows, shard *s)
{
    const ring_job *job = state->job;
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
        s->bytes[i] = n * widths[i];
        if (!place(state, s, i))
            return false;
    }
    return true;
}

static void shard_fini(rank_state *state, shard *s)
{
    const ra_memory *memory = &state->memory;
    for (int i = 0; i < 9; ++i) {
        if (s->there[i] != NULL && s->there[i] != s->data[i])
            memory->ops->free(memory, s->there[i], memory->ops->round(memory, s->bytes[i] + 1));
        free(s->data[i]);
    }
}

static ra_status shard_collect(rank_state *state, const ra_rowset *rows, const shard *s)
{
    const ring_job *job = state->job;
    const ra_ring_config *c = &job->config;
    for (int i = 4; i < 9; ++i) {
        if (s->there[i] == s->data[i])
            continue;
        ra_status const status = ra_memory_read(&state->memory, state->kernel.stream, s->data[i],
                                                s->there[i], s->bytes[i]);
        if (status != RA_OK)
            return status;
    }
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
    return RA_OK;
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

/* Where a pass has failed on all ranks, they can go on: their next collective is the same. */
static ra_status end_pass(rank_state *state, const ra_ring *ring, ra_status status)
{
    state->poll_stayed &= state->kernel.poll == state->job->poll;
    state->poll_stayed &= state->kernel.poll_context == state->job;
    state->in_pass = status != RA_OK;
    if (state->in_pass && ra_ring_failed_together(ring))
        state->failed_together = ra_comm_barrier(state->comm, "after a pass") == RA_OK;
    return status;
}

static ra_status run_passes(rank_state *state, ra_ring *ring)
{
    const ring_job *job = state->job;
    const ra_rowset *rows = ra_ring_rows(ring);
    shard s = {{0}, {0}, {0}};
    ra_status status = shard_init(state, rows, &s) ? RA_OK : RA_ERR_NO_MEMORY;
    ra_ring_tensors tensors = {.q = s.there[0],
                               .k = s.there[1],
                               .v = s.there[2],
                               .dout = s.there[3],
                               .out = s.there[4],
                               .dq = s.there[5],
                               .dk = s.there[6],
                               .dv = s.there[7],
                               .lse = s.there[8]};
    bool const strays[2] = {(job->stray_keys[0] >> state->rank & 1) != 0,
                            (job->stray_keys[1] >> state->rank & 1) != 0};
    if (status == RA_OK)
        place_keys(job, ring, &s, &tensors);
    ra_ring_tensors stray = tensors;
    if (state->rank % 2 == 0)
        stray.k = s.there[1];
    else
        stray.v = s.there[2];
    if (status == RA_OK)
        status = end_pass(state, ring, ra_ring_forward(ring, strays[0] ? &stray : &tensors));
    if (status == RA_OK && job->config.backward)
        status = end_pass(state, ring, ra_ring_backward(ring, strays[1] ? &stray : &tensors));
    if (status == RA_OK)
        status = shard_collect(state, rows, &s);
    shard_fini(state, &s);
    return status;
}

/* Passes with a trace, where one is wanted. */
static ra_status run_traced(rank_state *state, ra_ring *ring)
{
    const ring_job *job = state->job;
    ra_trace *trace = NULL;
    if (job->trace_capacity == 0)
        return run_passes(state, ring);
    ra_status status = ra_trace_create(state->host_pool, job->trace_capacity, 0, &trace);
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

static ra_status run_with_pools(rank_state *state)
{
    const ring_job *job = state->job;
    ra_kernel *kernel = &state->kernel;
    ra_pattern *pattern;
    ra_ring *ring;
    ra_status status = ra_pattern_create(&job->pattern, job->config.seq, job->config.heads,
                                         state->host_pool, &pattern);
    if (status != RA_OK)
        return status;
    ra_kernel_use const use = {
        .dtype = job->config.dtype,
        .dim = job->config.dim,
        .shares_rows = ra_pattern_shares_rows(&job->pattern, job->ranks, job->config.dense_mask),
        .shares_keys =
            ra_pattern_shares_keys(&job->pattern, job->config.heads, job->config.kv_heads),
        .threads = job->threads > 0 ? job->threads : 1,
        .linear = job->config.linear};
    status = ra_kernel_init(job->kernel != NULL ? job->kernel : ra_kernel_cpu(RA_ISA_AUTO), &use,
                            state->pool, kernel);
    if (status == RA_OK) {
        ra_ring_config config = job->config;
        config.cache = job->caches[state->rank];
        status = ra_ring_create(&config, pattern, state->comm, kernel, state->pool,
                                state->host_pool, &ring);
        if (status == RA_OK) {
            ra_ring_read_info(ring, &state->info);
            ra_ring_set_mode(ring, job->mode);
            kernel->poll = job->poll;
            kernel->poll_context = state->job;
            status = run_traced(state, ring);
            if (job->standing != NULL)
                ra_ledger_read(ra_pool_ledger(state->pool), &job->standing[state->rank]);
            ra_ring_destroy(ring);
            state->left_comm = state->comm->watch == NULL && state->comm->stream == NULL &&
                               state->comm->timed.line == NULL;
        }
        ra_kernel_fini(kernel);
    }
    ra_pattern_destroy(pattern);
    return status;
}

static ra_status run_with_cache(rank_state *state)
{
    ra_pattern_cache *cache = state->job->caches[state->rank];
    if (cache != NULL)
        ra_pattern_cache_attach(cache, state->host_pool);
    ra_status const status = run_with_pools(state);
    if (cache != NULL)
        ra_pattern_cache_detach(cache);
    return status;
}

static ra_status make_pool(ra_memory memory, ra_pool_mode mode, int64_t limit_bytes,
                           ra_ledger **ledger, ra_pool **pool)
{
    ra_status const status = ra_ledger_create(limit_bytes > 0 ? limit_bytes : INT64_MAX, ledger);
    return status != RA_OK
               ? status
               : ra_pool_create(
                     &(ra_pool_config){.mode = mode, .memory = memory, .ledger = *ledger}, pool);
}

/* What is left in a ledger, which ends. */
static ra_ledger_snapshot end_pool(ra_pool *pool, ra_ledger *ledger)
{
    ra_ledger_snapshot snapshot = {0};
    if (ledger != NULL)
        ra_ledger_read(ledger, &snapshot);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return snapshot;
}

/* What a pool keeps for later is nobody's. */
static int64_t leaked_bytes(const ra_ledger_snapshot *end)
{
    return end->reserved_bytes - end->current_bytes[RA_MEM_POOL_IDLE];
}

static void *run_rank(void *argument)
{
    rank_state *state = argument;
    ring_job *job = state->job;
    ra_ledger *ledger = NULL, *host_ledger = NULL;
    bool const elsewhere = job->two_pools && job->kernel_memory.ops != NULL;
    state->memory = elsewhere ? job->kernel_memory : ra_memory_poison();
    if (job->refusing != NULL && state->rank == (job->refuses_rank_0 ? 0 : RING_JOB_VICTIM)) {
        job->refusing->inner = state->memory;
        state->memory = ra_memory_refusing(job->refusing);
    }
    if (job->wrap_comm != NULL)
        state->comm = job->wrap_comm(job->wrap_context, state->rank, state->comm);
    state->status =
        make_pool(state->memory, job->pool_mode, job->limit_bytes, &ledger, &state->pool);
    if (state->status == RA_OK && job->two_pools)
        state->status =
            make_pool(ra_memory_poison(), job->pool_mode, 0, &host_ledger, &state->host_pool);
    else
        state->host_pool = state->pool;
    if (state->status == RA_OK)
        state->status = run_with_cache(state);
    if (state->status != RA_OK)
        ra_comm_abort(state->comm, 1);
    ra_comm_stats stats;
    ra_comm_read_stats(state->comm, &stats);
    state->sent_bytes = stats.sent_bytes;
    if (job->two_pools) {
        ra_ledger_snapshot const host_end = end_pool(state->host_pool, host_ledger);
        state->leaked_bytes = leaked_bytes(&host_end);
    }
    ra_ledger_snapshot const end = end_pool(state->pool, ledger);
    state->leaked_bytes += leaked_bytes(&end);
    state->peak_bytes = end.reserved_peak_bytes;
    ra_comm *const host = ra_comm_of_host(state->comm);
    if (host != state->comm)
        ra_comm_destroy(state->comm);
    ra_comm_destroy(host);
    return NULL;
}

void ring_job_run(ring_job *job)
{
    ra_comm *comms[RING_JOB_RANKS_MAX];
    rank_state states[RING_JOB_RANKS_MAX] = {0};
    job->sent_bytes = job->live_pairs = job->peak_bytes = job->leaked_bytes = 0;
    job->tilemap_bytes = 0;
    job->in_pass = false;
    job->failed_together = job->same_status = job->poll_stayed = job->left_comm = true;
    job->status = ra_comm_create_local(job->ranks, job->hosts,
                                       job->timeout_ms > 0 ? job->timeout_ms : 30000, comms);
    if (job->status != RA_OK)
        return;
    for (int r = 0; r < job->ranks; ++r) {
        states[r] = (rank_state){
            .job = job, .rank = r, .comm = comms[r], .poll_stayed = true, .left_comm = true};
        pthread_create(&states[r].thread, NULL, run_rank, &states[r]);
    }
    for (int r = 0; r < job->ranks; ++r)
        pthread_join(states[r].thread, NULL);
    for (int r = 0; r < job->ranks; ++r) {
        if (job->status == RA_OK || (job->status == RA_ERR_PEER && states[r].status != RA_OK))
            job->status = states[r].status; /* a peer's failure is told by the peer */
        job->in_pass |= states[r].in_pass;
        job->poll_stayed &= states[r].poll_stayed;
        job->left_comm &= states[r].left_comm;
        job->failed_together &= states[r].failed_together;
        job->same_status &= states[r].status == states[0].status;
        job->sent_bytes += states[r].sent_bytes;
        job->live_pairs += states[r].info.live_pairs;
        job->leaked_bytes += states[r].leaked_bytes;
        job->tilemap_bytes = ra_max_i64(job->tilemap_bytes, states[r].info.tilemap_bytes);
        job->peak_bytes =
            states[r].peak_bytes > job->peak_bytes ? states[r].peak_bytes : job->peak_bytes;
    }
    job->info = states[0].info;
}

int32_t ring_job_draw_groups(test_rng *rng, const ra_ring_config *c)
{
    if (test_rng_chance(rng, 0.3))
        return (int32_t)test_rng_between(rng, 1, c->kv_heads);
    if (test_rng_chance(rng, 0.5))
        return c->kv_heads * (int32_t)test_rng_between(rng, 1, c->heads / c->kv_heads);
    return c->heads * (int32_t)test_rng_between(rng, 2, 5);
}

ra_status ring_job_layout(ra_layout_kind kind, const ra_pattern *pattern, int ranks, ra_pool *pool,
                          ra_layout *layout_out)
{
    ra_teams teams;
    if (kind != RA_LAYOUT_AUTO)
        return ra_layout_init(kind, pattern, ranks, NULL, pool, layout_out);
    ra_status status = ra_teams_init(ranks, NULL, pool, &teams);
    if (status != RA_OK)
        return status;
    status = ra_layout_choose(pattern, &teams, false, NULL, pool, layout_out);
    ra_teams_fini(pool, &teams);
    return status;
}
