/* Bytes by category: what a rank's plans, buffers, accumulators and tensors take. */
#include "internal.h"
#include "ring/predict_job.h"

#include <string.h>

int64_t ra_predict_keys_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows)
{
    const ra_ring_config *c = &job->request->ring;
    return 2 * c->batch * rows * kv_heads * c->dim * (int64_t)ra_dtype_bytes(c->dtype);
}

int64_t ra_predict_grads_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows)
{
    const ra_ring_config *c = &job->request->ring;
    return 2 * c->batch * rows * kv_heads * c->dim * (int64_t)sizeof(float);
}

double ra_predict_full_ring_bytes(const ra_predict_job *job)
{
    const ra_ring_config *c = &job->request->ring;
    double const keys = (double)ra_predict_keys_bytes(job, c->kv_heads, c->seq);
    double const grads = (double)ra_predict_grads_bytes(job, c->kv_heads, c->seq);
    return (job->ranks - 1) * (c->backward ? 2 * keys + grads : keys);
}

/* A member's share of its team's memory, by rows; in whole bytes, lower places first. */
static int64_t share_of(const ra_predict_job *job, int rank, int64_t bytes)
{
    int64_t const own = job->rows[rank].row_count;
    int const team = job->teams.team[rank];
    int64_t before = 0, rows = 0; /* of members before this one, of all */
    for (int k = 0; k < ra_teams_size(&job->teams, team); ++k) {
        int64_t const count = job->rows[ra_teams_member(&job->teams, team, k)].row_count;
        before += k < job->teams.place[rank] ? count : 0;
        rows += count;
    }
    if (rows == 0)
        return 0;
    int64_t const taken = ra_max_i64(bytes, 1); /* a window is never empty */
    int64_t const rest = taken % rows;
    return taken / rows * own + ra_min_i64(rest, before + own) - ra_min_i64(rest, before);
}

int64_t ra_predict_counted(const ra_predict_job *job, int rank, int64_t bytes)
{
    return job->schedule == RA_SCHEDULE_SHARED ? share_of(job, rank, bytes)
                                               : ra_predict_round_buffer(job, bytes);
}

/* ---- maps ------------------------------------------------------------------------------------ */

int64_t ra_predict_entry_bytes(const ra_predict_job *job, ra_heads heads, int64_t pieces,
                               int64_t map_bytes)
{
    enum { LINE = 64, RECORD_WORDS = 9 };
    ra_memory const memory = ra_memory_host();
    /* Where blocks are expected, the pattern is a window of blocks, whose key is a word shorter. */
    size_t const key =
        ra_pattern_cache_key_bytes(job->pattern, heads, pieces) + (job->diagonal != NULL ? 8 : 0);
    size_t const record = 8 * RECORD_WORDS + sizeof(ra_tilemap);
    return (int64_t)memory.ops->round(&memory, ra_round_up(record, LINE) + ra_round_up(key, LINE) +
                                                   (size_t)map_bytes);
}

void ra_predict_add_map(const ra_predict_job *job, const ra_map_size *map, ra_map_sum *sum)
{
    int64_t const bytes =
        ra_predict_round_host(job, map->bytes) + ra_predict_round_host(job, map->mask_bytes);
    int64_t const copied = ra_predict_round(job, map->bytes + map->mask_bytes);
    sum->copy_bytes += copied;
    if (map->is_empty) {
        sum->empty_bytes = bytes;
        sum->empty_kept_bytes = map->kept_bytes;
        ++sum->empty_count;
        return;
    }
    sum->bytes += bytes;
    sum->kept_bytes += map->kept_bytes;
    ++sum->count;
}

static ra_map_sum maps_of(const ra_predict_job *job, const ra_predict_plan *plan)
{
    ra_map_sum sum = plan->part_maps;
    for (int s = 0; s < job->step_count; ++s)
        ra_predict_add_map(job, &plan->steps[s].map, &sum);
    return sum;
}

static int64_t read_bytes(const ra_predict_job *job, const ra_map_sum *sum)
{
    return job->request->on_device ? sum->copy_bytes
                                   : sum->bytes + sum->empty_count * sum->empty_bytes;
}

/* Maps that the cache keeps: a lazy one what is requested twice, which within one job only maps
   without keys are. Returns their bytes. */
static int64_t keep_maps(const ra_predict_job *job, const ra_map_sum *sum, ra_predict_bytes *b)
{
    bool const eager = job->request->cache == RA_CACHE_EAGER;
    bool const empty_kept =
        sum->empty_count > (eager ? 0 : 1) && job->request->cache != RA_CACHE_OFF;
    int64_t const kept = (eager ? sum->kept_bytes : 0) + (empty_kept ? sum->empty_kept_bytes : 0);
    b->cached += kept;
    b->cached_count += (eager ? sum->count : 0) + empty_kept;
    return kept;
}

