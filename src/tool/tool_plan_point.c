/* One configuration of `ringattn plan`: what is asked of the predictor. */
#include "documents.h"
#include "internal.h"
#include "job_memory.h"
#include "tool_plan.h"

#include "ringattn/comm_device.h"
#include "ringattn/device.h"
#include "ringattn/topology.h"

#include <math.h>
#include <stdlib.h>

static ra_status open_source(ra_plan_point *point)
{
    int const sharers = point->config.input != NULL ? 1 : 0; /* only files have block pairs */
    ra_status const status = ra_host_pool_make(sharers, &point->pool);
    return status == RA_OK ? ra_tensor_source_open(&point->config, point->pool, 1, &point->source)
                           : status;
}

/* Multiprocessors of the described machine, or else of the GPU that is here, which then has to do
   the job: the one in use, or the one that would be. */
static ra_status count_multiprocessors(ra_plan_point *point, const ra_hardware *hardware)
{
    char why_not[RA_BACKEND_NOTE_MAX];
    ra_devices devices;
    point->threads = hardware != NULL ? hardware->multiprocessors : 0;
    if (point->threads > 0)
        return RA_OK;
    ra_devices_read(&devices);
    int index = ra_device_used();
    if (index < devices.count && !devices.list[index].usable)
        index = ra_devices_first(&devices);
    if (devices.usable_count > 0 && index < devices.count)
        point->threads = devices.list[index].multiprocessors;
    if (point->threads > 0)
        return ra_backend_gpu_serves(&point->config, why_not)
                   ? RA_OK
                   : ra_backend_refuse(&point->config, why_not);
    ra_log(RA_LOG_ERROR,
           "compute.backend: cuda: there is no GPU here, and scratch of kernels goes by a GPU's "
           "multiprocessors: give --hardware with a file that says multiprocessors");
    return RA_ERR_CONFIG;
}

/* Where the job leaves its threads open, they are those whose speed is known. */
static ra_status count_threads(ra_plan_point *point, ra_backend backend,
                               const ra_hardware *hardware, int ranks_per_node)
{
    ra_topology topology;
    int const known = hardware != NULL ? hardware->threads : 0;
    if (backend == RA_BACKEND_CUDA)
        return count_multiprocessors(point, hardware);
    point->threads = point->config.threads > 0 ? point->config.threads : known;
    if (point->threads > 0)
        return RA_OK;
    ra_status const status = ra_topology_read(&topology);
    if (status == RA_OK)
        point->threads = ra_topology_divide(&topology, ranks_per_node);
    return status;
}

/* What the pairs of blocks take that an input file has brought. */
static int64_t pair_bytes(const ra_plan_point *point)
{
    ra_ledger_snapshot taken;
    ra_ledger_read(ra_pool_ledger(point->pool), &taken);
    return taken.reserved_bytes;
}

/* If left open, NCCL is assumed for described GPUs, and otherwise looked for here. */
static bool buffers_are_nccls(const ra_plan_point *point, const ra_hardware *hardware)
{
    bool const described = hardware != NULL && hardware->multiprocessors > 0;
    if (point->config.comm == RA_COMM_AUTO && !described)
        return ra_nccl_has_memory();
    return point->config.comm == RA_COMM_AUTO || point->config.comm == RA_COMM_NCCL;
}

/* Beside a GPU's memory there is the host's; see job_memory.c. */
static void move_to_device(ra_plan_point *point, const ra_hardware *hardware)
{
    ra_predict_request *request = &point->request;
    request->buffer_unit_bytes = buffers_are_nccls(point, hardware) ? RA_NCCL_UNIT_BYTES : 0;
    request->on_device = true;
    request->may_share = false;
    request->context_bytes = hardware != NULL ? hardware->context_bytes : 0;
    request->window_bytes = RA_SHARD_WINDOW_BYTES;
}

/* Striped rows of a file are read with gaps, through a block of their own. */
static bool may_read_with_gaps(const ra_config *config, int ranks)
{
    int64_t const row = ra_tensor_row_bytes(config, RA_TENSOR_K);
    return config->input != NULL && ranks > 1 && config->seq > ranks &&
           ra_tensor_rows_at_once(row, ranks) > 1;
}

