/* What a trace says about passes, held against what they did; and that it costs nothing when off.
 */
#include "ring/ring_job.h"
#include "ring/trace_record.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SEQ = 120, HEADS = 4, KV_HEADS = 2, DIM = 8, RANKS_MAX = 8, CAPACITY = 4096 };
enum { WIDE = SEQ * HEADS * DIM, NARROW = SEQ * KV_HEADS * DIM, LINES = SEQ * HEADS };

static ring_job job;
static trace_record records[RANKS_MAX];

static void forget(void)
{
    trace_records_forget(records, RANKS_MAX);
    ring_job_free(&job);
}

TestSuite(trace, .fini = forget);

static void make_job(int ranks, ra_schedule schedule, int buffers, int groups, ra_dtype dtype)
{
    ring_job_free(&job);
    job = ring_job_heads(ranks, SEQ, HEADS, KV_HEADS, DIM, dtype);
    job.config.schedule = schedule;
    job.config.comm_buffers = buffers;
    job.config.head_groups = groups;
    job.trace_capacity = CAPACITY;
    job.take_trace = trace_record_take;
    job.trace_context = records;
}

static void run(void)
{
    trace_records_forget(records, RANKS_MAX);
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK, "%d ranks, %s, %d buffers: %s", job.ranks,
                 ra_schedule_name(job.config.schedule), job.config.comm_buffers,
                 ra_status_name(job.status));
    cr_assert_eq(job.leaked_bytes, 0);
    for (int r = 0; r < job.ranks && job.trace_capacity > 0; ++r)
        cr_assert_not_null(records[r].events);
}

/* Every combination of how ranks work together; the number of the last gives the end. */
static bool next_job(int index)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT,
                                            RA_SCHEDULE_SHARED};
    int const schedule = index % 3, buffers = index / 3 % 3, groups = index / 9 % 2 + 1;
    int const ranks = index / 18 + 1;
    if (ranks > 5)
        return false;
    make_job(ranks, schedules[schedule], buffers, groups, index % 5 == 0 ? RA_BF16 : RA_F32);
    for (int r = 0; r < ranks && index % 4 > 1; ++r) /* two hosts: one of two ranks, one of more */
        job.hosts[r] = r > 1;
    if (index % 2 == 1) { /* a window: some steps have nothing to do */
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        job.pattern.window_left = 9;
    }
    return true;
}

/* ---- time ------------------------------------------------------------------------------------ */

/* Looks at a clock that goes on by as many nanoseconds; negative: at the machine's. */
static atomic_llong looks = -1;

