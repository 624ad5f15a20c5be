/* Reading a rank's rows: from the file in as few reads as they allow, or drawn at random. */
#include "tensor_source.h"

#include "internal.h"
#include "random.h"

#include <string.h>

/* Rows of this length are worth a read each; shorter ones are read with the gaps between. */
enum { LONE_ROW_MIN_BYTES = 16 << 10 };

/* One tensor of the source, rows of all heads together. */
typedef struct reader {
    const ra_tensor_source *source;
    const ra_tensor_info *info;
    size_t row_bytes;
    int64_t seq;
    ra_block staging; /* taken with the first strided piece */
} reader;

/* ---- files ----------------------------------------------------------------------------------- */

static ra_status read_rows(const reader *from, int64_t batch, int64_t row, int64_t count, void *to)
{
    int64_t const bytes = (int64_t)from->row_bytes;
    return ra_tensor_read(from->source->file, from->info, (batch * from->seq + row) * bytes, to,
                          (size_t)(count * bytes));
}

int64_t ra_tensor_rows_at_once(int64_t row_bytes, int64_t stride)
{
    return row_bytes < LONE_ROW_MIN_BYTES ? (RA_TENSOR_STAGING_BYTES / row_bytes - 1) / stride + 1
                                          : 1;
}

/* Rows with gaps: as many as fit into the staging block at a time, then picked out of it. */
static ra_status read_strided(reader *from, int64_t batch, ra_range rows, char *to)
{
    int64_t const fit = ra_tensor_rows_at_once((int64_t)from->row_bytes, rows.stride);
    bool const lone = fit < 2;
    if (!lone && from->staging.data == NULL) {
        ra_status const status = ra_pool_alloc(from->source->pool, RA_MEM_IO,
                                               RA_TENSOR_STAGING_BYTES, NULL, &from->staging);
        if (status != RA_OK)
            return status;
    }
    for (int64_t done = 0; done < rows.count;) {
        int64_t const count = lone ? 1 : ra_min_i64(fit, rows.count - done);
        int64_t const row = rows.begin + rows.stride * done;
        char *into = lone ? to : from->staging.data;
        ra_status const status = read_rows(from, batch, row, rows.stride * (count - 1) + 1, into);
        if (status != RA_OK)
            return status;
        for (int64_t i = 0; i < count && !lone; ++i)
            memcpy(to + (size_t)i * from->row_bytes,
                   into + (size_t)(i * rows.stride) * from->row_bytes, from->row_bytes);
        to += (size_t)count * from->row_bytes;
        done += count;
        ra_comm_beat(from->source->comm);
    }
    return RA_OK;
}

/* Local numbers [first, end) of a row set. */
typedef struct part {
    const ra_rowset *rows;
    int64_t first, end;
} part;

/* The rows of a piece that are in the part; false: none, the piece comes after. */
static bool piece_part(const part *p, int64_t piece, ra_range *range_out)
{
    if (piece >= p->rows->piece_count || p->rows->pieces[piece].first >= p->end)
        return false;
    *range_out = ra_row_piece_cut(&p->rows->pieces[piece], p->first, p->end).rows;
    return true;
}

/* Rows that follow one another in file and shard are one read. Returns the next piece. */
static int64_t coalesced_pieces(const part *p, int64_t piece, ra_range *range_out)
{
    ra_range range, next;
    bool const there = piece_part(p, piece++, &range);
    RA_ASSERT(there);
    if (range.count == 1)
        range.stride = 1;
    while (range.stride == 1 && piece_part(p, piece, &next)) {
        if ((next.stride != 1 && next.count != 1) || next.begin != range.begin + range.count)
            break;
        range.count += next.count;
        ++piece;
    }
    *range_out = range;
    return piece;
}