static ra_status request_fill(ra_plan_point *point, int ranks, ra_backend backend,
                              const ra_hardware *hardware)
{
    const ra_config *config = &point->config;
    ra_kernel_list list;
    ra_status status = ra_kernel_list_make(config, backend, hardware, &list);
    if (status != RA_OK)
        return status;
    const ra_kernel_ops *ops = list.tables[0]; /* unchecked: nothing is computed */
    if (hardware != NULL && hardware->multiprocessors > 0 && hardware->compute_capability > 0 &&
        !ra_backend_gpu_runs(ops, hardware))
        return ra_config_refuse(config, "compute.isa",
                                "kernel %s does not run on compute capability %.1f, which the "
                                "hardware file has: use auto",
                                ops->name, hardware->compute_capability);
    point->kernel_name = ops->name;
    int const known_per_node = hardware != NULL ? hardware->ranks_per_node : 0;
    int const per_node = known_per_node > 0 ? known_per_node : ranks;
    status = count_threads(point, backend, hardware, per_node < ranks ? per_node : ranks);
    if (status != RA_OK)
        return status;
    ra_kernel_use const use = ra_job_kernel_use(config, ranks, point->threads);
    int64_t const memory =
        hardware != NULL && hardware->memory_bytes > 0 ? hardware->memory_bytes : INT64_MAX;
    point->request = (ra_predict_request){
        .standard = config->attention_kind == RA_ATTENTION_STANDARD,
        .pattern = &config->pattern,
        .ranks = ranks,
        .ranks_per_node = per_node,
        .may_share = hardware == NULL || hardware->shares_memory,
        .tile_rows = ops->tile_rows(config->dtype, config->head_dim),
        .maps_by_keys = ops->maps_by_keys,
        .stores = ops->stores_grads != NULL ? ops->stores_grads(&use) : (ra_stored_grads){0},
        .workspace_bytes = (int64_t)ops->workspace_bytes(&use),
        .threads =
            ops->linear != NULL ? ra_linear_workers(ops->linear, point->threads) : point->threads,
        .pool = config->pool_mode,
        .cache = config->cache_mode,
        .cache_entries = config->cache_entries,
        .cache_bytes = config->cache_bytes,
        .pair_bytes = pair_bytes(point),
        .staging_bytes = may_read_with_gaps(config, ranks) ? RA_TENSOR_STAGING_BYTES : 0,
        .memory_bytes = config->limit_bytes > 0 ? ra_min_i64(config->limit_bytes, memory) : memory,
        .hardware = hardware,
        .comm = point->comm};
    point->request.ring = ra_job_ring_config(config, config->repeat);
    if (backend == RA_BACKEND_CUDA)
        move_to_device(point, hardware);
    return RA_OK;
}

static ra_status job_settle(ra_plan_point *point, int ranks)
{
    ra_status const status = open_source(point);
    return status == RA_OK ? ra_config_check_plan(&point->config, ranks) : status;
}

ra_status ra_plan_point_init(ra_plan_point *point, int ranks, const ra_hardware *hardware)
{
    ra_backend backend = RA_BACKEND_CPU;
    ra_status status = job_settle(point, ranks);
    if (status == RA_OK)
        status = ra_backend_choose_there(&point->config, ranks, hardware, &backend, point->note);
    return status == RA_OK ? request_fill(point, ranks, backend, hardware) : status;
}

/* Once an input's shape is known: whether the GPU that was chosen can do it; log the job's line on
   refusal. */
static ra_status settle_kernels(const ra_config *config, ra_backend *backend)
{
    char why_not[RA_BACKEND_NOTE_MAX];
    if (*backend != RA_BACKEND_CUDA || ra_backend_gpu_serves(config, why_not))
        return RA_OK;
    if (!ra_backend_may_be_cpu(config))
        return ra_backend_refuse(config, why_not);
    *backend = RA_BACKEND_CPU;
    return RA_OK;
}

ra_status ra_plan_point_init_here(ra_plan_point *point)
{
    int const ranks = ra_comm_size(point->comm);
    char note[RA_BACKEND_NOTE_MAX];
    ra_backend backend = RA_BACKEND_CPU;
    ra_status status = ra_backend_choose(&point->config, ranks, &backend, note);
    if (status == RA_OK)
        status = job_settle(point, ranks);
    if (status == RA_OK)
        status = settle_kernels(&point->config, &backend);
    if (status == RA_OK)
        status = request_fill(point, ranks, backend, NULL);
    if (status == RA_OK)
        point->request.ranks_per_node = ra_comm_local_size(point->comm);
    return status;
}

/* ---- the longest sequence ------------------------------------------------------------------- */

