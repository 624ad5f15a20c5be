/*
 * Which thread does what, and when: pure functions of a tile map and of the number of threads.
 *
 * A forward pass hands out tasks, long ones first, so that no thread is left alone with one at the
 * end. A backward pass has fixed shares, because the order in which a gradient is summed must not
 * depend on timing. Members of a team take turns with the key rows, and wait for each other after
 * each turn, so a turn should be equally long for all members.
 */
#ifndef RINGATTN_BALANCE_CPU_H
#define RINGATTN_BALANCE_CPU_H

#include "ringattn/tilemap.h"

/**
 * Pairs of a chunk over heads [head_begin, head_end), global numbers; for a run that a band cuts,
 * the whole rectangle that is left. Cost: the chunk's runs.
 */
int64_t ra_cpu_chunk_work(const ra_tilemap *map, int32_t head_begin, int32_t head_end,
                          int32_t chunk);

/* Tasks are begun class by class: 0 is above half of the longest, 1 above a quarter, … */
enum { RA_TASK_CLASSES = 4 };
int32_t ra_cpu_task_class(int64_t work, int64_t work_most);

/* How a team shares the chunks of queries, and the groups of key rows. */
typedef struct ra_cpu_shares {
    int32_t members;
    int64_t key_rows; /* of a group, a multiple of RA_KEY_BLOCK */
    bool to_and_fro;  /* dealt 0 1 2 2 1 0 0 1 …, otherwise 0 1 2 0 1 2 … */
} ra_cpu_shares;

/** The share of the index-th chunk, or group of key rows: 0 to members - 1. */
static inline int32_t ra_cpu_share_of(const ra_cpu_shares *shares, int64_t index)
{
    int32_t const members = shares->members;
    if (!shares->to_and_fro)
        return (int32_t)(index % members);
    int32_t const at = (int32_t)(index % (2 * (int64_t)members));
    return at < members ? at : 2 * members - 1 - at;
}

/**
 * Shares for a map's heads [head_begin, head_end), global numbers.
 *
 * Key rows come in groups of a chunk's rows, so that every member gets an equal part of the keys
 * near the queries: then a window's rounds are equally long. Groups are dealt to and fro if that
 * balances the members better, as under a causal mask, where later chunks see more and earlier keys
 * are seen more. Cost: the map's runs, if members > 1.
 */
ra_cpu_shares ra_cpu_share_backward(const ra_tilemap *map, int32_t head_begin, int32_t head_end,
                                    int32_t members);

#endif
