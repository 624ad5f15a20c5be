/* Layout auto: the fewest bytes really sent, whoever shares memory, among the balanced layouts. */
#include "comm/comm_internal.h"
#include "ring/ring_internal.h"
#include "ring/ring_job.h"
#include "ringattn/predict.h"
#include "support/captured_log.h"
#include "support/poison_pool.h"
#include "support/random_pattern.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

TestSuite(layout_auto);

static atomic_llong slices_visited;

typedef struct counting {
    ra_slice_visitor *visit;
    void *context;
} counting;

static ra_status count_slice(void *context, const ra_slice *slice)
{
    const counting *c = context;
    atomic_fetch_add(&slices_visited, 1);
    return c->visit(c->context, slice);
}

ra_status __real_ra_pattern_visit(const ra_pattern *pattern, int32_t layer, int64_t q_begin,
                                  int64_t q_count, ra_slice_visitor *visit, void *context);
ra_status __wrap_ra_pattern_visit(const ra_pattern *pattern, int32_t layer, int64_t q_begin,
                                  int64_t q_count, ra_slice_visitor *visit, void *context);
ra_status __wrap_ra_pattern_visit(const ra_pattern *pattern, int32_t layer, int64_t q_begin,
                                  int64_t q_count, ra_slice_visitor *visit, void *context)
{
    counting c = {visit, context};
    return __real_ra_pattern_visit(pattern, layer, q_begin, q_count, count_slice, &c);
}

/* How many windows the ranks of a host may have: with none, nothing is shared. */
static int windows_most = INT_MAX;
static int windows_made[RING_JOB_RANKS_MAX];

ra_status __real_ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out);
ra_status __wrap_ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out);
ra_status __wrap_ra_window_create(ra_comm *comm, size_t bytes, ra_window *window_out)
{
    return windows_made[ra_comm_rank(comm)]++ < windows_most
               ? __real_ra_window_create(comm, bytes, window_out)
               : RA_ERR_UNSUPPORTED;
}

/* Why the system gives no memory that ranks could share; 0: it does. */
static atomic_int memfd_error;

int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags)
{
    errno = atomic_load(&memfd_error);
    return errno == 0 ? __real_memfd_create(name, flags) : -1;
}

static const int hosts_of[][RING_JOB_RANKS_MAX] = {{0, 0, 0, 0, 0, 0},
                                                   {0, 0, 0, 1, 1, 1},
                                                   {0, 1, 0, 1, 0, 1},
                                                   {0, 0, 1, 1, 1, 2},
                                                   {0, 1, 2, 3, 4, 5}};
enum { RANKS = 6, SEQ = 6144, HOSTS = 5, PATTERNS = 6 };

static const char *pattern_of(int which, ra_pattern_config *config)
{
    static const int64_t documents[] = {2048, 1024, 2048, 1024};
    *config = ra_pattern_config_dense();
    switch (which) {
    case 0:
        return "dense";
    case 1:
        config->causal = true;
        return "causal";
    case 2:
        config->causal = true;
        config->window_left = 63;
        return "window";
    case 3:
        config->causal = true;
        config->documents = documents;
        config->document_count = 4;
        return "documents";
    case 4:
        config->window_left = config->window_right = 31;
        config->sinks = 16;
        return "window with sinks";
    default:
        config->blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
        config->block_size = 128;
        config->block_width = 2;
        config->block_globals = 1;
        return "global and local blocks";
    }
}

/* One forward pass; *imbalance_out: of the layout that was taken. */
static int64_t sent_by(ring_job *job, ra_layout_kind layout, double *imbalance_out,
                       ra_layout_kind *taken_out)
{
    job->config.layout = layout;
    ring_job_run(job);
    cr_assert_eq(job->status, RA_OK);
    cr_assert_eq(job->leaked_bytes, 0);
    *imbalance_out = job->info.imbalance;
    *taken_out = job->info.layout;
    return job->sent_bytes;
}

