/*
 * Writing results from all ranks: every step is agreed on before the next one, so that all ranks
 * return the same, one of them says why, and a failure leaves no file.
 */
#include "doomed_file.h"
#include "tensor_source.h"

#include "internal.h"
#include "safetensors_header.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RESULT_MAX = 5, JOB_ID_BYTES = 40 };

typedef struct result_list {
    int count;
    ra_tensor_info infos[RESULT_MAX];
    const void *data[RESULT_MAX];
} result_list;

ra_status ra_result_agree_presence(ra_comm *comm, const ra_result_tensors *results,
                                   ra_result_presence *presence_out)
{
    *presence_out = (ra_result_presence){.o = results->o != NULL,
                                         .lse = results->lse != NULL,
                                         .dq = results->dq != NULL,
                                         .dk = results->dk != NULL,
                                         .dv = results->dv != NULL};
    return ra_comm_reduce_i64(comm, "agreement on the results", RA_MAX, &presence_out->o,
                              (int)(sizeof(*presence_out) / sizeof(int64_t)));
}

static void list_add(result_list *list, int64_t present, const char *name, ra_dtype dtype,
                     const void *data, int dims, const int64_t *shape)
{
    if (!present)
        return;
    ra_tensor_info *info = &list->infos[list->count];
    *info = (ra_tensor_info){.dims = dims};
    snprintf(info->name, sizeof(info->name), "%s", name);
    snprintf(info->dtype, sizeof(info->dtype), "%s", ra_tensor_dtype_text(dtype));
    memcpy(info->shape, shape, (size_t)dims * sizeof(shape[0]));
    list->data[list->count++] = data;
}

/* What goes into the file; float32 first, so that nothing of 16 bits can misalign it. */
static void list_build(const ra_config *config, const ra_result_presence *presence,
                       const ra_result_tensors *results, result_list *list)
{
    int64_t const q[] = {config->batch, config->seq, config->heads, config->head_dim};
    int64_t const k[] = {config->batch, config->seq, config->kv_heads, config->head_dim};
    int64_t const lse[] = {config->batch, config->heads, config->seq};
    list->count = 0;
    list_add(list, presence->lse, "lse", RA_F32, results->lse, 3, lse);
    list_add(list, presence->o, "o", config->dtype, results->o, 4, q);
    list_add(list, presence->dq, "dq", config->dtype, results->dq, 4, q);
    list_add(list, presence->dk, "dk", config->dtype, results->dk, 4, k);
    list_add(list, presence->dv, "dv", config->dtype, results->dv, 4, k);
}

/* ---- this rank's rows ------------------------------------------------------------------------ */

/*
 * Put the rows of [outer, rows, row_bytes] data: `outer` counts batches, or for lse batches and
 * heads. Consecutive rows are one write.
 */
static ra_status put_rows(ra_tensor_writer *writer, const ra_tensor_info *info,
                          const ra_rowset *rows, int64_t outer, int64_t seq, const void *data,
                          ra_file_error *error)
{
    int64_t const row_bytes = info->bytes / (outer * seq);
    const char *from = data;
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t piece = 0; piece < rows->piece_count; ++piece) {
            ra_range const range = rows->pieces[piece].rows;
            int64_t const count = range.stride == 1 ? range.count : 1;
            for (int64_t i = 0; i < range.count; i += count) {
                int64_t const row = range.begin + range.stride * i;
                ra_status const status =
                    ra_tensor_writer_put(writer, info, (o * seq + row) * row_bytes, from,
                                         (size_t)(count * row_bytes), error);
                if (status != RA_OK)
                    return status;
                from += count * row_bytes;
            }
        }
    return RA_OK;
}

static ra_status put_all(const ra_config *config, ra_tensor_writer *writer, const ra_rowset *rows,
                         const result_list *list, ra_file_error *error)
{
    ra_status status = RA_OK;
    for (int i = 0; i < list->count && status == RA_OK; ++i) {
        const ra_tensor_info *info = &list->infos[i];
        int64_t const outer = info->dims == 3 ? config->batch * config->heads : config->batch;
        status = put_rows(writer, info, rows, outer, config->seq, list->data[i], error);
    }
    return status == RA_OK ? ra_tensor_writer_flush(writer, error) : status;
}

/* ---- agreement ------------------------------------------------------------------------------- */

/*
 * Every rank's own status becomes that of the first rank that failed, which logs its line. A
 * communicator that fails has said so itself.
 */
static ra_status agree(ra_comm *comm, ra_status own, const ra_file_error *error)
{
    int64_t const none = ra_comm_size(comm);
    int64_t first = own == RA_OK ? none : ra_comm_rank(comm);
    ra_status status = ra_comm_reduce_i64(comm, "agreement on the output", RA_MIN, &first, 1);
    if (status != RA_OK || first == none)
        return status;
    if (first == ra_comm_rank(comm))
        ra_log(RA_LOG_ERROR, "%s", error->line);
    int32_t code = own;
    status = ra_comm_broadcast(comm, "agreement on the output", (int)first, &code, sizeof(code));
    return status == RA_OK ? (ra_status)code : status;
}

static ra_status share_job_id(ra_comm *comm, char *job_id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(job_id, JOB_ID_BYTES, "%ld-%lld%09ld", (long)getpid(), (long long)now.tv_sec,
             now.tv_nsec);
    return ra_comm_broadcast(comm, "name of the output", 0, job_id, JOB_ID_BYTES);
}

ra_status ra_result_write(const ra_config *config, ra_comm *comm, const ra_rowset *rows,
                          const ra_result_tensors *results)
{
    bool const root = ra_comm_rank(comm) == 0;
    result_list list;
    ra_result_presence presence;
    char job_id[JOB_ID_BYTES] = "";
    ra_tensor_writer *writer = NULL;
    ra_file_error error;
    ra_status own = RA_OK, status = ra_result_agree_presence(comm, results, &presence);
    if (status == RA_OK)
        status = share_job_id(comm, job_id);
    if (status != RA_OK)
        return status;
    list_build(config, &presence, results, &list);
    /* From here on any rank that is ended removes the file, whoever made it. */
    char temp_path[PATH_MAX];
    if (snprintf(temp_path, sizeof(temp_path), "%s.tmp-%s", config->output, job_id) <
        (int)sizeof(temp_path))
        ra_doomed_file_set(temp_path);
    if (root)
        own = ra_tensor_writer_open(config->output, job_id, true, list.infos, list.count, &writer,
                                    &error);
    status = agree(comm, own, &error);
    if (status != RA_OK)
        goto end;
    if (!root)
        own = ra_tensor_writer_open(config->output, job_id, false, list.infos, list.count, &writer,
                                    &error);
    if (own == RA_OK)
        own = put_all(config, writer, rows, &list, &error);
    status = agree(comm, own, &error);
    if (status == RA_OK) /* a rank that was held up until the others gave up must not publish */
        status = ra_comm_barrier(comm, "before the output gets its name");
    if (status != RA_OK)
        goto end;
    if (root)
        own = ra_tensor_writer_rename(writer, &error);
    status = agree(comm, own, &error);

end:
    ra_tensor_writer_destroy(writer);
    ra_doomed_file_clear();
    return status;
}