int __real_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *time)
{
    if (atomic_load(&looks) < 0)
        return __real_clock_gettime(clock, time);
    long long const ns = atomic_fetch_add(&looks, 1);
    *time = (struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return 0;
}

/* On such a clock whatever is ended takes time; some jobs of two ranks and three. */
Test(trace, every_event_ends_after_it_began)
{
    atomic_store(&looks, 0);
    for (int i = 18; i < 54 && next_job(i); i += 8) {
        run();
        for (int r = 0; r < job.ranks; ++r)
            for (int64_t e = 0; e < records[r].count; ++e)
                cr_expect_gt(records[r].events[e].end_ns, records[r].events[e].begin_ns, "%s",
                             ra_trace_kind_name(records[r].events[e].kind));
    }
}

Test(trace, events_of_a_track_are_ordered_and_nest_or_are_apart)
{
    for (int i = 0; next_job(i); ++i) {
        run();
        for (int r = 0; r < job.ranks; ++r)
            trace_record_check(&records[r], 0, records[r].count);
    }
}

/* Ranks that are threads have one clock: what was received had been posted before. */
Test(trace, nothing_arrives_before_it_was_posted)
{
    make_job(4, RA_SCHEDULE_DIRECT, 2, 2, RA_F32);
    int64_t met = 0;
    run();
    for (int r = 0; r < job.ranks; ++r)
        for (int64_t i = 0; i < records[r].count; ++i) {
            const ra_trace_event *recv = &records[r].events[i];
            int64_t const sends[2] = {RA_TRACE_SEND_KEYS, RA_TRACE_SEND_GRADS};
            for (int kind = 0; kind < 2; ++kind) {
                if (recv->kind != sends[kind] + 1)
                    continue;
                const trace_record *peer = &records[recv->peer];
                for (int64_t j = 0; j < peer->count; ++j) {
                    const ra_trace_event *send = &peer->events[j];
                    if (send->kind != sends[kind] || send->peer != r || send->step != recv->step ||
                        send->group != recv->group || send->backward != recv->backward)
                        continue;
                    ++met;
                    cr_expect_geq(recv->end_ns, send->begin_ns);
                    cr_expect_eq(recv->bytes, send->bytes);
                    cr_expect_eq(recv->rows, send->rows);
                }
            }
        }
    cr_expect_eq(met, trace_record_count(&records[0], RA_TRACE_RECEIVE_KEYS) * 4 +
                          trace_record_count(&records[0], RA_TRACE_RECEIVE_GRADS) * 4);
    cr_expect_gt(met, 0);
}

/* ---- work ------------------------------------------------------------------------------------ */

/* Causal and contiguous: rank r sees the keys of the ranks before it, and no other's. */
Test(trace, every_live_step_of_every_rank_has_its_kernel_call_and_no_other_has)
{
    enum { RANKS = 4 }; /* and head groups of one head */
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT};
    for (int i = 0; i < 2; ++i)
        for (int buffers = 0; buffers <= 2; ++buffers) {
            make_job(RANKS, schedules[i], buffers, HEADS, RA_F32);
            job.config.layout = RA_LAYOUT_CONTIGUOUS;
            run();
            for (int r = 0; r < RANKS; ++r)
                for (int at = 0; at < 2 * HEADS * RANKS; ++at) {
                    int const backward = at % 2, group = at / 2 % HEADS, s = at / 2 / HEADS;
                    ra_trace_kind const kind =
                        backward ? RA_TRACE_BACKWARD_KERNEL : RA_TRACE_FORWARD_KERNEL;
                    const ra_trace_event *e =
                        trace_record_find(&records[r], kind, backward, group, s);
                    cr_assert_eq(e != NULL, s <= r, "rank %d step %d", r, s);
                    if (e == NULL)
                        continue;
                    cr_expect_eq(e->peer, r - s);
                    cr_expect_eq(e->rows, SEQ / RANKS);
                    cr_expect_eq(e->bytes, SEQ / RANKS * 2 * DIM * sizeof(float));
                    cr_expect_not_null(
                        trace_record_find(&records[r], RA_TRACE_STEP, backward, group, s));
                }
        }
}

/* In turn j of a backward step a rank adds to the rows of the one j places ahead. */
static void check_turns(const trace_record *rank, int r, int group, int step, int turns)
{
    int turn = 0, barriers = 0;
    for (int64_t i = 0; i < rank->count; ++i) {
        const ra_trace_event *e = &rank->events[i];
        if (e->backward != 1 || e->group != group || e->step != step)
            continue;
        barriers += e->kind == RA_TRACE_BARRIER;
        if (e->kind != RA_TRACE_BACKWARD_KERNEL)
            continue;
        cr_expect_eq(e->peer, (r + turn) % turns);
        cr_expect_eq(barriers, ++turn, "a barrier before each turn");
    }
    cr_expect_eq(turn, turns);
    cr_expect_eq(barriers, turns + 1, "and one after the last");
}

Test(trace, shared_keys_are_one_forward_step_and_barriers_part_turns_of_a_backward_step)
{
    enum { RANKS = 3 };
    make_job(RANKS, RA_SCHEDULE_SHARED, 2, 2, RA_F32);
    job.pattern.causal = false;
    run();
    for (int r = 0; r < RANKS; ++r)
        for (int group = 0; group < 2; ++group) {
            const ra_trace_event *e =
                trace_record_find(&records[r], RA_TRACE_FORWARD_KERNEL, 0, group, 0);
            cr_assert_not_null(e);
            cr_expect_eq(e->rows, SEQ);
            cr_expect_eq(e->peer, -1);
            check_turns(&records[r], r, group, 0, RANKS);
        }
    cr_expect_eq(trace_record_count(&records[0], RA_TRACE_BARRIER), 2 + 2 * (RANKS + 2));
    cr_expect_eq(trace_record_count(&records[0], RA_TRACE_SEND_KEYS), 0);
    cr_expect_eq(trace_record_count(&records[0], RA_TRACE_ZERO), 1 + 2,
                 "dq, and groups' dk and dv");
}

