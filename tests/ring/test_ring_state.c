/* Which rows take memory for state that is carried from step to step. */
#include "ring/ring_job.h"

#include <criterion/criterion.h>
#include <string.h>

enum { RANKS = 4, SEQ = 4096, DIM = 8, SHARD = SEQ / RANKS };

/* Of one row and head: the sum of weighted values, top and sum. */
static const int64_t row_bytes = (DIM + 2) * (int64_t)sizeof(float);

static int64_t chunk_rows(void)
{
    return ra_kernel_cpu(RA_ISA_AUTO)->tile_rows(RA_F32, DIM);
}

/* Results are those of one rank; standing_out: [RANKS]. */
static void run(ra_schedule schedule, int64_t window, const ra_kernel_ops *kernel,
                ra_ledger_snapshot *standing_out)
{
    ring_job job = ring_job_waves(RANKS, SEQ, DIM, 1, schedule);
    ring_job one = ring_job_waves(1, SEQ, DIM, 1, RA_SCHEDULE_DIRECT);
    job.pattern.window_left = one.pattern.window_left = window;
    job.config.layout = one.config.layout = RA_LAYOUT_CONTIGUOUS;
    job.config.backward = one.config.backward = false;
    job.kernel = one.kernel = kernel;
    job.standing = standing_out;
    ring_job_run(&job);
    ring_job_run(&one);
    cr_assert_eq(job.status, RA_OK);
    cr_assert_eq(one.status, RA_OK);
    for (int64_t i = 0; i < SEQ * DIM; ++i)
        cr_assert_float_eq(((float *)job.out)[i], ((float *)one.out)[i], 1e-6, "element %lld",
                           (long long)i);
    ring_job_free(&job);
    ring_job_free(&one);
}

static void expect_rows(const ra_ledger_snapshot *standing, int rank, int64_t rows)
{
    cr_expect_eq(standing[rank].current_bytes[RA_MEM_ACCUMULATOR], rows * row_bytes,
                 "rank %d: %lld bytes of state, not those of %lld rows", rank,
                 (long long)standing[rank].current_bytes[RA_MEM_ACCUMULATOR], (long long)rows);
}

/* A rank's first queries see keys of the rank before, as far as the window goes. */
Test(ring_state, of_a_window_is_that_of_rows_at_the_edges_of_shards)
{
    static const ra_schedule schedules[] = {RA_SCHEDULE_DIRECT, RA_SCHEDULE_RING};
    for (int i = 0; i < 2; ++i) {
        ra_ledger_snapshot standing[RANKS];
        run(schedules[i], chunk_rows() / 2, NULL, standing);
        expect_rows(standing, 0, 0);
        for (int rank = 1; rank < RANKS; ++rank)
            expect_rows(standing, rank, chunk_rows());
        run(schedules[i], chunk_rows() + 1, NULL, standing);
        for (int rank = 1; rank < RANKS; ++rank)
            expect_rows(standing, rank, 2 * chunk_rows());
    }
}

Test(ring_state, without_a_window_is_that_of_all_rows)
{
    ra_ledger_snapshot standing[RANKS];
    run(RA_SCHEDULE_DIRECT, SEQ, NULL, standing);
    expect_rows(standing, 0, 0);
    for (int rank = 1; rank < RANKS; ++rank)
        expect_rows(standing, rank, SHARD);
}

/* Its softmax goes over whole matrices. */
Test(ring_state, of_materialised_scores_is_that_of_all_rows)
{
    ra_ledger_snapshot standing[RANKS];
    if (ra_kernel_standard() == NULL)
        cr_skip_test("OpenBLAS is not installed");
    run(RA_SCHEDULE_DIRECT, chunk_rows() / 2, ra_kernel_standard(), standing);
    for (int rank = 1; rank < RANKS; ++rank)
        expect_rows(standing, rank, SHARD);
}