static ra_status read_from_file(const ra_tensor_source *source, const ra_config *config,
                                ra_tensor_name name, const part *p, int64_t batch, char *to)
{
    reader from = {.source = source, .info = source->infos[name], .seq = config->seq};
    RA_ASSERT(from.info != NULL);
    from.row_bytes = (size_t)ra_tensor_row_bytes(config, name);
    ra_range range;
    ra_status status = RA_OK;
    for (int64_t piece = ra_rowset_piece_of(p->rows, p->first);
         status == RA_OK && piece_part(p, piece, &range);) {
        piece = coalesced_pieces(p, piece, &range);
        if (range.stride == 1)
            status = read_rows(&from, batch, range.begin, range.count, to);
        else
            status = read_strided(&from, batch, range, to);
        to += (size_t)range.count * from.row_bytes;
    }
    ra_pool_free(source->pool, NULL, &from.staging);
    return status;
}

/* ---- random ---------------------------------------------------------------------------------- */

/* Nearest even; values drawn at random are finite. */
static void round_bf16(const float *values, int32_t count, uint16_t *to)
{
    for (int32_t i = 0; i < count; ++i) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof(bits));
        to[i] = (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }
}

static void draw_row(uint64_t stream, const ra_config *config, int64_t row, int32_t head, void *to)
{
    float values[RA_HEAD_DIM_MAX];
    int32_t const dim = config->head_dim;
    ra_random_row(stream, row, head, dim, values);
    if (config->dtype == RA_F32)
        memcpy(to, values, (size_t)dim * sizeof(float));
    else if (config->dtype == RA_BF16)
        round_bf16(values, dim, to);
    else
        for (int32_t d = 0; d < dim; ++d)
            ra_dtype_store(config->dtype, to, d, values[d]);
}

static void draw(const ra_config *config, ra_tensor_name name, const part *p, int64_t batch,
                 char *to)
{
    size_t const head_bytes = (size_t)config->head_dim * ra_dtype_bytes(config->dtype);
    int32_t const heads = ra_tensor_heads(config, name);
    uint64_t const stream = ra_random_stream(config->seed, name, batch);
    ra_range range;
    for (int64_t piece = ra_rowset_piece_of(p->rows, p->first); piece_part(p, piece, &range);
         ++piece)
        for (int64_t i = 0; i < range.count; ++i)
            for (int32_t head = 0; head < heads; ++head) {
                draw_row(stream, config, range.begin + range.stride * i, head, to);
                to += head_bytes;
            }
}

/* Each thread its share of the rows: what a value is depends on its place alone. */
static void draw_by_threads(const ra_tensor_source *source, const ra_config *config,
                            ra_tensor_name name, const part *p, int64_t batch, char *to)
{
    int64_t const count = p->end - p->first, shares = source->threads;
    int64_t const row_bytes = ra_tensor_row_bytes(config, name);
    RA_OMP(omp parallel for schedule(static) num_threads(source->threads))
    for (int64_t share = 0; share < shares; ++share) {
        int64_t const begin = count * share / shares, end = count * (share + 1) / shares;
        part const own = {p->rows, p->first + begin, p->first + end};
        draw(config, name, &own, batch, to + begin * row_bytes);
    }
}

ra_status ra_tensor_source_read_part(const ra_tensor_source *source, const ra_config *config,
                                     ra_tensor_name name, const ra_rowset *rows, int64_t batch,
                                     int64_t first, int64_t count, void *data)
{
    part const p = {rows, first, first + count};
    RA_ASSERT(first >= 0 && count >= 0 && p.end <= rows->row_count);
    if (count == 0)
        return RA_OK;
    if (source->file != NULL)
        return read_from_file(source, config, name, &p, batch, data);
    draw_by_threads(source, config, name, &p, batch, data);
    return RA_OK;
}

/* ---- one head, in float64 -------------------------------------------------------------------- */

static void widen(ra_dtype dtype, const void *from, int64_t first, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; ++i)
        to[i] = (double)ra_dtype_load(dtype, from, first + i);
}

static ra_status row_from_file(const ra_tensor_source *source, const ra_config *config,
                               ra_tensor_name name, int64_t batch, int32_t head, int64_t row,
                               double *values)
{
    float buffer[RA_HEAD_DIM_MAX]; /* room for a row of any dtype */
    int64_t const at = (batch * config->seq + row) * ra_tensor_heads(config, name) + head;
    int64_t const bytes = config->head_dim * (int64_t)ra_dtype_bytes(config->dtype);
    ra_status const status =
        ra_tensor_read(source->file, source->infos[name], at * bytes, buffer, (size_t)bytes);
    if (status == RA_OK)
        widen(config->dtype, buffer, 0, config->head_dim, values);
    return status;
}