static void place_maps(const ra_predict_job *job, const ra_map_sum *sum, ra_predict_bytes *b)
{
    bool const eager = job->request->cache == RA_CACHE_EAGER;
    int64_t const empty_made = job->request->cache == RA_CACHE_OFF ? sum->empty_count
                               : eager                             ? 0
                                       : ra_min_i64(sum->empty_count, 1);
    b->maps += (eager ? 0 : sum->bytes) + empty_made * sum->empty_bytes;
    if (job->request->on_device)
        b->map_copies += sum->copy_bytes;
    b->read_maps += read_bytes(job, sum);
    (void)keep_maps(job, sum, b);
}

static int64_t steps_bytes(const ra_predict_job *job, int rank)
{
    size_t const team = (size_t)ra_teams_size(&job->teams, job->teams.team[rank]);
    int64_t const step = (int64_t)(sizeof(ra_step) + team * sizeof(ra_part));
    return ra_predict_round_host(job, job->step_count * step);
}

void ra_predict_add_plan(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                         ra_predict_bytes *b)
{
    ra_map_sum const sum = maps_of(job, plan);
    b->plans += steps_bytes(job, rank);
    *(job->request->on_device ? &b->map_copies : &b->plans) += ra_predict_chunk_bytes(job, plan);
    for (int s = 0; s < job->step_count; ++s) {
        const ra_predict_step *step = &plan->steps[s];
        b->plans += ra_predict_round_host(job, step->sent_pieces * (int64_t)sizeof(ra_row_piece));
        b->map_arrays += step->map.bytes + step->map.mask_bytes;
        b->pairs += step->map.pairs;
    }
    place_maps(job, &sum, b);
}

void ra_predict_add_given_back(const ra_predict_job *job, const ra_predict_plan *plan,
                               ra_predict_bytes *b)
{
    ra_map_sum const sum = maps_of(job, plan);
    b->spare_cached += keep_maps(job, &sum, b);
}

ra_plan_bytes ra_predict_plan_bytes(const ra_predict_job *job, const ra_predict_plan *plan,
                                    const ra_predict_bytes *totals)
{
    int64_t const chunks = ra_predict_chunk_bytes(job, plan);
    return (ra_plan_bytes){totals->read_maps, chunks,
                           job->request->on_device ? 0 : totals->plans - chunks};
}

bool ra_predict_evicts(const ra_predict_job *job, const ra_predict_bytes *b)
{
    return b->cached_count > job->request->cache_entries || b->cached > job->request->cache_bytes;
}

/* Bytes of kept maps within the cache's bounds; maps evicted while in use count elsewhere. Which
   are kept is not followed: of too many all count as the mean. */
static int64_t cached_bytes(const ra_predict_job *job, const ra_predict_bytes *b)
{
    const ra_predict_request *r = job->request;
    int64_t bytes = b->cached;
    if (b->cached_count > r->cache_entries)
        bytes = (int64_t)((double)bytes * (double)r->cache_entries / (double)b->cached_count);
    return ra_min_i64(bytes, r->cache_bytes);
}

/* ---- accumulators and buffers ---------------------------------------------------------------- */

void ra_predict_add_group(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                          ra_head_group g, ra_predict_bytes *b)
{
    const ra_ring_config *c = &job->request->ring;
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    int64_t const kv_lines = c->batch * job->rows[rank].row_count * g.kv_count;
    int64_t const row = c->dim * (int64_t)sizeof(float);
    for (int s = 1; s < job->step_count; ++s) {
        const ra_predict_step *step = &plan->steps[s];
        ra_predict_raise(job->schedule == RA_SCHEDULE_RING
                             ? &b->held[ra_keys_slot(c, job->schedule, s - 1)]
                             : &b->sent,
                         ra_predict_keys_bytes(job, g.kv_count, step->sent_rows));
        ra_predict_raise(&b->held[ra_keys_slot(c, job->schedule, s)],
                         ra_predict_keys_bytes(job, g.kv_count, step->held_rows));
        b->sent_bytes +=
            (c->backward ? 2 : 1) * (double)ra_predict_keys_bytes(job, g.kv_count, step->sent_rows);
        if (!c->backward)
            continue;
        ra_predict_raise(&b->partial[ra_grads_slot(c, s)],
                         ra_predict_grads_bytes(job, g.kv_count, step->grad_rows));
        ra_predict_raise(&b->arriving, ra_predict_grads_bytes(job, g.kv_count, step->grad_in_rows));
        b->sent_bytes += (double)ra_predict_grads_bytes(job, g.kv_count, step->grad_out_rows);
    }
    ra_predict_raise(&b->state, c->batch * ra_predict_state_rows(job, plan, rank, &g) * g.q_count *
                                    (row + 2 * (int64_t)sizeof(float)));
    if (c->backward) {
        b->delta = c->batch * job->rows[rank].row_count * c->heads * (int64_t)sizeof(float);
        if (shared)
            ra_predict_raise(&b->shared, 2 * kv_lines * row);
        ra_predict_raise(&b->grads, ra_predict_summed_rows(job, plan, rank, &g) * row);
    }
    ra_predict_add_passing(job, plan, rank, g, b);
}

