/* `ringattn bench`: every combination of a sweep, for every variant, against the machine's limits.
 */
#include "tool_bench.h"

#include "console.h"
#include "internal.h"
#include "ranks.h"

#include <stdio.h>

static bool is_first(const ra_bench *bench)
{
    return ra_comm_rank(bench->comm) == 0;
}

static ra_status pool_make(ra_bench *bench)
{
    ra_status const status = ra_ledger_create(INT64_MAX, &bench->ledger);
    if (status != RA_OK)
        return status;
    ra_pool_config const config = {
        .mode = RA_POOL_OFF, .memory = ra_memory_host(), .ledger = bench->ledger};
    return ra_pool_create(&config, &bench->pool);
}

/* What a bench cannot do with a configuration that is fine by itself. */
static ra_status base_check(const ra_bench *bench)
{
    int64_t const points = bench->base.sweep_points * ra_max_i64(bench->variant_count, 1);
    if (bench->base.output != NULL) {
        ra_log(RA_LOG_ERROR, "job.output: 'bench' writes no tensors; leave it to 'run'");
        return RA_ERR_CONFIG;
    }
    if (points > RA_SWEEP_POINTS_MAX) {
        ra_log(RA_LOG_ERROR, "sweep: %lld points in %d variants are %lld, more than %d",
               (long long)bench->base.sweep_points, bench->variant_count, (long long)points,
               RA_SWEEP_POINTS_MAX);
        return RA_ERR_CONFIG;
    }
    return RA_OK;
}

/* Everything that this rank can do by itself before the first point. */
static ra_status alone_prepare(ra_bench *bench)
{
    ra_job const job = {.options = bench->options, .comm = bench->comm, .config = bench->base};
    ra_status status = base_check(bench);
    if (status == RA_OK)
        status = ra_job_check_outputs(&job);
    if (status == RA_OK)
        status = pool_make(bench);
    if (status == RA_OK && is_first(bench))
        status = ra_bench_report_begin(bench);
    return status;
}

static ra_status prepare(ra_bench *bench)
{
    const ra_options *options = bench->options;
    ra_status status = ra_job_text_share(options, bench->comm, &bench->text);
    if (status == RA_OK)
        status = ra_job_text_parse(bench->text, bench->comm, NULL, 1, &bench->base);
    if (status == RA_OK)
        status = ra_job_connect(&bench->base, &bench->comm);
    if (status != RA_OK)
        return status;
    /* As with the configuration, rank 0's command line holds for all. */
    int64_t given[2] = {options->overlap, options->source.variant != NULL};
    status = ra_comm_broadcast(bench->comm, "sharing options", 0, given, sizeof(given));
    if (status != RA_OK)
        return status;
    bench->overlap = given[0] != 0;
    bench->variant_count = given[1] != 0 ? 0 : bench->base.variant_count;
    bench->begin_ns = ra_clock_ns();
    status = ra_job_share_cores(bench->comm, &bench->cores);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    status = ra_console_agree(bench->comm, "agreeing on the sweep", alone_prepare(bench));
    if (status == RA_OK)
        status = ra_progress_create(is_first(bench) && !options->quiet, &bench->progress);
    return status;
}

ra_status ra_bench_limits_refresh(ra_bench *bench, int threads, bool always)
{
    int64_t const fresh_ns = 2000000000;
    int64_t stale = always || threads != bench->limits_threads ||
                    ra_clock_ns() - bench->limits_end_ns > fresh_ns;
    ra_status status = ra_comm_reduce_i64(bench->comm, "limits", RA_MAX, &stale, 1);
    if (status != RA_OK || stale == 0)
        return status;
    bool const shown = always || threads != bench->limits_threads;
    ra_progress_set(bench->progress, "measuring the machine's limits", 0, 0);
    int64_t const begin_ns = ra_clock_ns();
    status = ra_limits_measure(bench->comm, threads, bench->pool, &bench->limits);
    if (status != RA_OK)
        return status;
    bench->limits.begin_ms = 1e-6 * (double)(begin_ns - bench->begin_ns);
    bench->limits_threads = threads;
    bench->limits_end_ns = ra_clock_ns();
    if (is_first(bench))
        ra_bench_report_limits(bench, shown);
    return RA_OK;
}

/* All variants of a combination before the next: they are compared, so they should be near. */
static ra_status points_run(ra_bench *bench)
{
    ra_status status = RA_OK;
    for (int64_t i = 1; i <= bench->base.sweep_points && status == RA_OK; i++) {
        bench->has_reference = false;
        if (bench->variant_count == 0)
            status = ra_bench_point_run(bench, bench->options->source.variant, i);
        for (int v = 0; v < bench->variant_count && status == RA_OK; v++)
            status = ra_bench_point_run(bench, bench->base.variants[v], i);
    }
    if (status == RA_OK && bench->limits_threads > 0)
        status = ra_bench_limits_refresh(bench, bench->limits_threads, true);
    return status;
}

static void fini(ra_bench *bench)
{
    ra_progress_destroy(bench->progress);
    ra_bench_report_fini(bench);
    ra_job_cache_destroy(&bench->cache);
    ra_pool_destroy(bench->pool);
    ra_ledger_destroy(bench->ledger);
    ra_config_fini(&bench->base);
    ra_job_text_destroy(bench->text);
    ra_ranks_leave(bench->comm);
}

int ra_command_bench(const ra_options *options, ra_comm *comm)
{
    ra_bench bench = {.options = options, .comm = comm};
    ra_place_read(&bench.placement.own);
    ra_status status = prepare(&bench);
    bool const entered = status == RA_OK;
    if (entered)
        status = points_run(&bench);
    /* Whoever fails between two points fails alone: the others would wait for it. */
    if (entered && status != RA_OK && ra_comm_size(bench.comm) > 1)
        ra_comm_abort(bench.comm, ra_exit_code(status));
    if (status == RA_OK) {
        ra_progress_destroy(bench.progress);
        bench.progress = NULL;
        ra_console_hold();
        ra_status const written = is_first(&bench) ? ra_bench_report_end(&bench) : RA_OK;
        status = ra_console_agree(bench.comm, "agreeing on the report", written);
    }
    int const code = status == RA_OK ? ra_job_outcomes_code(&bench.outcomes, is_first(&bench))
                                     : ra_exit_code(status);
    fini(&bench);
    return code;
}