/* The layout that auto takes, which sends no more than any other that is balanced. */
static ra_layout_kind check(ring_job *job, const char *what)
{
    int64_t least = INT64_MAX;
    double imbalance, most_even = INFINITY;
    ra_layout_kind taken;
    for (int layout = 0; layout < RA_LAYOUT_AUTO; ++layout) {
        int64_t const sent = sent_by(job, (ra_layout_kind)layout, &imbalance, &taken);
        if (imbalance <= 1.05 && sent < least)
            least = sent;
        most_even = imbalance < most_even ? imbalance : most_even;
    }
    int64_t const sent = sent_by(job, RA_LAYOUT_AUTO, &imbalance, &taken);
    if (least == INT64_MAX)
        cr_assert_eq(imbalance, most_even, "%s: %g", what, imbalance);
    else
        cr_assert(imbalance <= 1.05 && sent == least, "%s: %s sends %lld, another %lld", what,
                  ra_layout_name(taken), (long long)sent, (long long)least);
    return taken;
}

Test(layout_auto, sends_least_between_hosts_and_between_ranks, .timeout = 1200)
{
    ring_job job = ring_job_plain(RANKS, SEQ, 1);
    int differing = 0;
    job.config.backward = false;
    job.mode = RA_RING_COMM_ONLY;
    for (int p = 0; p < PATTERNS; ++p) {
        const char *name = pattern_of(p, &job.pattern);
        ra_layout_kind taken[HOSTS];
        for (int h = 0; h < HOSTS; ++h) {
            memcpy(job.hosts, hosts_of[h], sizeof(job.hosts));
            job.config.schedule = RA_SCHEDULE_AUTO;
            taken[h] = check(&job, name);
            differing += taken[h] != taken[0];
        }
        job.config.schedule = RA_SCHEDULE_DIRECT;
        check(&job, name);
        job.config.schedule = RA_SCHEDULE_RING;
        check(&job, name);
    }
    cr_assert_gt(differing, 0, "hosts never made a difference");
    ring_job_free(&job);
}

Test(layout_auto, sends_least_for_random_patterns, .timeout = 1200)
{
    const char *seed = getenv("RA_TEST_SEED");
    test_rng rng = {seed != NULL ? strtoull(seed, NULL, 10) : 5};
    for (int n = 0; n < 60; ++n) {
        int64_t const seq = test_rng_between(&rng, 8, 256);
        test_pattern pattern;
        char text[512];
        test_pattern_draw(&rng, seq, &pattern);
        ring_job job = ring_job_plain((int)test_rng_between(&rng, 3, RANKS), seq, 1);
        job.config.backward = false;
        job.mode = RA_RING_COMM_ONLY;
        job.pattern = pattern.config;
        for (int r = 1; r < job.ranks; ++r)
            job.hosts[r] = job.hosts[r - 1] + (int)test_rng_between(&rng, 0, 1);
        test_pattern_print(&job.pattern, text, sizeof(text));
        for (int schedule = 0; schedule <= RA_SCHEDULE_AUTO; ++schedule) {
            job.config.schedule = (ra_schedule)schedule;
            check(&job, text);
        }
        ring_job_free(&job);
    }
}

/* A layout is made, and then given back; its imbalance. */
static double make_layout(ra_layout_kind kind, const ra_pattern_config *config, int64_t seq,
                          int ranks)
{
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pattern *pattern;
    ra_layout layout;
    poison_pool_begin(&ledger, &pool);
    cr_assert_eq(ra_pattern_create(config, seq, 1, pool, &pattern), RA_OK);
    cr_assert_eq(ring_job_layout(kind, pattern, ranks, pool, &layout), RA_OK);
    double const imbalance = layout.imbalance;
    ra_layout_fini(pool, &layout);
    ra_pattern_destroy(pattern);
    poison_pool_end(ledger, pool);
    return imbalance;
}

/* Rank 0 chooses while all others wait: it goes through the mask by its queries, not by pairs of
   ranks. All layouts are even here; striped ranks each have queries in every block. */