static int64_t accumulator_bytes(const ra_predict_job *job, const ra_predict_bytes *b)
{
    return ra_predict_round(job, b->state) + ra_predict_round(job, b->grads) +
           ra_predict_round(job, b->delta) + b->shared;
}

/* Bytes of all messages' regions. */
static int64_t regions_bytes(const ra_predict_job *job, int rank, const ra_predict_bytes *b)
{
    bool const partial = job->request->ring.backward;
    int64_t sum = ra_predict_round_buffer(job, b->sent) + ra_predict_round_buffer(job, b->arriving);
    for (int i = 0;
         i <= ra_keys_slot(&job->request->ring, job->schedule, 1) && job->teams.count > 1; ++i)
        sum += ra_predict_counted(job, rank, b->held[i]) +
               (partial ? ra_predict_counted(job, rank, b->partial[i]) : 0);
    return sum;
}

int64_t ra_predict_group_bytes(const ra_predict_job *job, int rank, const ra_predict_bytes *b,
                               int64_t *buffers_out)
{
    *buffers_out = regions_bytes(job, rank, b) + b->step_scores;
    return accumulator_bytes(job, b) + *buffers_out;
}

int64_t ra_predict_ground_bytes(const ra_predict_job *job)
{
    int64_t const n = job->ranks;
    int64_t sum = job->pattern_bytes + ra_predict_round_host(job, n * (int64_t)sizeof(ra_rowset));
    if (job->request->ring.linear == RA_LINEAR_NONE) /* else there are no teams */
        sum += ra_predict_round_host(job, (5 * n + 1) * (int64_t)sizeof(int));
    for (int r = 0; r < job->ranks; ++r)
        sum += ra_predict_round_host(job, job->rows[r].piece_count * (int64_t)sizeof(ra_row_piece));
    return sum;
}

/* ---- a rank's total -------------------------------------------------------------------------- */

static int64_t add_tensors(const ra_predict_job *job, int rank, int64_t *memory)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t const rows = c->batch * job->rows[rank].row_count;
    int64_t const element = (int64_t)ra_dtype_bytes(c->dtype);
    int64_t const q = rows * c->heads * c->dim * element, k = rows * c->kv_heads * c->dim * element;
    int64_t const lse = rows * c->heads * (int64_t)sizeof(float);
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    memory[RA_MEM_QKV] = ra_predict_round(job, q) + (shared ? 2 * k : 2 * ra_predict_round(job, k));
    memory[RA_MEM_OUTPUT] = ra_predict_round(job, q);
    bool const has_lse = ra_ring_has_lse(c);
    if (has_lse)
        memory[RA_MEM_LSE] = ra_predict_round(job, lse);
    if (c->backward) {
        memory[RA_MEM_QKV] += ra_predict_round(job, q);
        memory[RA_MEM_GRADS] = ra_predict_round(job, q) + 2 * ra_predict_round(job, k);
    }
    return c->backward ? 4 * q + 4 * k + (has_lse ? lse : 0) : 2 * q + 2 * k;
}

/* Kept scores have a list, with a record per pair of shards and part; with a GPU it is in no
   pool. */
static int64_t kept_pairs_bytes(const ra_predict_job *job, int rank)
{
    enum { HEAD_BYTES = 24 }; /* three counts and whose pass it is */
    int64_t const record = 4 * (int64_t)sizeof(ra_block) + 16;
    if (!job->request->standard || job->request->on_device || !job->request->ring.backward)
        return 0;
    int64_t const parts = ra_teams_size(&job->teams, job->teams.team[rank]);
    return ra_predict_round(job, HEAD_BYTES + record * job->groups * job->step_count * parts);
}

int64_t ra_predict_tensors_room(const ra_predict_job *job, int rank)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t memory[RA_MEM_CATEGORY_COUNT] = {0}, blocks = 0;
    bool const shared = job->schedule == RA_SCHEDULE_SHARED;
    if (!c->tensors_follow)
        return shared ? ra_predict_keys_bytes(job, c->kv_heads, job->rows[rank].row_count) : 0;
    (void)add_tensors(job, rank, memory);
    for (int i = 0; i < 2 && !job->request->on_device; ++i) /* else they are the host's */
        blocks += ra_predict_round(job, c->follow_bytes[i]);
    return memory[RA_MEM_QKV] + memory[RA_MEM_OUTPUT] + memory[RA_MEM_LSE] + memory[RA_MEM_GRADS] +
           blocks;
}

