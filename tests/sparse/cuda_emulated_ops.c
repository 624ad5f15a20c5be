#include "sparse/cuda_emulated_ops.h"
#include "sparse/cuda/forward_cuts.h"
#include "sparse/cuda/launch_args.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCKS = 3 };

cuda_emulation cuda_emulated_stats;
static uint64_t order_seed = 1;

/* A copy of the map where nothing else is: what the kernel reads besides it is found out. */
static void *copy_map(const ra_tilemap *map)
{
    size_t const bytes = (size_t)ra_tilemap_array_bytes(map);
    void *const copy = malloc(bytes);
    cr_assert_not_null(copy);
    memcpy(copy, map->layers, bytes);
    ra_tile_layer *const layers = copy;
    for (int32_t i = 0; i < map->layer_count; ++i)
        layers[i].chunk_tile = NULL; /* the host's addresses mean nothing there */
    return copy;
}

/* Tickets of a launch: those that stay take one more, to find that there are no more tasks. */
static int64_t tickets_of(bool yields, int64_t tasks)
{
    return yields ? tasks : tasks + BLOCKS;
}

/* Room for parts of long tasks; few enough that not all that would be cut always are. */
enum { PARTS = 40 };

static ra_status forward_by(const ra_forward_step *step, bool warpgroups)
{
    size_t const parts_bytes = ra_cuda_cuts_bytes(PARTS, step->shape.dim);
    size_t const bytes = ra_cuda_shared_scratch_bytes(BLOCKS, step->shape.dim);
    uint32_t ticket = 0;
    ra_status const status = ra_cuda_step_check(&step->shape, step->map, step->q.dtype);
    if (status != RA_OK)
        return status;
    void *const scratch = malloc(bytes), *const map = copy_map(step->map);
    void *const parts = malloc(parts_bytes);
    cr_assert_not_null(scratch);
    cr_assert_not_null(parts);
    memset(scratch, 0xff, bytes);
    memset(parts, 0xff, parts_bytes);
    ra_cuda_forward f = ra_cuda_forward_args(step, map, scratch, &ticket);
    f.warpgroups = warpgroups && ra_cuda_has_warpgroups(step->q.dtype, step->shape.dim);
    if (f.warpgroups)
        f.cuts = ra_cuda_cuts_of(step, BLOCKS, ra_cuda_warpgroup_tile_of(step->shape.dim).k_rows,
                                 parts, parts_bytes);
    if (f.cuts.tasks > 0)
        memset(f.cuts.arrived, 0, ra_cuda_arrived_bytes(&f.cuts));
    cuda_emulated_stats.parts += f.cuts.tasks;
    cuda_emulate_forward(&f, BLOCKS, order_seed++, &cuda_emulated_stats);
    cr_assert_eq(ticket, tickets_of(f.yields, f.tasks + f.cuts.tasks), "every task was taken once");
    free(scratch);
    free(parts);
    free(map);
    return RA_OK;
}

static ra_status emulated_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    (void)kernel;
    return forward_by(step, false);
}

static ra_status emulated_sm90a_forward(ra_kernel *kernel, const ra_forward_step *step)
{
    (void)kernel;
    return forward_by(step, true);
}

static ra_status backward_by(ra_kernel *kernel, const ra_backward_step *step, bool warpgroups)
{
    uint32_t tickets[2] = {0, 0};
    ra_status const status = ra_cuda_backward_check(step);
    if (status != RA_OK)
        return status;
    void *const map = copy_map(step->map);
    bool const single = ra_cuda_goes_single(step, kernel->deterministic, INT64_MAX);
    ra_cuda_backward f = ra_cuda_backward_args(step, map, single, tickets);
    f.warpgroups =
        warpgroups && single && ra_cuda_has_warpgroup_single(step->q.dtype, step->shape.dim);
    cuda_emulate_backward(&f, BLOCKS, order_seed++, &cuda_emulated_stats);
    cr_assert_eq(tickets[0], single ? 0 : tickets_of(f.yields, f.q_tasks),
                 "every task was taken once");
    cr_assert_eq(tickets[1], tickets_of(f.yields, f.k_tasks), "every task was taken once");
    free(map);
    return RA_OK;
}

static ra_status emulated_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    return backward_by(kernel, step, false);
}

static ra_status emulated_sm90a_backward(ra_kernel *kernel, const ra_backward_step *step)
{
    return backward_by(kernel, step, true);
}

static int32_t emulated_tile_rows(ra_dtype dtype, int32_t dim)
{
    return ra_cuda_tile_of(dtype, dim).q_rows;
}

/* Rows are moved by the CPU; attention is the GPU's. */
ra_kernel_ops cuda_emulated_ops(void)
{
    ra_kernel_ops ops = *ra_kernel_cpu(RA_ISA_PORTABLE);
    ops.name = "cuda-emulated";
    ops.forward = emulated_forward;
    ops.backward = emulated_backward;
    ops.tile_rows = emulated_tile_rows;
    ops.maps_by_keys = true;
    ops.stores_grads = ra_cuda_stores_grads;
    return ops;
}

ra_kernel_ops cuda_emulated_sm90a_ops(void)
{
    ra_kernel_ops ops = cuda_emulated_ops();
    ops.name = "cuda-emulated-sm_90a";
    ops.forward = emulated_sm90a_forward;
    ops.backward = emulated_sm90a_backward;
    return ops;
}
