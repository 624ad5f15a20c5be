/* What layouts balance, and what travels: only what somebody needs. */
#include "ring/ring_job.h"
#include "support/captured_log.h"
#include "support/poison_suite.h"
#include "support/random_pattern.h"
#include "support/refusing_memory.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(layout, .init = poison_suite_begin, .fini = poison_suite_end);

static double imbalance(const ra_pattern_config *config, int64_t seq, int ranks,
                        ra_layout_kind kind)
{
    ra_pattern *pattern;
    ra_layout layout;
    cr_assert_eq(ra_pattern_create(config, seq, 4, pool, &pattern), RA_OK);
    cr_assert_eq(ring_job_layout(kind, pattern, ranks, pool, &layout), RA_OK);
    double const result = layout.imbalance;
    int64_t most = 0, least = INT64_MAX;
    for (int r = 0; r < ranks && layout.kind == RA_LAYOUT_BALANCED; ++r) {
        int64_t chunks = 0; /* pieces may hold several neighbours */
        for (int64_t i = 0; i < layout.rows[r].piece_count; ++i)
            chunks += (layout.rows[r].pieces[i].rows.count + layout.chunk - 1) / layout.chunk;
        most = chunks > most ? chunks : most;
        least = chunks < least ? chunks : least;
    }
    cr_assert(most == 0 || most - least <= 1, "chunk counts differ by more than one");
    ra_layout_fini(pool, &layout);
    ra_pattern_destroy(pattern);
    return result;
}

Test(layout, zigzag_balances_causal_within_2_percent)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    for (int ranks = 2; ranks <= 8; ++ranks)
        cr_assert_leq(imbalance(&config, 65536, ranks, RA_LAYOUT_ZIGZAG), 1.02);
}

Test(layout, balanced_and_auto_are_within_5_percent_for_documents_of_random_lengths)
{
    test_rng rng = {42};
    for (int n = 0; n < 20; ++n) {
        int64_t documents[512], count = 0, left = 65536;
        int64_t const longest = (int64_t)1 << test_rng_between(&rng, 9, 15);
        while (left > 0 && count < 511) {
            int64_t const length = test_rng_between(&rng, 1, left < longest ? left : longest);
            documents[count++] = length;
            left -= length;
        }
        documents[count++] = left;
        ra_pattern_config config = ra_pattern_config_dense();
        config.causal = n % 2;
        config.documents = documents;
        config.document_count = count;
        int const ranks = (int)test_rng_between(&rng, 2, 8);
        double const balanced = imbalance(&config, 65536, ranks, RA_LAYOUT_BALANCED);
        double const automatic = imbalance(&config, 65536, ranks, RA_LAYOUT_AUTO);
        cr_assert_leq(balanced, 1.05, "case %d: %d ranks, longest %lld: balanced %g", n, ranks,
                      (long long)longest, balanced);
        cr_assert_leq(automatic, 1.05, "case %d: auto %g", n, automatic);
    }
}

/* Rows are memory: who has the block that all see gets no fewer of the others. */
Test(layout, balanced_deals_as_many_chunks_to_the_rank_of_the_heaviest)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
    config.block_size = 128;
    config.block_width = 2;
    config.block_globals = 1;
    for (int ranks = 2; ranks <= 8; ++ranks)
        cr_assert_geq(imbalance(&config, 65536, ranks, RA_LAYOUT_BALANCED), 1);
}

enum { DOCUMENTS = 3, CHUNKS_MOST = 8 * DOCUMENTS, DEALT_RANKS_MOST = 8 };

/* Who has which chunk, and the live pairs of each. */
typedef struct dealt {
    int64_t count, area[CHUNKS_MOST], load[DEALT_RANKS_MOST];
    int rank[CHUNKS_MOST];
} dealt;

static dealt find_chunks(const ra_pattern *pattern, const ra_layout *layout)
{
    dealt d = {0};
    for (int r = 0; r < layout->ranks; ++r)
        for (int64_t i = 0; i < layout->rows[r].piece_count; ++i) {
            ra_range const rows = layout->rows[r].pieces[i].rows;
            for (int64_t at = 0; at < rows.count; at += layout->chunk, ++d.count) {
                int64_t const left = rows.count - at;
                ra_range const chunk = {rows.begin + at, 1,
                                        left < layout->chunk ? left : layout->chunk};
                d.rank[d.count] = r;
                d.area[d.count] = ra_pattern_area(pattern, chunk);
                d.load[r] += d.area[d.count];
            }
        }
    return d;
}

