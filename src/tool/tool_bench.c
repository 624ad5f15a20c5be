/* `ringattn bench`: every combination of a sweep, for every variant, against the machine's limits.
 */
#include "tool_bench.h"

#include "internal.h"
#include "job_memory.h"

static ra_status prepare(void *command)
{
    ra_bench *bench = command;
    bench->begin_ns = ra_clock_ns();
    const ra_config *base = &bench->series.base;
    const char *named = bench->series.options->source.pick.variant;
    bench->variant_count = named != NULL ? 0 : base->variant_count;
    ra_status status = ra_config_count_jobs(base, named, &bench->job_count);
    if (status == RA_OK)
        status = ra_host_pool_make(1, &bench->pool); /* limits.c shares it out */
    if (status == RA_OK && ra_series_is_first(&bench->series))
        status = ra_bench_report_begin(bench);
    return status;
}

ra_status ra_bench_limits_refresh(ra_bench *bench, int threads, bool always)
{
    int64_t const fresh_ns = 2000000000;
    int64_t stale = always || threads != bench->limits_threads ||
                    ra_clock_ns() - bench->limits_end_ns > fresh_ns;
    ra_status status = ra_comm_reduce_i64(bench->series.comm, "limits", RA_MAX, &stale, 1);
    if (status != RA_OK || stale == 0)
        return status;
    bool const shown = always || threads != bench->limits_threads;
    ra_progress_set(bench->series.progress, "measuring the machine's limits", 0, 0);
    int64_t const begin_ns = ra_clock_ns();
    status = ra_limits_measure(bench->series.comm, threads, bench->pool, &bench->limits);
    if (status != RA_OK)
        return status;
    bench->limits.begin_ms = 1e-6 * (double)(begin_ns - bench->begin_ns);
    bench->limits_threads = threads;
    bench->limits_end_ns = ra_clock_ns();
    if (ra_series_is_first(&bench->series))
        ra_bench_report_limits(bench, shown);
    return RA_OK;
}

static ra_status run(void *command)
{
    ra_bench *bench = command;
    const ra_config *base = &bench->series.base;
    const char *named = bench->series.options->source.pick.variant;
    ra_status status = RA_OK;
    for (int64_t i = 0; i < bench->job_count && status == RA_OK; i++) {
        ra_config_pick const pick = ra_config_pick_job(base, named, i);
        status = ra_bench_point_run(bench, &pick);
    }
    if (status == RA_OK && bench->limits_threads > 0)
        status = ra_bench_limits_refresh(bench, bench->limits_threads, true);
    return status;
}

static void fini(void *command)
{
    ra_bench *bench = command;
    ra_bench_report_fini(bench);
    ra_job_cache_destroy(&bench->cache);
    ra_pool_destroy_with_ledger(bench->pool);
}

int ra_command_bench(const ra_options *options, ra_comm *comm)
{
    static const ra_series_ops ops = {.name = "bench",
                                      .agreeing = "agreeing on the sweep",
                                      .jobs = "points of a bench",
                                      .writes_pool_log = true,
                                      .base_point = 1,
                                      .prepare = prepare,
                                      .run = run,
                                      .report = ra_bench_report_end,
                                      .to_json = ra_bench_to_json,
                                      .fini = fini};
    ra_bench bench = {.series = {.options = options, .comm = comm}};
    return ra_series_command(&bench.series, &ops, &bench);
}