Test(trace, dq_is_stored_before_the_last_gradients_of_keys_are_waited_for)
{
    make_job(4, RA_SCHEDULE_DIRECT, 2, 1, RA_BF16);
    run();
    for (int r = 0; r < job.ranks; ++r) {
        int stores = 0, before_wait = 0;
        for (int64_t x = 0; x < records[r].count; ++x) {
            ra_trace_kind const kind = (ra_trace_kind)records[r].events[x].kind;
            stores += kind == RA_TRACE_STORE;
            before_wait = kind == RA_TRACE_WAIT_GRADS ? stores : before_wait;
        }
        cr_expect_eq(before_wait, 1, "rank %d", r);
        cr_expect_eq(stores, 3, "rank %d: and dk, dv", r);
    }
}

/* Bytes of keys that the own step's kernels of a group read: all, those of kernels when the own
   step comes again, and of these what comes between the posting of the last gradients, those of
   step `last`, and the wait for them. */
typedef struct own_bytes {
    int64_t all, late, covering;
    int last; /* 0: none */
} own_bytes;

static own_bytes own_step_bytes(const trace_record *rank, int group)
{
    own_bytes bytes = {0};
    int64_t posted = rank->count, waited = 0, first = rank->count, again = rank->count;
    for (int64_t x = 0; x < rank->count; ++x) {
        const ra_trace_event *e = &rank->events[x];
        bool const posts = e->kind == RA_TRACE_SEND_GRADS || e->kind == RA_TRACE_RECEIVE_GRADS;
        if (e->group != group || e->backward != 1)
            continue;
        posted = posts ? x : posted;
        bytes.last = posts ? e->step : bytes.last;
        waited = e->kind == RA_TRACE_WAIT_GRADS ? x : waited;
        again = e->kind == RA_TRACE_STEP && e->step == 0 && x > first ? x : again;
        first = e->kind == RA_TRACE_STEP && e->step == 0 && x < first ? x : first;
    }
    for (int64_t x = 0; x < rank->count; ++x) {
        const ra_trace_event *e = &rank->events[x];
        if (e->kind != RA_TRACE_BACKWARD_KERNEL || e->group != group || e->step != 0)
            continue;
        bytes.all += e->bytes;
        bytes.late += x > again ? e->bytes : 0;
        bytes.covering += x > posted && x < waited ? e->bytes : 0;
    }
    return bytes;
}

/* One of two, in float32 and in bf16: key heads, or the query heads of a group of one key head.
   Where a group has one query head, its keys in bf16 are half of what its gradients are. Members
   of a team, who wait for each other, deal alike, also those who send and receive nothing. */
Test(trace, heads_of_the_own_step_are_computed_while_the_last_gradients_travel)
{
    enum { RANKS = 6 };
    static const int hosts[RANKS] = {0, 0, 0, 1, 1, 2};
    static const ra_schedule schedules[] = {RA_SCHEDULE_RING, RA_SCHEDULE_DIRECT,
                                            RA_SCHEDULE_SHARED};
    for (int i = 0; i < 3 * 3 * 2 * 3; ++i) {
        int const buffers = i / 3 % 3, groups = 1 << i / 18;
        int last[HEADS][RANKS] = {{0}}; /* of teams */
        bool const shares = schedules[i % 3] == RA_SCHEDULE_SHARED;
        make_job(RANKS, schedules[i % 3], buffers, groups, i % 2 == 0 ? RA_F32 : RA_BF16);
        job.pattern.causal = i / 9 % 2 == 0; /* then only neighbours need each other's keys */
        job.pattern.window_left = job.pattern.causal ? 9 : -1;
        job.config.layout = RA_LAYOUT_CONTIGUOUS;
        for (int r = 0; r < RANKS && shares; ++r)
            job.hosts[r] = hosts[r];
        run();
        for (int x = 0; x < RANKS * groups; ++x) {
            int const step = own_step_bytes(&records[x % RANKS], x / RANKS).last;
            int *const most = &last[x / RANKS][shares ? hosts[x % RANKS] : x % RANKS];
            *most = step > *most ? step : *most;
        }
        for (int x = 0; x < RANKS * groups; ++x) {
            own_bytes const bytes = own_step_bytes(&records[x % RANKS], x / RANKS);
            int const of_team = last[x / RANKS][shares ? hosts[x % RANKS] : x % RANKS];
            bool const is_last = of_team > 0 && bytes.last == of_team;
            int64_t of_two = groups < HEADS ? bytes.all / 2 : i % 2 == 0 ? 0 : bytes.all;
            of_two = buffers == 2 && of_team > 0 ? of_two : 0;
            cr_expect_eq(bytes.late, of_two, "job %d, rank %d", i, x % RANKS);
            cr_expect_eq(bytes.covering, is_last ? of_two : 0, "job %d, rank %d", i, x % RANKS);
        }
    }
}

