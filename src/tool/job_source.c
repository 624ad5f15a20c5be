#include "job_source.h"

#include "console.h"
#include "internal.h"

#include <stdlib.h>
#include <string.h>

/* Sent ahead of the data. */
typedef struct parcel_head {
    int64_t status; /* of reading the file; nothing follows a failure */
    int64_t bytes, text_bytes, set_count;
    int64_t backward, verify;
} parcel_head;
_Static_assert(sizeof(parcel_head) == 6 * sizeof(int64_t), "every byte is sent");

struct ra_job_text {
    parcel_head head;
    char *data; /* strings, each ended by a NUL; the text of the file comes last */
};

enum { PARCEL_STRINGS = 4 };

static void parcel_strings(const ra_config_source *source, const char *strings[PARCEL_STRINGS])
{
    strings[0] = source->file;
    strings[1] = source->variant;
    strings[2] = source->input;
    strings[3] = source->output;
}

static char *string_put(char *at, const char *string)
{
    /* No string of these may be empty, so an empty one stands for NULL. */
    size_t const bytes = string != NULL ? strlen(string) : 0;
    if (bytes > 0)
        memcpy(at, string, bytes);
    at[bytes] = '\0';
    return at + bytes + 1;
}

static ra_status parcel_pack(const ra_config_source *source, ra_job_text *out)
{
    const char *strings[PARCEL_STRINGS];
    char *text = NULL;
    size_t text_bytes = 0;
    ra_status status = RA_OK;
    if (source->file != NULL)
        status = ra_config_read_file("configuration", source->file, &text, &text_bytes);
    if (status != RA_OK)
        return status;
    parcel_strings(source, strings);
    size_t bytes = text_bytes + 1;
    for (int i = 0; i < PARCEL_STRINGS; i++)
        bytes += (strings[i] != NULL ? strlen(strings[i]) : 0) + 1;
    for (int i = 0; i < source->set_count; i++)
        bytes += strlen(source->sets[i]) + 1;
    char *data = malloc(bytes);
    if (data == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory");
        free(text);
        return RA_ERR_NO_MEMORY;
    }
    char *at = data;
    for (int i = 0; i < PARCEL_STRINGS; i++)
        at = string_put(at, strings[i]);
    for (int i = 0; i < source->set_count; i++)
        at = string_put(at, source->sets[i]);
    if (text_bytes > 0)
        memcpy(at, text, text_bytes);
    at[text_bytes] = '\0';
    free(text);
    *out = (ra_job_text){.head = {.bytes = (int64_t)bytes,
                                  .text_bytes = (int64_t)text_bytes,
                                  .set_count = source->set_count,
                                  .backward = source->backward,
                                  .verify = source->verify},
                         .data = data};
    return RA_OK;
}

static const char *string_get(const char **at)
{
    const char *string = *at;
    *at += strlen(string) + 1;
    return string[0] != '\0' ? string : NULL;
}

static ra_status parcel_parse(const ra_job_text *parcel, const char *variant, int64_t point,
                              const ra_feature_set *features, ra_config *config_out)
{
    const parcel_head *head = &parcel->head;
    const char *at = parcel->data;
    RA_ASSERT(at != NULL);
    const char **sets = calloc((size_t)head->set_count + 1, sizeof(*sets));
    if (sets == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory");
        return RA_ERR_NO_MEMORY;
    }
    ra_config_source source = {.set_count = (int)head->set_count,
                               .sets = sets,
                               .backward = head->backward != 0,
                               .verify = head->verify != 0,
                               .sweep_point = point,
                               .features = features};
    source.file = string_get(&at);
    source.variant = string_get(&at);
    source.input = string_get(&at);
    source.output = string_get(&at);
    if (variant != NULL)
        source.variant = variant;
    for (int i = 0; i < source.set_count; i++)
        sets[i] = string_get(&at);
    ra_status const status =
        ra_config_parse(source.file != NULL ? source.file : "the configuration", at,
                        (size_t)head->text_bytes, &source, config_out);
    free(sets);
    return status;
}

/* Rank 0's parcel to everyone; its own status first, so that nobody waits for what never comes. */
static ra_status parcel_share(ra_comm *comm, ra_job_text *parcel)
{
    parcel_head *head = &parcel->head;
    ra_status status = ra_comm_broadcast(comm, "sharing the configuration", 0, head, sizeof(*head));
    if (status != RA_OK || head->status != RA_OK)
        return status != RA_OK ? status : (ra_status)head->status;
    if (ra_comm_rank(comm) != 0)
        parcel->data = malloc((size_t)head->bytes);
    ra_console_hold();
    status = parcel->data != NULL ? RA_OK : RA_ERR_NO_MEMORY;
    if (status != RA_OK)
        ra_log(RA_LOG_ERROR, "out of memory");
    status = ra_console_agree(comm, "sharing the configuration", status);
    if (status == RA_OK)
        status = ra_comm_broadcast(comm, "sharing the configuration", 0, parcel->data,
                                   (size_t)head->bytes);
    return status;
}

ra_status ra_job_text_share(const ra_options *options, ra_comm *comm, ra_job_text **text_out)
{
    ra_job_text *text = calloc(1, sizeof(*text));
    ra_status status = RA_OK;
    ra_console_hold();
    if (text == NULL)
        ra_log(RA_LOG_ERROR, "out of memory");
    status = ra_console_agree(comm, "sharing the configuration",
                              text != NULL ? RA_OK : RA_ERR_NO_MEMORY);
    if (status != RA_OK)
        goto err_destroy;
    RA_ASSERT(text != NULL);
    if (comm == NULL || ra_comm_rank(comm) == 0) {
        status = parcel_pack(&options->source, text);
        text->head.status = status;
    }
    if (comm != NULL && ra_comm_size(comm) > 1)
        status = parcel_share(comm, text);
    if (status != RA_OK)
        goto err_destroy;
    *text_out = text;
    return RA_OK;

err_destroy:
    ra_job_text_destroy(text);
    return status;
}

ra_status ra_job_text_parse(const ra_job_text *text, ra_comm *comm, const char *variant,
                            int64_t point, const ra_feature_set *features, ra_config *config_out)
{
    ra_config config = {0};
    ra_console_hold();
    ra_status const status =
        ra_console_agree(comm, "agreeing on the configuration",
                         parcel_parse(text, variant, point, features, &config));
    if (status == RA_OK)
        *config_out = config;
    else
        ra_config_fini(&config);
    return status;
}

void ra_job_text_destroy(ra_job_text *text)
{
    if (text == NULL)
        return;
    free(text->data);
    free(text);
}

ra_status ra_job_load_config(const ra_options *options, ra_comm *comm, ra_config *config_out)
{
    ra_job_text *text = NULL;
    ra_status status = ra_job_text_share(options, comm, &text);
    if (status == RA_OK)
        status = ra_job_text_parse(text, comm, NULL, 0, NULL, config_out);
    ra_job_text_destroy(text);
    return status;
}
