/*
 * Writing results from all ranks: every step is agreed on before the next one, so that all ranks
 * return the same, one of them says why, and a failure leaves no temporary file.
 */
#include "console.h"
#include "doomed_file.h"
#include "tensor_source.h"

#include "internal.h"

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

static void list_add(result_list *list, const char *name, ra_dtype dtype, const void *data,
                     int dims, const int64_t *shape)
{
    ra_tensor_info *info = &list->infos[list->count];
    *info = (ra_tensor_info){.dims = dims};
    snprintf(info->name, sizeof(info->name), "%s", name);
    snprintf(info->dtype, sizeof(info->dtype), "%s", ra_tensor_dtype_text(dtype));
    memcpy(info->shape, shape, (size_t)dims * sizeof(shape[0]));
    list->data[list->count++] = data;
}

/* What goes into the file; float32 first, so that nothing of 16 bits can misalign it. */
static void list_build(const ra_config *config, const ra_result_tensors *results, result_list *list)
{
    int64_t const q[] = {config->batch, config->seq, config->heads, config->head_dim};
    int64_t const k[] = {config->batch, config->seq, config->kv_heads, config->head_dim};
    int64_t const lse[] = {config->batch, config->heads, config->seq};
    list->count = 0;
    if (ra_config_linear(config) == RA_LINEAR_NONE)
        list_add(list, "lse", RA_F32, results->lse, 3, lse);
    list_add(list, "o", config->dtype, results->o, 4, q);
    if (!config->backward)
        return;
    list_add(list, "dq", config->dtype, results->dq, 4, q);
    list_add(list, "dk", config->dtype, results->dk, 4, k);
    list_add(list, "dv", config->dtype, results->dv, 4, k);
}

/* ---- this rank's rows ------------------------------------------------------------------------ */

/* One tensor of this rank on its way into the file. */
typedef struct putting {
    ra_tensor_writer *writer;
    ra_comm *comm; /* whose other ranks may wait */
    const ra_tensor_info *info;
    int64_t row_bytes;
    ra_shard_window from;
    int64_t at; /* bytes of it that have been put */
    ra_dtype dtype;
    ra_nonfinite *found; /* elements that are no numbers are added; NULL: they may be such */
} putting;

/* Put rows [row, row + count) of the sequence, which are the next ones of the shard. */
static ra_status put_run(putting *p, int64_t row, int64_t count)
{
    int64_t const most = ra_min_i64(ra_shard_window_most(&p->from), RA_TENSOR_PIECE_BYTES);
    int64_t const fit = ra_max_i64(1, most / p->row_bytes);
    for (int64_t done = 0, some; done < count; done += some) {
        some = ra_min_i64(fit, count - done);
        const void *bytes = NULL;
        ra_status status = ra_shard_window_read(&p->from, p->at, some * p->row_bytes, &bytes);
        if (status == RA_OK)
            status = ra_tensor_writer_put(p->writer, p->info, (row + done) * p->row_bytes, bytes,
                                          (size_t)(some * p->row_bytes));
        if (status != RA_OK)
            return status;
        if (p->found != NULL)
            ra_tensor_count_nonfinite(p->dtype, bytes,
                                      some * p->row_bytes / (int64_t)ra_dtype_bytes(p->dtype), 1,
                                      p->found);
        p->at += some * p->row_bytes;
        ra_comm_beat(p->comm);
    }
    return RA_OK;
}

/*
 * Put the rows of [outer, rows, row_bytes] data: `outer` counts batches, or for lse batches and
 * heads. Consecutive rows are one write, as far as they are at hand.
 */
static ra_status put_rows(putting *p, const ra_rowset *rows, int64_t outer, int64_t seq)
{
    for (int64_t o = 0; o < outer; ++o)
        for (int64_t piece = 0; piece < rows->piece_count; ++piece) {
            ra_range const range = rows->pieces[piece].rows;
            int64_t const count = range.stride == 1 ? range.count : 1;
            for (int64_t i = 0; i < range.count; i += count) {
                int64_t const row = o * seq + range.begin + range.stride * i;
                ra_status const status = put_run(p, row, count);
                if (status != RA_OK)
                    return status;
            }
        }
    return RA_OK;
}

static ra_status put_all(const ra_config *config, ra_comm *comm, ra_tensor_writer *writer,
                         const ra_rowset *rows, const ra_shard_memory *memory,
                         const result_list *list, ra_nonfinite *found)
{
    ra_status status = RA_OK;
    for (int i = 0; i < list->count && status == RA_OK; ++i) {
        const ra_tensor_info *info = &list->infos[i];
        bool const is_lse = info->dims == 3;
        int64_t const outer = is_lse ? config->batch * config->heads : config->batch;
        int64_t const row_bytes = info->bytes / (outer * config->seq);
        putting p = {.writer = writer,
                     .comm = comm,
                     .info = info,
                     .row_bytes = row_bytes,
                     .dtype = config->dtype,
                     .found = is_lse ? NULL : found}; /* -inf where a row has no key */
        p.from = ra_shard_window_open(memory, list->data[i], outer * rows->row_count * row_bytes,
                                      ra_max_i64(RA_SHARD_WINDOW_BYTES, row_bytes));
        status = put_rows(&p, rows, outer, config->seq);
        ra_shard_window_close(&p.from);
    }
    return status == RA_OK ? ra_tensor_writer_flush(writer, comm) : status;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static ra_status share_job_id(ra_comm *comm, char *job_id)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(job_id, JOB_ID_BYTES, "%ld-%lld%09ld", (long)getpid(), (long long)now.tv_sec,
             now.tv_nsec);
    return ra_comm_broadcast(comm, "name of the output", 0, job_id, JOB_ID_BYTES);
}

ra_status ra_result_write(const ra_config *config, ra_comm *comm, const ra_rowset *rows,
                          const ra_result_tensors *results, ra_nonfinite *found_out)
{
    static const char operation[] = "agreement on the output";
    bool const root = ra_comm_rank(comm) == 0;
    result_list list;
    char job_id[JOB_ID_BYTES] = "";
    ra_tensor_writer *writer = NULL;
    *found_out = (ra_nonfinite){0};
    ra_status own = RA_OK, status = share_job_id(comm, job_id);
    if (status != RA_OK)
        return status;
    list_build(config, results, &list);
    /* From here on any rank that is ended removes the file, whoever made it: all, before it is. */
    ra_tensor_writer_doom(config->output, job_id);
    status = ra_comm_barrier(comm, operation);
    if (status != RA_OK)
        goto end;
    ra_console_hold();
    if (root)
        own = ra_tensor_writer_open(config->output, job_id, true, list.infos, list.count, &writer);
    status = ra_console_agree(comm, operation, own);
    if (status != RA_OK)
        goto end;
    ra_console_hold();
    if (!root)
        own = ra_tensor_writer_open(config->output, job_id, false, list.infos, list.count, &writer);
    if (own == RA_OK)
        own = put_all(config, comm, writer, rows, results->memory, &list, found_out);
    status = ra_console_agree(comm, operation, own);
    if (status == RA_OK)
        status = ra_nonfinite_sum(comm, "counting the output", found_out);
    if (status == RA_OK) /* a rank that was held up until the others gave up must not publish */
        status = ra_comm_barrier(comm, "before the output gets its name");
    if (status != RA_OK)
        goto end;
    ra_console_hold();
    if (root)
        own = ra_tensor_writer_rename(writer);
    status = ra_console_agree(comm, operation, own);

end:
    ra_tensor_writer_destroy(writer);
    ra_doomed_file_clear();
    return status;
}