Test(layout_auto, is_chosen_in_few_passes_over_the_mask)
{
    enum { MANY = 16, BLOCK = 32 };
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_LOCAL_WINDOW;
    config.block_size = BLOCK;
    config.block_width = 1;
    atomic_store(&slices_visited, 0);
    cr_assert_leq(make_layout(RA_LAYOUT_AUTO, &config, SEQ, MANY), 1.05);
    long long const pass = 3 * SEQ / BLOCK, visited = atomic_load(&slices_visited);
    cr_assert_gt(visited, pass);
    cr_assert_leq(visited, 2 * pass * (MANY + 4), "%lld, a pass is %lld", visited, pass);
}

/* One chunk is a rank's whole share, and all others are alike: no exchange relieves that rank. That
   every pair of chunks is tried to find it out would take minutes. */
Test(layout_auto, chunks_are_not_compared_pair_by_pair, .timeout = 60)
{
    ra_pattern_config config = ra_pattern_config_dense();
    config.blocks_kind = RA_BLOCKS_GLOBAL_LOCAL;
    config.block_size = 128;
    config.block_width = 1;
    config.block_globals = 1;
    cr_assert_gt(make_layout(RA_LAYOUT_BALANCED, &config, (int64_t)1 << 26, 4), 1.5);
}

static int beats;

static void count_beat(ra_comm *comm)
{
    (void)comm;
    beats++;
}

/* Others may wait for it too: they hear of every rank that is looked at, in every layout. */
static ra_layout_kind predicted(const ring_job *job)
{
    static const ra_comm_ops counting_ops = {.name = "counting", .beat = count_beat};
    ra_comm comm;
    ra_comm_init(&comm, &counting_ops, 0, job->ranks, 1000);
    const ra_kernel_ops *ops = ra_kernel_cpu(RA_ISA_AUTO);
    ra_predict_request const request = {.ring = job->config,
                                        .pattern = &job->pattern,
                                        .ranks = job->ranks,
                                        .ranks_per_node = 1,
                                        .tile_rows =
                                            ops->tile_rows(job->config.dtype, job->config.dim),
                                        .memory_bytes = INT64_MAX,
                                        .comm = &comm};
    ra_prediction prediction;
    beats = 0;
    cr_assert_eq(ra_predict(&request, &prediction), RA_OK);
    cr_assert_gt(beats, RA_LAYOUT_AUTO * job->ranks, "%d", beats);
    ra_layout_kind const kind = prediction.layout;
    ra_prediction_fini(&prediction);
    return kind;
}

/*
 * Three ranks; blocks 0 to 5 lie 0 0 1 1 2 2 (contiguous) or 0 1 2 2 1 0 (zigzag). Queries of block
 * 0 see keys of block 2, those of 2 see 4, and those of 4 see 5. So contiguous ranks need two
 * blocks of others, each two hops away; zigzag ones three, each of the rank before.
 */
Test(layout_auto, counts_hops_with_schedule_ring)
{
    static const int32_t pairs[][2] = {{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 4},
                                       {5, 5}, {0, 2}, {2, 4}, {4, 5}};
    ring_job job = ring_job_plain(3, SEQ, 1);
    job.config.backward = false;
    job.mode = RA_RING_COMM_ONLY;
    job.pattern.blocks_kind = RA_BLOCKS_LIST;
    job.pattern.block_size = SEQ / 6;
    job.pattern.block_pairs = pairs;
    job.pattern.block_pair_count = 9;
    for (int schedule = 0; schedule < RA_SCHEDULE_SHARED; ++schedule) {
        job.config.schedule = (ra_schedule)schedule;
        ra_layout_kind const taken = check(&job, "blocks");
        cr_assert_eq(taken, schedule == RA_SCHEDULE_RING ? RA_LAYOUT_ZIGZAG : RA_LAYOUT_CONTIGUOUS,
                     "%s", ra_layout_name(taken));
        cr_assert_eq(predicted(&job), taken);
    }
    ring_job_free(&job);
}

