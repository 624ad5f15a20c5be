#include "feature_sets.h"

#include <stddef.h>

#define BASE "ring.variant=base"
/* base has none of what these are about. */
#define BASE_DROPS                                                                                 \
    "ring.schedule=null", "ring.comm_buffers=null", "ring.head_groups=null",                       \
        "memory.pool.mode=null", "memory.pool.trim=null", "memory.pattern_cache.mode=null"
#define RING                                                                                       \
    "ring.variant=ring", "ring.comm_buffers=null", "ring.head_groups=null",                        \
        "memory.pool.mode=null", "memory.pattern_cache.mode=null"
#define POOL_DROPS "memory.pool.trim=null"

const ra_feature_set ra_feature_base = {"base", {BASE}, {BASE_DROPS}};
const ra_feature_set ra_feature_ring = {"ring", {RING}, {NULL}};

const ra_feature_set ra_feature_sets[] = {
    {"base", {BASE}, {BASE_DROPS}},
    {"ring", {RING}, {NULL}},
    {"no_pool", {RING, "memory.pool.mode=off"}, {POOL_DROPS}},
    {"no_cache", {RING, "memory.pattern_cache.mode=off"}, {NULL}},
    {"no_buffers", {RING, "ring.comm_buffers=0"}, {NULL}},
    {"no_groups", {RING, "ring.head_groups=1"}, {NULL}},
    {"all_off",
     {"ring.variant=ring", "ring.comm_buffers=0", "ring.head_groups=1", "memory.pool.mode=off",
      "memory.pattern_cache.mode=off"},
     {POOL_DROPS}},
    {"base_dense", {BASE, "attention.mask=dense_blocks"}, {BASE_DROPS}},
    /* A block mask is never kept in the cache. */
    {"ring_dense", {RING, "attention.mask=dense_blocks"}, {"memory.pattern_cache.mode=null"}},
};

const int ra_feature_set_count = (int)(sizeof(ra_feature_sets) / sizeof(ra_feature_sets[0]));
