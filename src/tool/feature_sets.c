#include "feature_sets.h"

#include <stddef.h>

#define BASE                                                                                       \
    "ring.variant=base", "ring.schedule=null", "ring.comm_buffers=null", "ring.head_groups=null",  \
        "memory.pool.mode=null", "memory.pattern_cache.mode=null"
#define RING                                                                                       \
    "ring.variant=ring", "ring.comm_buffers=null", "ring.head_groups=null",                        \
        "memory.pool.mode=null", "memory.pattern_cache.mode=null"

const ra_feature_set ra_feature_base = {"base", {BASE}};
const ra_feature_set ra_feature_ring = {"ring", {RING}};

const ra_feature_set ra_feature_sets[] = {
    {"base", {BASE}},
    {"ring", {RING}},
    {"no_pool", {RING, "memory.pool.mode=off"}},
    {"no_cache", {RING, "memory.pattern_cache.mode=off"}},
    {"no_buffers", {RING, "ring.comm_buffers=0"}},
    {"no_groups", {RING, "ring.head_groups=1"}},
    {"all_off",
     {"ring.variant=ring", "ring.comm_buffers=0", "ring.head_groups=1", "memory.pool.mode=off",
      "memory.pattern_cache.mode=off"}},
    {"base_dense", {BASE, "attention.mask=dense_blocks"}},
    {"ring_dense", {RING, "attention.mask=dense_blocks"}},
};

const int ra_feature_set_count = (int)(sizeof(ra_feature_sets) / sizeof(ra_feature_sets[0]));