/* Hosts that were to be teams cannot share: the layout is that of ranks that never could. */
Test(layout_auto, is_chosen_anew_where_memory_cannot_be_shared)
{
    ring_job job = ring_job_plain(RANKS, SEQ, 1);
    ra_layout_kind kind[3];
    job.config.layout = RA_LAYOUT_AUTO;
    pattern_of(3, &job.pattern);
    for (int i = 0; i < 3; ++i) {
        memcpy(job.hosts, hosts_of[i < 2 ? 0 : 4], sizeof(job.hosts));
        job.config.schedule = RA_SCHEDULE_AUTO;
        windows_most = i == 1 ? 0 : INT_MAX;
        ring_job_run(&job);
        cr_assert_eq(job.status, RA_OK);
        cr_assert_eq(job.leaked_bytes, 0);
        cr_assert_eq(job.info.schedule == RA_SCHEDULE_SHARED, i == 0);
        kind[i] = job.info.layout;
    }
    cr_assert_neq(kind[0], kind[2], "this pattern shows no difference");
    cr_assert_eq(kind[1], kind[2]);
    ring_job_free(&job);
}

/* Those for gradients and buffers, when keys have theirs; and those that a pass takes step by step.
   There is no other way then, and nobody below says why. */
Test(layout_auto, a_window_that_the_system_refuses_after_that_of_keys_is_an_error_in_one_line)
{
    captured_log said;
    ring_job job = ring_job_heads(RANKS, 600, 2, 2, 4, RA_F32);
    job.config.schedule = RA_SCHEDULE_SHARED;
    memcpy(job.hosts, hosts_of[1], sizeof(job.hosts));
    int most = 1;
    for (int i = 0; i < 4; ++i) {
        job.config.backward = i % 2 == 0;
        job.config.comm_buffers = i < 2 ? 2 : 0;
        job.status = RA_ERR_UNSUPPORTED;
        for (most = 1; job.status == RA_ERR_UNSUPPORTED && most < 100; ++most) {
            memset(windows_made, 0, sizeof(windows_made));
            windows_most = most;
            captured_log_begin(&said);
            ring_job_run(&job);
            cr_expect_eq(job.leaked_bytes, 0);
            cr_expect(job.same_status);
            cr_expect_eq(said.errors, job.status != RA_OK, "job %d, %d windows: %d lines", i, most,
                         said.errors);
        }
        cr_expect_eq(job.status, RA_OK, "job %d: %d", i, (int)job.status);
        cr_expect_gt(most, 2, "job %d makes no window but that of keys", i);
    }
    ring_job_free(&job);
}

/* One host or three, each of which says what it lacks; what becomes of it is said once. That no
   host has two ranks is nothing to speak of, unless sharing was asked. */
Test(layout_auto, memory_that_the_system_does_not_share_is_a_warning_and_keys_are_sent)
{
    static const struct {
        int hosts, error;
        ra_schedule asked;
        ra_status status;
        int warnings;
    } cases[] = {{0, EPERM, RA_SCHEDULE_AUTO, RA_OK, 2},
                 {0, ENOSYS, RA_SCHEDULE_SHARED, RA_OK, 2},
                 {3, EFBIG, RA_SCHEDULE_AUTO, RA_OK, 4},
                 {4, EPERM, RA_SCHEDULE_AUTO, RA_OK, 0},
                 {4, EPERM, RA_SCHEDULE_SHARED, RA_OK, 1},
                 {0, ENOMEM, RA_SCHEDULE_AUTO, RA_ERR_NO_MEMORY, 0}};
    captured_log said;
    ring_job job = ring_job_plain(RANKS, 600, 4);
    pattern_of(1, &job.pattern);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
        memcpy(job.hosts, hosts_of[cases[i].hosts], sizeof(job.hosts));
        job.config.schedule = cases[i].asked;
        captured_log_begin(&said);
        atomic_store(&memfd_error, cases[i].error);
        ring_job_run(&job);
        cr_expect_eq(job.status, cases[i].status, "case %zu: %d", i, (int)job.status);
        cr_expect_eq(job.leaked_bytes, 0);
        cr_expect_eq(said.warnings, cases[i].warnings, "case %zu: %d", i, said.warnings);
        cr_expect_eq(said.errors > 0, cases[i].status != RA_OK, "case %zu", i);
        cr_expect(job.status != RA_OK || job.info.schedule != RA_SCHEDULE_SHARED, "case %zu", i);
    }
    ring_job_free(&job);
}