/* What `bench --overlap` times apart must be apart. */
Test(trace, a_pass_that_only_computes_or_only_communicates_does_nothing_else)
{
    static const ra_trace_kind kernels[] = {RA_TRACE_FORWARD_KERNEL, RA_TRACE_BACKWARD_KERNEL};
    static const ra_trace_kind waits[] = {
        RA_TRACE_SEND_KEYS,     RA_TRACE_RECEIVE_KEYS, RA_TRACE_WAIT_KEYS, RA_TRACE_SEND_GRADS,
        RA_TRACE_RECEIVE_GRADS, RA_TRACE_WAIT_GRADS,   RA_TRACE_BARRIER};
    static const ra_ring_mode modes[] = {RA_RING_COMPUTE_ONLY, RA_RING_COMM_ONLY};
    for (int mode = 0; mode < 2; ++mode)
        for (int i = 0; next_job(i); ++i) {
            int64_t computed = 0, waited = 0;
            job.mode = modes[mode];
            run();
            for (int r = 0; r < job.ranks; ++r) {
                for (int k = 0; k < 2; ++k)
                    computed += trace_record_count(&records[r], kernels[k]);
                for (int k = 0; k < 7; ++k)
                    waited += trace_record_count(&records[r], waits[k]);
            }
            bool const computes = modes[mode] == RA_RING_COMPUTE_ONLY;
            cr_expect_eq(computed > 0, computes, "job %d", i);
            cr_expect(!computes || waited == 0, "job %d: %lld", i, (long long)waited);
        }
}

/* ---- transfers ------------------------------------------------------------------------------- */

/* With schedule ring only step 1 sends rows of our own; what came is sent on as it lies. */
Test(trace, bytes_of_transfers_are_the_bytes_that_were_sent)
{
    int64_t all = 0;
    for (int i = 0; next_job(i); ++i) {
        int64_t sent = 0, received = 0, packed = 0, own = 0, keys = 0;
        run();
        for (int r = 0; r < job.ranks; ++r) {
            keys += trace_record_bytes(&records[r], RA_TRACE_SEND_KEYS);
            for (int64_t x = 0; x < records[r].count; ++x) {
                const ra_trace_event *e = &records[r].events[x];
                bool const is_own = job.info.schedule != RA_SCHEDULE_RING || e->step == 1;
                own += e->kind == RA_TRACE_SEND_KEYS && is_own ? e->bytes : 0;
            }
            packed += trace_record_bytes(&records[r], RA_TRACE_PACK);
            sent += trace_record_bytes(&records[r], RA_TRACE_SEND_GRADS);
            received += trace_record_bytes(&records[r], RA_TRACE_RECEIVE_KEYS) +
                        trace_record_bytes(&records[r], RA_TRACE_RECEIVE_GRADS);
            cr_expect_eq(records[r].lost, 0);
        }
        cr_expect_eq(sent + keys, job.sent_bytes, "job %d", i);
        cr_expect_eq(received, job.sent_bytes, "job %d", i);
        cr_expect_eq(packed, own, "job %d", i);
        all += job.sent_bytes;
    }
    cr_expect_gt(all, 0);
}