/* Documents are repeated, as a probe does. The prediction has no times. */
static ra_status predict_at(const ra_plan_point *point, int64_t seq, ra_prediction *prediction_out)
{
    ra_predict_request request = point->request;
    ra_config longer = point->config; /* borrowed from */
    ra_pattern_config pattern = point->config.pattern;
    int64_t *documents, count;
    ra_status status = ra_documents_repeat(&pattern, seq, &documents, &count);
    if (status != RA_OK)
        return status;
    if (documents != NULL) {
        pattern.documents = documents;
        pattern.document_count = count;
    }
    longer.seq = seq;
    request.ring.follow_bytes[1] = longer.verify ? ra_verify_bytes(&longer) : 0;
    request.pattern = &pattern;
    request.ring.seq = seq;
    request.hardware = NULL;
    status = ra_predict(&request, prediction_out);
    free(documents);
    return status;
}

ra_status ra_plan_point_peak(const ra_plan_point *point, int64_t seq, int64_t *peak_bytes_out)
{
    ra_prediction prediction = {0};
    ra_status const status = predict_at(point, seq, &prediction);
    if (status == RA_OK)
        *peak_bytes_out = prediction.peak_bytes;
    ra_prediction_fini(&prediction);
    return status;
}

/* A length that fits and one that does not, with the bytes that they leave and lack: half of them
   each time that the other bound moves twice. */
typedef struct bracket {
    int64_t low, high; /* high: 0 until one is found */
    double low_leaves, high_lacks;
    int32_t low_head_groups, low_rounds;
    bool low_moved; /* by the last look */
} bracket;

static ra_status look(const ra_plan_point *point, int64_t seq, bracket *b)
{
    ra_prediction p = {0};
    ra_status const status = predict_at(point, seq, &p);
    if (status != RA_OK)
        return status;
    double const leaves = (double)(point->request.memory_bytes - p.peak_bytes);
    bool const fits = leaves >= 0, again = fits == b->low_moved;
    if (fits) {
        b->high_lacks /= again ? 2 : 1;
        b->low = seq;
        b->low_leaves = leaves;
        b->low_head_groups = p.head_groups;
        b->low_rounds = p.rounds;
    } else {
        b->low_leaves /= again ? 2 : 1;
        b->high = seq;
        b->high_lacks = -leaves;
    }
    b->low_moved = fits;
    ra_prediction_fini(&p);
    return RA_OK;
}

/* Where a straight line through the peaks of both bounds meets the limit, because peaks grow almost
   in proportion to lengths (the Illinois method, where they do not); and a little beyond that, seen
   from the bound that has moved last, so that the other one moves next. At least a 64th of the gap
   from either. */
static int64_t next_length(const bracket *b, int64_t step)
{
    double const gap = (double)(b->high - b->low);
    double const guess = (double)b->low + gap * b->low_leaves / (b->low_leaves + b->high_lacks) +
                         (b->low_moved ? 0.4 : -0.4) * (double)step;
    int64_t const margin = (b->high - b->low) / 64;
    return (int64_t)fmax((double)(b->low + ra_max_i64(1, margin)),
                         fmin(guess, (double)(b->high - ra_max_i64(1, margin))));
}

ra_status ra_plan_point_longest(ra_plan_point *point)
{
    enum { GUESSES_MAX = 16 }; /* after so many, the gap is halved */
    bracket b = {.low_leaves = (double)point->request.memory_bytes, .low_moved = true};
    int64_t const most = ra_documents_tokens_max(&point->config.pattern);
    if (point->request.memory_bytes == INT64_MAX) {
        ra_log(RA_LOG_ERROR, "--longest: there is no memory to fit into; give memory.limit, or "
                             "--hardware with its memory");
        return RA_ERR_CONFIG;
    }
    if (point->config.input != NULL) {
        ra_log(RA_LOG_ERROR, "--longest: job.input gives the length");
        return RA_ERR_CONFIG;
    }
    ra_status status = look(point, point->config.seq, &b);
    while (status == RA_OK && b.high == 0 && b.low < most)
        status = look(point, ra_min_i64(2 * b.low, most), &b);
    for (int i = 0; status == RA_OK && b.high > 0; i++) {
        int64_t const step = ra_max_i64(1, b.low / 1024), gap = b.high - b.low;
        if (gap <= step)
            break;
        status = look(point, i < GUESSES_MAX ? next_length(&b, step) : b.low + gap / 2, &b);
    }
    point->has_longest = status == RA_OK;
    point->longest_seq = b.low;
    point->longest_head_groups = b.low_head_groups;
    point->longest_rounds = b.low_rounds;
    return status;
}

void ra_plan_point_fini(ra_plan_point *point)
{
    ra_prediction_fini(&point->prediction);
    ra_tensor_source_close(point->source);
    ra_pool_destroy_with_ledger(point->pool);
    ra_config_fini(&point->config);
    *point = (ra_plan_point){0};
}
