/* What `plan` predicts for a variant, beside what a probe has found. */
#include "documents.h"
#include "tool_plan.h"
#include "tool_probe.h"

/* Plan a job like a try: one repetition, nothing verified in the job's own memory. */
static ra_status point_take(const ra_probe *probe, const ra_probe_point *point, ra_plan_point *plan)
{
    const ra_series *series = &probe->series;
    ra_status status = ra_series_configure_alone(series, &point->pick, &plan->config);
    if (status != RA_OK)
        return status;
    plan->config.repeat = 1;
    plan->config.verify = false;
    /* A length at which the configuration is whole: documents are repeated from there. */
    const ra_pattern_config *pattern = &plan->config.pattern;
    plan->config.seq = pattern->documents != NULL ? ra_documents_tokens(pattern) : point->tokens;
    status = ra_plan_point_init_here(plan);
    plan->request.context_bytes = point->report.memory_bytes[RA_MEM_CONTEXT]; /* measured */
    plan->request.memory_bytes = point->report.limit_bytes_sum / ra_comm_size(series->comm);
    return status;
}

void ra_probe_predict(ra_probe *probe, ra_probe_point *point)
{
    ra_plan_point plan = {.comm = probe->series.comm};
    ra_console_defer();
    ra_status status = point_take(probe, point, &plan);
    if (status == RA_OK)
        status = ra_plan_point_longest(&plan);
    if (status == RA_OK)
        status = ra_plan_point_peak(&plan, point->tokens, &point->predicted_peak_bytes);
    (void)ra_console_take(point->unpredicted);
    point->predicted = status == RA_OK;
    point->predicted_tokens = plan.longest_seq;
    ra_plan_point_fini(&plan);
}
