/*
 * The order in which thread blocks draw tasks, longest first: the last ones drawn decide how long
 * the other thread blocks idle. Heads of all batches form groups, as large as the L2 cache can hold
 * what their tasks read, and the heads of a group take turns. With 264 thread blocks, causal
 * attention over 16,384 tokens and 16 heads takes 1.12 times the ideal (all blocks busy until the
 * end) head by head, and 1.01 times in groups. (FlashAttention-3 orders causal tiles so too.)
 *
 * One thread of a block finds a task while others may wait for it. A GPU has no instruction for
 * division, and takes some 35 of them and 100 cycles; what divides here is known before the launch.
 */
#ifndef RINGATTN_CUDA_TASK_ORDER_H
#define RINGATTN_CUDA_TASK_ORDER_H

#include "sparse/host_device.h"

#include <stdbool.h>
#include <stdint.h>

/* A number to divide by: a product, two shifts, two additions instead (Granlund and Montgomery,
   "Division by Invariant Integers using Multiplication", 1994, figure 4.1). */
typedef struct ra_divisor {
    uint32_t value, factor;
    uint8_t first_shift, last_shift;
} ra_divisor;

/* `value` is at least 1. */
RA_HD ra_divisor ra_divisor_of(uint32_t value)
{
    uint64_t power = 1;
    int bits = 0;
    for (; power < value; power *= 2)
        ++bits;
    ra_divisor d = {0, 0, 0, 0};
    d.value = value;
    d.factor = (uint32_t)(((power - value) << 32) / value + 1);
    d.first_shift = (uint8_t)ra_hd_min(bits, 1);
    d.last_shift = (uint8_t)ra_hd_max(bits - 1, 0);
    return d;
}

/* The quotient rounded down. */
RA_HD uint32_t ra_divide(uint32_t x, ra_divisor d)
{
    uint32_t const high = (uint32_t)((uint64_t)x * d.factor >> 32);
    return (high + ((x - high) >> d.first_shift)) >> d.last_shift;
}

/* Of a launch. */
typedef struct ra_cuda_order {
    uint32_t heads;                     /* of all batches */
    ra_divisor batch_heads;             /* of a batch */
    ra_divisor group_tasks;             /* of a group, */
    ra_divisor group_heads, last_heads; /* whose heads these are, and those of the last one */
} ra_cuda_order;

/* A task of `turns` that each head has. */
typedef struct ra_cuda_turn {
    int32_t batch, head, turn;
} ra_cuda_turn;

/* At most so many groups, all of one size but the last, which may be smaller; fewer than 2^32
 * tasks.
 */
RA_HD ra_cuda_order ra_cuda_order_of(int64_t batches, int32_t heads, int64_t groups, int64_t turns)
{
    ra_cuda_order order = {0, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}};
    int64_t const all = batches * heads, most = groups > 0 ? (all + groups - 1) / groups : 1;
    int64_t const each = most > 0 ? most : 1, before_last = all > 0 ? (all - 1) / each * each : -1;
    order.heads = (uint32_t)all;
    order.batch_heads = ra_divisor_of((uint32_t)ra_hd_max(heads, 1));
    order.group_tasks = ra_divisor_of((uint32_t)(turns > 0 ? each * turns : 1));
    order.group_heads = ra_divisor_of((uint32_t)each);
    order.last_heads = ra_divisor_of((uint32_t)(all - before_last));
    return order;
}

RA_HD ra_cuda_turn ra_cuda_turn_of(const ra_cuda_order *order, uint32_t index)
{
    uint32_t const group = ra_divide(index, order->group_tasks);
    uint32_t const at = index - group * order->group_tasks.value;
    uint32_t const begin = group * order->group_heads.value;
    bool const is_last = order->heads - begin <= order->group_heads.value;
    ra_divisor const heads = is_last ? order->last_heads : order->group_heads;
    uint32_t const turn = ra_divide(at, heads), head = begin + at - turn * heads.value;
    uint32_t const batch = ra_divide(head, order->batch_heads);
    ra_cuda_turn found = {0, 0, 0};
    found.batch = (int32_t)batch;
    found.head = (int32_t)(head - batch * order->batch_heads.value);
    found.turn = (int32_t)turn;
    return found;
}

#endif
