#include "job_source.h"

#include "console.h"
#include "internal.h"
#include "ranks.h"

#include <stdlib.h>

static const char operation[] = "sharing the configuration";

static ra_status read_file(ra_job_text *text)
{
    size_t bytes = 0;
    if (text->source->file == NULL)
        return RA_OK;
    ra_status const status =
        ra_config_read_file("configuration", text->source->file, &text->text, &bytes);
    text->bytes = (int64_t)bytes;
    return status;
}

/* Rank 0's text to everyone; its own status first, so that nobody waits for what never comes. */
static ra_status share(ra_comm *comm, ra_status of_first, ra_job_text *text)
{
    int64_t head[2] = {of_first, text->bytes};
    ra_status status = ra_comm_broadcast(comm, operation, 0, head, sizeof(head));
    if (status != RA_OK || head[0] != RA_OK)
        return status != RA_OK ? status : (ra_status)head[0];
    text->bytes = head[1];
    if (text->bytes == 0)
        return RA_OK;
    if (ra_comm_rank(comm) != 0)
        text->text = malloc((size_t)text->bytes);
    ra_console_hold();
    status = text->text != NULL ? RA_OK : ra_refuse_memory("the configuration");
    status = ra_console_agree(comm, operation, status);
    if (status == RA_OK)
        status = ra_comm_broadcast(comm, operation, 0, text->text, (size_t)text->bytes);
    return status;
}

ra_status ra_job_text_share(const ra_options *options, ra_comm *comm, ra_job_text *text_out)
{
    ra_job_text text = {.source = &options->source};
    ra_status status = RA_OK;
    if (ra_ranks_is_first(comm))
        status = read_file(&text);
    if (ra_ranks_count(comm) > 1)
        status = share(comm, status, &text);
    if (status == RA_OK)
        *text_out = text;
    else
        ra_job_text_fini(&text);
    return status;
}

static ra_status parse(const ra_job_text *text, const ra_config_pick *pick, ra_config *config_out)
{
    ra_config_source source = *text->source;
    source.pick = *pick;
    if (text->source->pick.variant != NULL)
        source.pick.variant = text->source->pick.variant;
    return ra_config_parse(source.file != NULL ? source.file : "the configuration", true,
                           text->text != NULL ? text->text : "", (size_t)text->bytes, &source,
                           config_out);
}

ra_status ra_job_text_parse(const ra_job_text *text, ra_comm *comm, const ra_config_pick *pick,
                            ra_config *config_out)
{
    ra_config config = {0};
    if (comm == NULL) /* whoever works for all ranks holds its lines back itself */
        return parse(text, pick, config_out);
    ra_console_hold();
    ra_status const status =
        ra_console_agree(comm, "agreeing on the configuration", parse(text, pick, &config));
    if (status == RA_OK)
        *config_out = config;
    else
        ra_config_fini(&config);
    return status;
}

void ra_job_text_fini(ra_job_text *text)
{
    free(text->text);
    *text = (ra_job_text){0};
}

ra_status ra_job_load_config(const ra_options *options, ra_comm *comm, ra_config *config_out)
{
    ra_job_text text = {0};
    ra_status status = ra_job_text_share(options, comm, &text);
    if (status == RA_OK)
        status = ra_job_text_parse(&text, comm, &options->source.pick, config_out);
    ra_job_text_fini(&text);
    return status;
}
