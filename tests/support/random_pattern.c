#include "support/random_pattern.h"

#include <stdio.h>
#include <string.h>

static void draw_documents(test_rng *rng, int64_t seq, test_pattern *p)
{
    int64_t left = seq, count = 0;
    int64_t const longest = test_rng_between(rng, 1, seq);
    while (left > 0 && count < 255) {
        int64_t const length = test_rng_chance(rng, 0.1)
                                   ? 0
                                   : test_rng_between(rng, 1, left < longest ? left : longest);
        p->documents[count++] = length;
        left -= length;
    }
    p->documents[count++] = left;
    p->config.documents = p->documents;
    p->config.document_count = count;
}

static void draw_blocks(test_rng *rng, int64_t seq, test_pattern *p)
{
    ra_pattern_config *c = &p->config;
    c->blocks_kind = (ra_blocks_kind)test_rng_between(rng, 1, 5);
    c->block_size = test_rng_between(rng, 1, test_rng_chance(rng, 0.5) ? 16 : seq + 3);
    int64_t const rows = (seq + c->block_size - 1) / c->block_size;
    c->block_width = test_rng_between(rng, 0, 3);
    c->block_globals = test_rng_between(rng, 0, 3);
    c->block_density = (double)test_rng_between(rng, 0, 20) / 20;
    c->block_seed = test_rng_next(rng) >> test_rng_between(rng, 0, 63);
    if (test_rng_chance(rng, 0.5)) {
        c->block_rate_count = test_rng_between(rng, 0, 6);
        for (int64_t i = 0; i < c->block_rate_count; ++i)
            p->block_rates[i] = test_rng_between(rng, 1, rows + 1);
        c->block_rates = p->block_rates;
    }
    if (c->blocks_kind == RA_BLOCKS_LIST) {
        c->block_pair_count = test_rng_between(rng, 0, 60);
        for (int64_t i = 0; i < c->block_pair_count; ++i)
            for (int side = 0; side < 2; ++side)
                p->pairs[i][side] = (int32_t)test_rng_between(rng, 0, rows - 1);
        c->block_pairs = (const int32_t(*)[2])p->pairs;
    }
}

static void draw_dilated(test_rng *rng, int64_t seq, test_pattern *p)
{
    ra_pattern_config *c = &p->config;
    c->branch_count = test_rng_between(rng, 1, 3);
    for (int64_t i = 0; i < c->branch_count; ++i) {
        p->segments[i] = test_rng_between(rng, 1, seq + 8);
        p->rates[i] = test_rng_chance(rng, 0.7) ? (int64_t)1 << test_rng_between(rng, 0, 3)
                                                : test_rng_between(rng, 1, 9);
    }
    c->segments = p->segments;
    c->rates = p->rates;
    c->dilated_heads = test_rng_chance(rng, 0.3) ? RA_HEADS_GROUPED : RA_HEADS_ALL;
}

void test_pattern_draw(test_rng *rng, int64_t seq, test_pattern *p)
{
    memset(p, 0, sizeof(*p));
    p->config = ra_pattern_config_dense();
    p->config.causal = test_rng_chance(rng, 0.5);
    if (test_rng_chance(rng, 0.5)) {
        p->config.window_left = test_rng_between(rng, -1, seq / 2 + 1);
        p->config.window_right = test_rng_between(rng, -1, seq / 2 + 1);
        p->config.sinks = test_rng_chance(rng, 0.5) ? test_rng_between(rng, 0, 9) : 0;
    }
    if (test_rng_chance(rng, 0.3))
        draw_documents(rng, seq, p);
    if (test_rng_chance(rng, 0.4))
        draw_blocks(rng, seq, p);
    if (test_rng_chance(rng, 0.4))
        draw_dilated(rng, seq, p);
}

void test_pattern_print(const ra_pattern_config *c, char *text, size_t bytes)
{
    int at =
        snprintf(text, bytes,
                 "causal %d window %lld %lld sinks %lld docs %lld blocks %d size %lld width "
                 "%lld globals %lld density %g rates %lld heads %d dilated",
                 c->causal, (long long)c->window_left, (long long)c->window_right,
                 (long long)c->sinks, (long long)c->document_count, c->blocks_kind,
                 (long long)c->block_size, (long long)c->block_width, (long long)c->block_globals,
                 c->block_density, (long long)c->block_rate_count, c->dilated_heads);
    for (int64_t i = 0; i < c->branch_count && at > 0 && (size_t)at < bytes; ++i)
        at += snprintf(text + at, bytes - (size_t)at, " %lld/%lld", (long long)c->segments[i],
                       (long long)c->rates[i]);
}