/* The window for rows on their way to a GPU: as many rows of the larger tensors as fit it. */
static int64_t window_bytes(const ra_predict_job *job, int rank)
{
    const ra_ring_config *c = &job->request->ring;
    int64_t const row = c->heads * (int64_t)c->dim * (int64_t)ra_dtype_bytes(c->dtype);
    int64_t const fit = ra_max_i64(1, job->request->window_bytes / row);
    return job->request->on_device ? row * ra_min_i64(job->rows[rank].row_count, fit) : 0;
}

/*
 * Add what the host uses: in the only memory, or beside a GPU's. The peak is either while inputs
 * are read, or during the passes, which take `passing` bytes of the same memory besides.
 * *at_passes_out: it is during the passes.
 */
static void add_host(const ra_predict_job *job, const ra_predict_bytes *b, int rank,
                     int64_t passing, int64_t *memory, bool *at_passes_out)
{
    const ra_predict_request *r = job->request;
    int64_t const cached = cached_bytes(job, b);
    int64_t const staging = job->layout.kind == RA_LAYOUT_STRIPED ? r->staging_bytes : 0;
    memory[RA_MEM_TILEMAP] +=
        ra_predict_ground_bytes(job) + b->plans + b->maps + b->cached - cached;
    memory[RA_MEM_PATTERN_CACHE] += cached;
    int64_t const held = ra_predict_round_host(job, r->pair_bytes) +
                         ra_predict_round_host(job, r->ring.follow_bytes[1]);
    int64_t const io = held + ra_predict_round_host(job, r->ring.follow_bytes[0]);
    int64_t const reading = held + ra_predict_round_host(job, staging) +
                            ra_predict_round_host(job, window_bytes(job, rank));
    *at_passes_out = reading <= io + passing;
    memory[RA_MEM_IO] += *at_passes_out ? io : reading;
}

static int64_t sum_of(const int64_t memory[RA_MEM_CATEGORY_COUNT])
{
    int64_t sum = 0;
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; ++i)
        sum += memory[i];
    return sum;
}

/* Before a request is refused, kept maps that nobody uses are evicted. */
static void evict(const ra_predict_bytes *b, int64_t lacking, ra_predict_memory *all)
{
    int64_t *const cached = &all->bytes[RA_MEM_PATTERN_CACHE];
    int64_t const spare = ra_min_i64(b->spare_cached, *cached);
    int64_t const evicted = ra_max_i64(0, ra_min_i64(lacking, spare));
    *cached -= evicted;
    all->total_bytes -= evicted;
    all->evicts = evicted > 0;
}

ra_predict_memory ra_predict_total(const ra_predict_job *job, const ra_predict_bytes *b, int rank)
{
    const ra_predict_request *r = job->request;
    ra_predict_memory all = {.floor_bytes = 0};
    int64_t *const memory = all.bytes;
    int64_t const kept = kept_pairs_bytes(job, rank);
    bool at_passes = true;
    all.floor_bytes = add_tensors(job, rank, memory);
    memory[RA_MEM_ACCUMULATOR] = accumulator_bytes(job, b);
    memory[RA_MEM_WORKSPACE] = ra_predict_round(job, r->workspace_bytes);
    if (r->ring.comm_buffers > 0)
        memory[RA_MEM_COMM_BUFFER] = regions_bytes(job, rank, b);
    if (r->on_device) {
        memory[RA_MEM_CONTEXT] = r->context_bytes;
        memory[RA_MEM_TILEMAP] = b->map_copies;
        add_host(job, b, rank, 0, all.host_bytes, &at_passes);
        all.host_total_bytes = sum_of(all.host_bytes);
        at_passes = true; /* reading on the host takes none of a GPU's memory */
    } else {
        add_host(job, b, rank, b->passing + kept + b->scores, memory, &at_passes);
    }
    if (at_passes) {
        memory[RA_MEM_WORKSPACE] += b->passing - b->passing_scores + kept;
        memory[RA_MEM_SCORES] = b->scores + b->passing_scores;
    }
    all.total_bytes = sum_of(memory);
    if (!r->on_device)
        evict(b, all.total_bytes - r->memory_bytes, &all);
    return all;
}

void ra_predict_keep_fullest(const ra_predict_job *job, const ra_predict_memory *memory, int rank,
                             ra_prediction *out)
{
    if (memory->total_bytes <= out->peak_bytes)
        return;
    out->peak_bytes = memory->total_bytes;
    out->host_peak_bytes = memory->host_total_bytes;
    out->floor_bytes = memory->floor_bytes;
    out->fullest_rank = rank;
    out->rows = job->rows[rank].row_count;
    memcpy(out->memory_bytes, memory->bytes, sizeof(out->memory_bytes));
    memcpy(out->host_memory_bytes, memory->host_bytes, sizeof(out->host_memory_bytes));
}