/* The last event before it that receives, or else sends, is what a wait waits for. */
Test(trace, waits_name_the_peer_and_bytes_that_they_wait_for)
{
    int64_t waits = 0;
    for (int i = 0; next_job(i); ++i) {
        run();
        for (int r = 0; r < job.ranks; ++r) {
            const ra_trace_event *coming[RA_TRACE_KIND_COUNT] = {NULL};
            for (int64_t x = 0; x < records[r].count; ++x) {
                const ra_trace_event *e = &records[r].events[x];
                coming[e->kind] = e;
                if (e->kind != RA_TRACE_WAIT_KEYS && e->kind != RA_TRACE_WAIT_GRADS)
                    continue;
                const ra_trace_event *sent = coming[e->kind - 2], *recv = coming[e->kind - 1];
                const ra_trace_event *of = recv != NULL ? recv : sent;
                cr_assert_not_null(of);
                cr_expect_eq(e->peer, of->peer);
                cr_expect_eq(e->bytes, of->bytes);
                cr_expect_eq(e->rows, of->rows);
                cr_expect_eq(e->step, of->step);
                cr_expect_leq(of->begin_ns, e->begin_ns);
                cr_expect_geq(of->end_ns, e->end_ns);
                coming[e->kind - 2] = coming[e->kind - 1] = NULL;
                ++waits;
            }
        }
    }
    cr_expect_gt(waits, 0);
}

/* ---- what it costs --------------------------------------------------------------------------- */

Test(trace, a_full_trace_counts_what_it_loses_and_stays_nested)
{
    make_job(3, RA_SCHEDULE_RING, 2, 2, RA_F32);
    run();
    int64_t const all = records[1].count;
    for (int64_t capacity = 1; capacity <= all + 1; capacity += 3) {
        job.trace_capacity = capacity;
        run();
        cr_assert_eq(records[1].count, capacity < all ? capacity : all);
        cr_assert_eq(records[1].lost, all - records[1].count);
        trace_record_check(&records[1], 0, records[1].count);
    }
}

Test(trace, no_pass_makes_more_events_than_the_bound)
{
    for (int i = 0; next_job(i); ++i) {
        run();
        for (int r = 0; r < job.ranks; ++r)
            cr_expect_leq(records[r].count, records[r].bound, "job %d rank %d", i, r);
    }
}

/* States go one way if causal, else both ways; backward, from the second group on, those of keys
   are made again. */
Test(trace, linear_attention_makes_no_more_events_than_its_bound)
{
    for (int i = 0; i < 8; ++i) {
        int const ranks = i % 2 == 0 ? 1 : 3, groups = i / 2 % 2 + 1;
        bool const causal = i / 4 == 0;
        make_job(ranks, RA_SCHEDULE_AUTO, 0, groups, RA_F32);
        job.pattern = ra_pattern_config_dense();
        job.config.layout = RA_LAYOUT_AUTO;
        job.config.linear = causal ? RA_LINEAR_CAUSAL : RA_LINEAR_BIDIRECTIONAL;
        run();
        int64_t const again = groups > 1 ? groups : 0, ways = causal ? 1 : 2;
        for (int r = 0; r < ranks; ++r) {
            const trace_record *rank = &records[r];
            trace_record_check(rank, 0, rank->count);
            cr_expect_leq(rank->count, rank->bound, "job %d rank %d", i, r);
            int64_t const scans = ranks == 1 ? 0 : ways * (2 * groups + again);
            cr_expect_eq(trace_record_count(rank, RA_TRACE_SCAN), scans, "job %d rank %d", i, r);
            cr_expect_eq(trace_record_bytes(rank, RA_TRACE_SCAN),
                         scans * (KV_HEADS / groups) * DIM * (DIM + 1) * 4, "a group's states");
            cr_expect_eq(trace_record_count(rank, RA_TRACE_GROUP), 2 * groups);
        }
    }
}