/* Read all heads of the rows, if there is memory for it, and pick one out. */
static ra_status rows_from_file(const ra_tensor_source *source, const ra_config *config,
                                ra_tensor_name name, int64_t batch, int32_t head, int64_t row_begin,
                                int64_t row_count, ra_tensor_staging staging, double *values)
{
    int64_t const dim = config->head_dim, row_elements = dim * ra_tensor_heads(config, name);
    int64_t const row_bytes = ra_tensor_row_bytes(config, name);
    int64_t const fit = staging.bytes / row_bytes;
    reader const from = {.source = source,
                         .info = source->infos[name],
                         .seq = config->seq,
                         .row_bytes = (size_t)row_bytes};
    ra_status status = RA_OK;
    for (int64_t done = 0, count; done < row_count && status == RA_OK; done += count) {
        double *const to = values + done * dim;
        count = ra_min_i64(ra_max_i64(fit, 1), row_count - done);
        if (count == 1) {
            status = row_from_file(source, config, name, batch, head, row_begin + done, to);
            continue;
        }
        status = read_rows(&from, batch, row_begin + done, count, staging.data);
        for (int64_t i = 0; i < count && status == RA_OK; ++i)
            widen(config->dtype, staging.data, i * row_elements + head * dim, dim, to + i * dim);
    }
    return status;
}

ra_status ra_tensor_source_rows(const ra_tensor_source *source, const ra_config *config,
                                ra_tensor_name name, int64_t batch, int32_t head, int64_t row_begin,
                                int64_t row_count, ra_tensor_staging staging, double *values)
{
    ra_comm_beat(source->comm); /* who verifies its rows for long is at work */
    if (source->file != NULL)
        return rows_from_file(source, config, name, batch, head, row_begin, row_count, staging,
                              values);
    uint64_t const stream = ra_random_stream(config->seed, name, batch);
    float row[RA_HEAD_DIM_MAX]; /* room for a row of any dtype */
    for (int64_t i = 0; i < row_count; ++i) {
        draw_row(stream, config, row_begin + i, head, row);
        widen(config->dtype, row, 0, config->head_dim, values + i * config->head_dim);
    }
    return RA_OK;
}

/* ---- NaN and Inf ----------------------------------------------------------------------------- */

ra_status ra_nonfinite_sum(ra_comm *comm, const char *operation, ra_nonfinite *found)
{
    int64_t counts[2] = {found->nan_count, found->inf_count};
    ra_status const status = ra_comm_reduce_i64(comm, operation, RA_SUM, counts, 2);
    if (status == RA_OK)
        *found = (ra_nonfinite){counts[0], counts[1]};
    return status;
}

void ra_tensor_count_nonfinite(ra_dtype dtype, const void *data, int64_t count, int threads,
                               ra_nonfinite *found)
{
    (void)threads; /* of OpenMP, which a build may lack */
    int64_t nans = 0, infs = 0;
    if (dtype == RA_F32) {
        const uint32_t *bits = data;
        RA_OMP(omp parallel for num_threads(threads) reduction(+ : nans, infs))
        for (int64_t i = 0; i < count; ++i) {
            uint32_t const size = bits[i] & 0x7fffffffu;
            nans += size > 0x7f800000u;
            infs += size == 0x7f800000u;
        }
    } else {
        const uint16_t *bits = data;
        uint16_t const inf = dtype == RA_F16 ? 0x7c00 : 0x7f80;
        RA_OMP(omp parallel for num_threads(threads) reduction(+ : nans, infs))
        for (int64_t i = 0; i < count; ++i) {
            uint16_t const size = bits[i] & 0x7fff;
            nans += size > inf;
            infs += size == inf;
        }
    }
    found->nan_count += nans;
    found->inf_count += infs;
}
