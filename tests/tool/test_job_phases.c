/* The phases that a job reports: those of one rank's last passes, on every rank. */
#include "comm/local_ranks.h"
#include "support/failing_calloc.h"
#include "tool/job_phases.h"

#include <criterion/criterion.h>
#include <stdlib.h>

/* A pool of 1,000 bytes; its ledger is returned. */
static ra_ledger *job_take_pool(ra_job *job)
{
    ra_pool_config config = {.mode = RA_POOL_OFF, .memory = ra_memory_host()};
    cr_assert_eq(ra_ledger_create(1000, &config.ledger), RA_OK);
    cr_assert_eq(ra_pool_create(&config, &job->pool), RA_OK);
    return config.ledger;
}

static void job_free(ra_job *job)
{
    ra_ledger *const ledger = ra_pool_ledger(job->pool);
    free(job->phases);
    ra_pool_destroy(job->pool);
    ra_ledger_destroy(ledger);
}

Test(job_phases, without_the_option_take_nothing)
{
    ra_options const options = {0};
    ra_job job = {.options = &options};
    callocs_left = 0;
    cr_assert_eq(ra_job_phases_begin(&job), RA_OK);
    ra_job_phases_restart(&job);
    cr_assert_eq(ra_job_phases_gather(&job, 0), RA_OK); /* no communicator is touched */
    callocs_left = -1;
    cr_assert_null(job.report.phases);
}

Test(job_phases, whose_memory_is_refused_fail_at_the_start)
{
    ra_options const options = {.phases = true};
    for (int n = 0; n <= 2; n++) {
        ra_job job = {.options = &options};
        (void)job_take_pool(&job);
        callocs_left = n;
        ra_status const status = ra_job_phases_begin(&job);
        callocs_left = -1;
        cr_expect_eq(status, n < 2 ? RA_ERR_NO_MEMORY : RA_OK);
        job_free(&job);
    }
}

/* Rank r marks r times, after a warm-up that counts no more. */
static int report_phases(ra_comm *comm, void *context)
{
    int const fullest = *(int *)context, rank = ra_comm_rank(comm);
    ra_options const options = {.phases = true};
    ra_job job = {.options = &options, .comm = comm};
    ra_ledger *const ledger = job_take_pool(&job);
    cr_assert_eq(ra_job_phases_begin(&job), RA_OK);
    ra_ledger_mark_now(ledger, "warm-up", -1, -1);
    ra_job_phases_restart(&job);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 100 + rank), RA_OK);
    for (int i = 0; i < rank; i++)
        ra_ledger_mark_now(ledger, "a step", 0, i);
    cr_assert_eq(ra_job_phases_gather(&job, fullest), RA_OK);
    cr_assert_eq(job.report.phase_count, fullest);
    cr_assert_eq(job.report.phases_left_out, 0);
    for (int i = 0; i < fullest; i++) {
        cr_assert_str_eq(job.report.phases[i].name, "a step");
        cr_assert_eq(job.report.phases[i].step, i);
        cr_assert_eq(job.report.phases[i].current_bytes[RA_MEM_QKV], 100 + fullest);
    }
    ra_ledger_release(ledger, RA_MEM_QKV, 100 + rank);
    job_free(&job);
    return 0;
}

Test(job_phases, of_the_fullest_rank_reach_every_rank)
{
    for (int fullest = 0; fullest < 3; fullest++)
        local_ranks_run(3, 30000, report_phases, &fullest);
}

Test(job_phases, beyond_the_bound_are_counted)
{
    ra_options const options = {.phases = true};
    ra_job job = {.options = &options};
    ra_ledger *const ledger = job_take_pool(&job);
    cr_assert_eq(ra_comm_create_self(1000, &job.comm), RA_OK);
    cr_assert_eq(ra_job_phases_begin(&job), RA_OK);
    for (int i = 0; i < 1000; i++)
        ra_ledger_mark_now(ledger, "a step", 0, i);
    cr_assert_eq(ra_job_phases_gather(&job, 0), RA_OK);
    cr_expect_eq(job.report.phase_count + job.report.phases_left_out, 1000);
    cr_expect_gt(job.report.phase_count, 0);
    cr_expect_gt(job.report.phases_left_out, 0);
    ra_comm_destroy(job.comm);
    job_free(&job);
}