static int64_t largest_load(const dealt *d, int ranks)
{
    int64_t most = 0;
    for (int r = 0; r < ranks; ++r)
        most = d->load[r] > most ? d->load[r] : most;
    return most;
}

/* Whether the largest load is smaller once two chunks have changed places. */
static bool would_lower(const dealt *d, int ranks, int64_t i, int64_t j)
{
    dealt other = *d;
    int64_t const shift = d->area[i] - d->area[j];
    other.load[d->rank[i]] -= shift;
    other.load[d->rank[j]] += shift;
    return largest_load(&other, ranks) < largest_load(d, ranks);
}

/* Few chunks, of documents that differ: most deals remain uneven, but none needlessly. */
Test(layout, balanced_leaves_no_two_chunks_whose_exchange_would_lower_the_largest_load)
{
    test_rng rng = {11};
    int uneven = 0;
    for (int n = 0; n < 100; ++n) {
        int64_t documents[DOCUMENTS], seq = 0;
        ra_pattern_config config = ra_pattern_config_dense();
        ra_pattern *pattern;
        ra_layout layout;
        for (int i = 0; i < DOCUMENTS; ++i)
            seq += documents[i] = test_rng_between(&rng, 1, 8 * 128);
        config.documents = documents;
        config.document_count = DOCUMENTS;
        int const ranks = (int)test_rng_between(&rng, 2, DEALT_RANKS_MOST);
        cr_assert_eq(ra_pattern_create(&config, seq, 1, pool, &pattern), RA_OK);
        cr_assert_eq(ring_job_layout(RA_LAYOUT_BALANCED, pattern, ranks, pool, &layout), RA_OK);
        dealt const d = find_chunks(pattern, &layout);
        if (layout.imbalance > 1.05) {
            ++uneven;
            cr_expect_eq(layout.chunk, 128, "case %d: smaller ones may be even", n);
            for (int64_t i = 0; i < d.count; ++i)
                for (int64_t j = 0; j < d.count; ++j)
                    cr_assert_not(would_lower(&d, ranks, i, j), "case %d: %lld and %lld", n,
                                  (long long)i, (long long)j);
        }
        ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
    cr_expect_gt(uneven, 20, "%d", uneven);
}

/* Of 8,192 tokens in chunks of 1,024 every second of 16 ranks would have none. */
Test(layout, balanced_takes_the_longest_chunks_that_are_even)
{
    ra_pattern_config const config = ra_pattern_config_dense();
    for (int ranks = 1; ranks <= 16; ranks *= 2) {
        ra_pattern *pattern;
        ra_layout layout;
        cr_assert_eq(ra_pattern_create(&config, 8192, 1, pool, &pattern), RA_OK);
        cr_assert_eq(ring_job_layout(RA_LAYOUT_BALANCED, pattern, ranks, pool, &layout), RA_OK);
        cr_expect_eq(layout.chunk, ranks < 16 ? 1024 : 512, "%d ranks: %lld", ranks,
                     (long long)layout.chunk);
        ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
}

/* The last rank's two pieces of zigzag, and neighbouring chunks. */
Test(layout, pieces_of_a_rank_that_lie_side_by_side_are_one)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    for (int kind = 0; kind < RA_LAYOUT_AUTO; ++kind) {
        ra_pattern *pattern;
        ra_layout layout;
        cr_assert_eq(ra_pattern_create(&config, 10000, 1, pool, &pattern), RA_OK);
        cr_assert_eq(ring_job_layout((ra_layout_kind)kind, pattern, 3, pool, &layout), RA_OK);
        for (int r = 0; r < 3; ++r)
            for (int64_t i = 0; i + 1 < layout.rows[r].piece_count; ++i) {
                ra_range const rows = layout.rows[r].pieces[i].rows;
                cr_expect_lt(rows.begin + rows.count, layout.rows[r].pieces[i + 1].rows.begin,
                             "%s: rank %d", ra_layout_name((ra_layout_kind)kind), r);
            }
        ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
}

/* What it had taken by then is given back. */
Test(layout, that_any_allocation_fails_is_refused)
{
    for (int kind = 0; kind <= RA_LAYOUT_AUTO; ++kind) {
        refusing_memory memory = {.inner = ra_memory_poison(), .refused = true};
        ra_pattern_config const config = ra_pattern_config_dense();
        ra_pool_config const of = {.memory = ra_memory_refusing(&memory), .ledger = ledger};
        ra_pattern *pattern;
        ra_pool *own;
        cr_assert_eq(ra_pattern_create(&config, 10000, 1, pool, &pattern), RA_OK);
        cr_assert_eq(ra_pool_create(&of, &own), RA_OK);
        long n = 0;
        for (; memory.refused; ++n) {
            ra_layout layout;
            atomic_store(&memory.countdown, n);
            atomic_store(&memory.refused, false);
            ra_status const status =
                ring_job_layout((ra_layout_kind)kind, pattern, 3, own, &layout);
            cr_assert_eq(status, memory.refused ? RA_ERR_NO_MEMORY : RA_OK, "%s: allocation %ld",
                         ra_layout_name((ra_layout_kind)kind), n);
            if (status == RA_OK)
                ra_layout_fini(own, &layout);
            cr_assert_eq(memory.out_bytes, 0, "%s: allocation %ld",
                         ra_layout_name((ra_layout_kind)kind), n);
        }
        cr_expect_gt(n, 3, "%s", ra_layout_name((ra_layout_kind)kind));
        ra_pool_destroy(own);
        ra_pattern_destroy(pattern);
    }
}

Test(layout, of_pairs_that_cannot_be_counted_is_refused_in_one_line)
{
    int64_t const longest = (int64_t)1 << 30; /* of so many tokens 2^60 pairs can be counted */
    ra_pattern_config const config = ra_pattern_config_dense();
    for (int heads = 1; heads <= 4; heads *= 4) {
        captured_log said;
        ra_pattern *pattern;
        ra_layout layout;
        cr_assert_eq(ra_pattern_create(&config, longest, heads, pool, &pattern), RA_OK);
        captured_log_begin(&said);
        ra_status const status =
            ra_layout_init(RA_LAYOUT_CONTIGUOUS, pattern, 2, NULL, pool, &layout);
        cr_expect_eq(status, heads == 1 ? RA_OK : RA_ERR_UNSUPPORTED, "%d heads", heads);
        cr_expect_eq(said.errors, heads == 1 ? 0 : 1, "%d heads", heads);
        if (status == RA_OK)
            ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
}

/* A window then reaches into the rows of neighbours only. */
Test(layout, balanced_lays_chunks_of_equal_work_side_by_side)
{
    ra_pattern_config config = ra_pattern_config_dense();
    for (int windowed = 0; windowed < 2; ++windowed) {
        ra_pattern *pattern;
        ra_layout layout;
        config.window_left = config.window_right = windowed ? 100 : -1;
        cr_assert_eq(ra_pattern_create(&config, 65536, 4, pool, &pattern), RA_OK);
        cr_assert_eq(ring_job_layout(RA_LAYOUT_BALANCED, pattern, 4, pool, &layout), RA_OK);
        for (int r = 0; r < 4; ++r) /* both ends of the sequence see less */
            cr_expect_leq(layout.rows[r].piece_count, windowed ? 3 : 1, "rank %d", r);
        ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
}

Test(layout, auto_takes_the_first_of_layouts_that_are_alike)
{
    ra_pattern_config const config = ra_pattern_config_dense();
    for (int64_t seq = 1; seq <= 4096; seq *= 64) { /* one token of two ranks, and even shares */
        ra_pattern *pattern;
        ra_layout layout;
        cr_assert_eq(ra_pattern_create(&config, seq, 4, pool, &pattern), RA_OK);
        cr_assert_eq(ring_job_layout(RA_LAYOUT_AUTO, pattern, 2, pool, &layout), RA_OK);
        cr_expect_eq(layout.kind, RA_LAYOUT_CONTIGUOUS, "%lld tokens: %s", (long long)seq,
                     ra_layout_name(layout.kind));
        ra_layout_fini(pool, &layout);
        ra_pattern_destroy(pattern);
    }
}

Test(layout, auto_is_within_5_percent_for_causal_and_global_local)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.causal = true;
    cr_assert_leq(imbalance(&config, 65536, 8, RA_LAYOUT_AUTO), 1.05);
    for (int causal = 0; causal < 2; ++causal) {
        config.causal = causal;
        config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
        config.block_size = 128;
        config.block_width = 2;
        config.block_globals = 4;
        cr_assert_leq(imbalance(&config, 65536, 8, RA_LAYOUT_AUTO), 1.05);
        cr_assert_leq(imbalance(&config, 65536, 5, RA_LAYOUT_AUTO), 1.05);
    }
}

/* Forward and backward of a window over 65,536 tokens on 8 ranks; share of a full ring's bytes. */
static double window_share(ra_layout_kind layout, bool backward)
{
    int64_t const seq = 65536;
    ring_job job = ring_job_plain(8, seq, 8);
    job.config.layout = layout;
    job.config.backward = backward;
    job.pattern.causal = true;
    job.pattern.window_left = 1023;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(job.live_pairs, seq * 1024 - 1024 * 1023 / 2);
    ring_job_free(&job);
    return (double)job.sent_bytes / (double)job.info.full_ring_bytes;
}

Test(traffic, a_window_of_1024_sends_less_than_2_percent_of_a_full_ring)
{
    cr_assert_lt(window_share(RA_LAYOUT_CONTIGUOUS, false), 0.02);
    cr_assert_lt(window_share(RA_LAYOUT_AUTO, false), 0.02);
    cr_assert_lt(window_share(RA_LAYOUT_AUTO, true), 0.02);
    cr_assert_gt(window_share(RA_LAYOUT_CONTIGUOUS, true), 0.001);
}

/* Dense: both schedules send exactly what a full ring sends. */
Test(traffic, dense_attention_sends_exactly_a_full_ring)
{
    ring_job job = ring_job_plain(5, 210, 4);
    for (int schedule = 0; schedule < RA_SCHEDULE_SHARED; ++schedule)
        for (int buffers = 0; buffers < 3; ++buffers) {
            job.config.schedule = (ra_schedule)schedule;
            job.config.comm_buffers = buffers;
            ring_job_run(&job);
            cr_assert_eq(job.status, RA_OK);
            cr_assert_eq(job.sent_bytes, job.info.full_ring_bytes, "%s: %lld of %lld",
                         ra_schedule_name((ra_schedule)schedule), (long long)job.sent_bytes,
                         (long long)job.info.full_ring_bytes);
        }
    ring_job_free(&job);
}

/* Most bytes of a category on any rank, with shards of 64 KiB of keys and values. */
static int64_t peak_in_rounds(ra_schedule schedule, int ranks, int buffers, int rounds,
                              ra_category category)
{
    ra_ledger_snapshot standing[RING_JOB_RANKS_MAX];
    ring_job job = ring_job_plain(ranks, ranks * 1024, 8);
    int64_t most = 0;
    job.config.schedule = schedule;
    job.config.comm_buffers = buffers;
    job.config.rounds = rounds;
    job.config.backward = false;
    job.standing = standing;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(job.sent_bytes, job.info.full_ring_bytes, "%d rounds", rounds);
    for (int r = 0; r < ranks; ++r)
        if (standing[r].peak_bytes[category] > most)
            most = standing[r].peak_bytes[category];
    ring_job_free(&job);
    return most;
}

static int64_t peak_of(ra_schedule schedule, int ranks, int buffers, ra_category category)
{
    return peak_in_rounds(schedule, ranks, buffers, 1, category);
}

/* As many bytes are sent. */
Test(traffic, rounds_divide_buffers)
{
    for (int ranks = 2; ranks <= 4; ++ranks)
        for (int buffers = 1; buffers <= 2; ++buffers) {
            int64_t const whole = peak_of(RA_SCHEDULE_DIRECT, ranks, buffers, RA_MEM_COMM_BUFFER);
            /* Of two ranks, one buffer serves as well without rounds. */
            int64_t const most = ranks == 2 && buffers == 2 ? whole / 2 * 3 : whole;
            for (int rounds = 2; rounds <= 8; rounds *= 2)
                cr_expect_eq(
                    peak_in_rounds(RA_SCHEDULE_DIRECT, ranks, buffers, rounds, RA_MEM_COMM_BUFFER),
                    most / rounds, "%d ranks, %d buffers, %d rounds", ranks, buffers, rounds);
        }
}

/* What arrives, and beside it what leaves: with schedule ring the block that arrived before. */
Test(traffic, a_ring_holds_two_blocks_of_keys_however_it_buffers_them)
{
    int64_t const block = 64 << 10;
    for (int ranks = 2; ranks <= 5; ++ranks) {
        for (int buffers = 1; buffers <= 2; ++buffers)
            cr_expect_eq(peak_of(RA_SCHEDULE_RING, ranks, buffers, RA_MEM_COMM_BUFFER), 2 * block,
                         "%d ranks, %d buffers", ranks, buffers);
        cr_expect_eq(peak_of(RA_SCHEDULE_RING, ranks, 0, RA_MEM_WORKSPACE) -
                         peak_of(RA_SCHEDULE_RING, ranks, 1, RA_MEM_WORKSPACE),
                     2 * block, "%d ranks, no buffers", ranks);
    }
}

Test(traffic, what_leaves_is_packed_into_one_block_with_direct_however_many_arrive)
{
    int64_t const block = 64 << 10;
    for (int ranks = 2; ranks <= 4; ++ranks) {
        int64_t const arrive_by_turns = ranks > 2 ? 2 : 1;
        cr_expect_eq(peak_of(RA_SCHEDULE_DIRECT, ranks, 1, RA_MEM_COMM_BUFFER), 2 * block);
        cr_expect_eq(peak_of(RA_SCHEDULE_DIRECT, ranks, 2, RA_MEM_COMM_BUFFER),
                     (1 + arrive_by_turns) * block, "%d ranks", ranks);
    }
}

Test(traffic, shared_keys_are_not_sent_and_buffers_not_taken)
{
    int64_t const seq = 300;
    ring_job job = ring_job_plain(4, seq, 4);
    ring_job_run(&job);
    int64_t const sending_bytes = job.peak_bytes;
    job.config.schedule = RA_SCHEDULE_AUTO;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(job.info.schedule, RA_SCHEDULE_SHARED, "auto shares on one host");
    cr_assert_eq(job.sent_bytes, 0);
    cr_assert_eq(job.info.step_count, 1);
    cr_assert_eq(job.live_pairs, seq * seq);
    cr_assert_lt(job.peak_bytes, sending_bytes);
    ring_job_free(&job);
}

/* Two hosts of several ranks: a host gets each row of the other once, however many ranks read it.
 */
Test(traffic, what_hosts_need_of_each_other_is_sent_once_per_host)
{
    enum { SEQ = 240, DIM = 4 };
    static const int uneven[] = {0, 0, 0, 1, 1};
    ring_job job = ring_job_plain(5, SEQ, DIM);
    job.config.schedule = RA_SCHEDULE_AUTO;
    job.config.backward = false;
    memcpy(job.hosts, uneven, sizeof(uneven));
    for (int buffers = 0; buffers <= 2; ++buffers)
        for (int backward = 0; backward <= 1; ++backward) {
            job.config.comm_buffers = buffers;
            job.config.backward = backward;
            ring_job_run(&job);
            cr_assert_eq(job.status, RA_OK);
            cr_assert_eq(job.info.schedule, RA_SCHEDULE_SHARED, "auto shares within hosts");
            int64_t const once = SEQ * 2 * DIM * (int64_t)sizeof(float);
            cr_assert_eq(job.sent_bytes, backward ? 3 * once : once, "%lld bytes",
                         (long long)job.sent_bytes);
            cr_assert_eq(job.live_pairs, SEQ * SEQ);
            cr_assert_eq(job.leaked_bytes, 0);
        }
    ring_job_free(&job);
}

/* A window of 8 rows: between hosts travel the 7 keys before the border, and their gradients. */
Test(traffic, hosts_send_only_rows_that_the_other_needs)
{
    enum { DIM = 4 };
    ring_job job = ring_job_plain(4, 400, DIM);
    job.config.schedule = RA_SCHEDULE_SHARED;
    job.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.hosts[2] = job.hosts[3] = 1;
    job.pattern.causal = true;
    job.pattern.window_left = 7;
    ring_job_run(&job);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(job.info.schedule, RA_SCHEDULE_SHARED);
    cr_assert_eq(job.sent_bytes, 3 * 7 * 2 * DIM * (int64_t)sizeof(float));
    ring_job_free(&job);
}

Test(traffic, hosts_of_one_rank_each_share_nothing)
{
    ring_job job = ring_job_plain(3, 60, 4);
    job.hosts[1] = 1;
    job.hosts[2] = 2;
    for (int schedule = RA_SCHEDULE_SHARED; schedule <= RA_SCHEDULE_AUTO; ++schedule) {
        job.config.schedule = (ra_schedule)schedule;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_assert_eq(job.info.schedule,
                     schedule == RA_SCHEDULE_AUTO ? RA_SCHEDULE_RING : RA_SCHEDULE_DIRECT);
        cr_assert_eq(job.sent_bytes, job.info.full_ring_bytes);
    }
    ring_job_free(&job);
}
