#include "job.h"

#include "console.h"
#include "internal.h"
#include "output_file.h"
#include "trace_write.h"

/* The table comes first: it is shown even if the JSON cannot be written. */
static ra_status report_write(ra_job *job)
{
    const ra_options *options = job->options;
    ra_status shown = RA_OK, written = RA_OK;
    if (ra_comm_rank(job->comm) != 0)
        return RA_OK;
    if (ra_options_shows_text(options)) {
        ra_report_print(&job->report);
        shown = ra_stdout_check(" the report");
    }
    if (options->json)
        written =
            ra_report_write_json(&job->report, options->source.pick.variant, options->json_path);
    return shown != RA_OK ? shown : written;
}

/* Most events that a rank keeps: 14 MiB of them. */
enum { TRACE_EVENTS_MAX = 1 << 18 };

/* Let the ring record its passes if --trace asks for it; *trace is the caller's. */
static ra_status trace_begin(ra_job *job, ra_trace **trace)
{
    if (job->options->trace_path == NULL)
        return RA_OK;
    int64_t const passes = (int64_t)job->repeat.warmup + job->repeat.most;
    int64_t const events = ra_min_i64(ra_ring_trace_bound(job->ring) * passes, TRACE_EVENTS_MAX);
    ra_console_hold();
    ra_status status =
        ra_console_agree(job->comm, "agreeing on the trace",
                         ra_trace_create(job->host_pool, events, -job->repeat.warmup, trace));
    if (status != RA_OK)
        return status;
    ra_ring_set_trace(job->ring, *trace);
    return ra_trace_align(*trace, job->comm);
}

static ra_status trace_end(ra_job *job, const ra_trace *trace)
{
    if (trace == NULL)
        return RA_OK;
    ra_progress_set(job->progress, "writing the trace", 0, 0);
    return ra_trace_write(trace, job->comm, job->options->trace_path);
}

static ra_status worse(ra_status first, ra_status next)
{
    return first == RA_OK || ra_status_is_of_ranks(next) ? next : first;
}

/* Collective. Trace, report and the pool's log: one that cannot be written costs no other. */
static ra_status outputs_write(ra_job *job, const ra_trace *trace)
{
    ra_status status = trace_end(job, trace);
    if (!ra_status_is_of_ranks(status)) {
        ra_progress_destroy(job->progress);
        job->progress = NULL;
        ra_console_hold();
        status =
            worse(status, ra_console_agree(job->comm, "agreeing on the report", report_write(job)));
    }
    if (!ra_status_is_of_ranks(status))
        status = worse(status, ra_job_write_pool_log(job));
    return status;
}

int ra_command_run(const ra_options *options, ra_comm *comm)
{
    ra_job job = {.options = options, .comm = comm};
    ra_trace *trace = NULL;
    ra_place place;
    ra_place_read(&place);
    ra_status status = ra_job_prepare(&job);
    if (status == RA_OK)
        status = ra_job_check_placement(&job, place);
    if (status == RA_OK)
        status = trace_begin(&job, &trace);
    if (status == RA_OK)
        status = ra_job_passes(&job);
    if (status == RA_OK)
        status = ra_job_results(&job);
    if (status == RA_OK)
        status = outputs_write(&job, trace);
    int code = ra_exit_code(status);
    if (status == RA_OK && !ra_report_passes(&job.report))
        code = RA_EXIT_VERIFY;
    if (ra_job_failed_alone(&job, status))
        ra_comm_abort(job.comm, code);
    ra_trace_destroy(trace);
    ra_job_fini(&job);
    return code;
}
