#include "feature_sets.h"

#include <stddef.h>

#define BASE          "ring.variant=base"
#define RING          "ring.variant=ring"
#define POOL_OPTIONS  "memory.pool.trim"
#define CACHE_OPTIONS "memory.pattern_cache.entries", "memory.pattern_cache.bytes"
/* Keys about things that base does not have. */
#define BASE_DROPS                                                                                 \
    "ring.schedule", "ring.comm_buffers", "ring.rounds", "memory.pool.mode", POOL_OPTIONS,         \
        "memory.pattern_cache.mode", CACHE_OPTIONS
#define SWITCHES "ring.comm_buffers", "ring.head_groups", "ring.rounds", "memory.pool.mode"
/* A job requests a map once, so a lazy cache would keep none, and cost nothing. */
#define ALL_ON SWITCHES, "memory.pattern_cache.mode=eager"

const ra_feature_set ra_feature_ring = {
    "ring", {RING}, {SWITCHES, "memory.pattern_cache.mode"}, {NULL}};

const ra_feature_set ra_feature_sets[] = {
    {"base", {BASE}, {"ring.head_groups"}, {BASE_DROPS}},
    {"ring", {RING}, {ALL_ON}, {NULL}},
    {"no_pool", {RING, "memory.pool.mode=off"}, {ALL_ON}, {POOL_OPTIONS}},
    {"no_cache", {RING, "memory.pattern_cache.mode=off"}, {ALL_ON}, {CACHE_OPTIONS}},
    {"no_buffers", {RING, "ring.comm_buffers=0"}, {ALL_ON}, {NULL}},
    {"no_groups", {RING, "ring.head_groups=1"}, {ALL_ON}, {NULL}},
    {"all_off",
     {RING, "ring.comm_buffers=0", "ring.head_groups=1", "ring.rounds=1", "memory.pool.mode=off",
      "memory.pattern_cache.mode=off"},
     {NULL},
     {POOL_OPTIONS, CACHE_OPTIONS}},
    {"base_dense", {BASE, "attention.mask=dense_blocks"}, {"ring.head_groups"}, {BASE_DROPS}},
    /* A block mask is never kept in the cache. */
    {"ring_dense",
     {RING, "attention.mask=dense_blocks"},
     {ALL_ON},
     {"memory.pattern_cache.mode", CACHE_OPTIONS}},
};

const int ra_feature_set_count = (int)(sizeof(ra_feature_sets) / sizeof(ra_feature_sets[0]));