Test(trace, linear_attention_that_only_computes_or_only_communicates_does_nothing_else)
{
    static const ra_linear_kind kinds[] = {RA_LINEAR_CAUSAL, RA_LINEAR_BIDIRECTIONAL};
    static const ra_ring_mode modes[] = {RA_RING_BOTH, RA_RING_COMPUTE_ONLY, RA_RING_COMM_ONLY};
    for (int kind = 0; kind < 2; ++kind) {
        int64_t sent = 0;
        for (int mode = 0; mode < 3; ++mode) {
            int64_t computed = 0, scanned = 0;
            make_job(3, RA_SCHEDULE_AUTO, 0, 1, RA_F32);
            job.pattern = ra_pattern_config_dense();
            job.config.layout = RA_LAYOUT_AUTO;
            job.config.linear = kinds[kind];
            job.mode = modes[mode];
            run();
            for (int r = 0; r < job.ranks; ++r) {
                computed += trace_record_count(&records[r], RA_TRACE_FORWARD_KERNEL) +
                            trace_record_count(&records[r], RA_TRACE_BACKWARD_KERNEL);
                scanned += trace_record_count(&records[r], RA_TRACE_SCAN);
            }
            bool const computes = modes[mode] != RA_RING_COMM_ONLY;
            bool const scans = modes[mode] != RA_RING_COMPUTE_ONLY;
            cr_expect_eq(computed > 0, computes, "kind %d mode %d", kind, mode);
            cr_expect_eq(scanned > 0, scans, "kind %d mode %d", kind, mode);
            if (mode == 0)
                sent = job.sent_bytes;
            cr_expect_eq(job.sent_bytes, scans ? sent : 0, "kind %d mode %d", kind, mode);
        }
        cr_expect_gt(sent, 0);
    }
}

/* 16-bit outputs fill a half of it. */
enum { RESULT_FLOATS = 2 * WIDE + 2 * NARROW + LINES };

static void keep(float *kept)
{
    const void *const from[] = {job.out, job.dq, job.dk, job.dv, job.lse};
    size_t const counts[] = {WIDE, WIDE, NARROW, NARROW, LINES};
    for (int i = 0; i < 5; kept += counts[i++])
        memcpy(kept, from[i], counts[i] * sizeof(float));
}

Test(trace, results_are_the_same_bit_for_bit_with_and_without)
{
    static float with[RESULT_FLOATS], without[RESULT_FLOATS];
    for (int i = 0; next_job(i); ++i) {
        run();
        keep(with);
        next_job(i); /* the same, anew */
        job.trace_capacity = 0;
        run();
        keep(without);
        cr_expect_eq(memcmp(with, without, sizeof(with)), 0, "job %d", i);
    }
}

Test(trace, off_takes_no_memory_and_on_takes_its_events_and_no_more)
{
    make_job(3, RA_SCHEDULE_RING, 2, 1, RA_F32);
    run();
    int64_t const with_bytes = job.peak_bytes;
    job.trace_capacity = 0;
    run();
    cr_expect_null(records[0].events, "a trace was taken");
    int64_t const events_bytes = CAPACITY * (int64_t)sizeof(ra_trace_event);
    cr_expect_geq(with_bytes - job.peak_bytes, events_bytes);
    cr_expect_leq(with_bytes - job.peak_bytes, events_bytes + 65536); /* whole pages */
}

/* ---- by itself ------------------------------------------------------------------------------- */

Test(trace, is_refused_whole_where_memory_is_short)
{
    ra_ledger *ledger = NULL;
    ra_ledger_snapshot snapshot;
    ra_pool *pool = NULL;
    ra_trace *trace = NULL;
    cr_assert_eq(ra_ledger_create(1 << 16, &ledger), RA_OK);
    ra_pool_config const config = {.memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_expect_eq(ra_trace_create(pool, 1 << 16, 0, &trace), RA_ERR_NO_MEMORY);
    cr_expect_null(trace);
    ra_ledger_read(ledger, &snapshot);
    cr_expect_eq(snapshot.reserved_bytes, 0);
    cr_expect_eq(snapshot.alloc_count[RA_MEM_IO], 0);
    ra_trace_destroy(NULL);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

Test(trace, every_kind_and_track_has_a_name_of_its_own)
{
    for (int i = 0; i < RA_TRACE_KIND_COUNT; ++i)
        for (int j = 0; j < i; ++j)
            cr_expect_str_neq(ra_trace_kind_name((ra_trace_kind)i),
                              ra_trace_kind_name((ra_trace_kind)j));
    for (int i = 0; i < RA_TRACK_COUNT; ++i)
        for (int j = 0; j < i; ++j)
            cr_expect_str_neq(ra_trace_track_name((ra_trace_track)i),
                              ra_trace_track_name((ra_trace_track)j));
}
