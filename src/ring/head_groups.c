/* How many groups of heads a job is computed in, where memory does not decide. */
#include "internal.h"
#include "ring/ring_internal.h"

enum {
    /* Rows of queries times their heads that a group of a rank has at least: some waves of thread
       blocks on a large GPU, and some chunks for each of 64 threads. */
    ROW_HEADS_LEAST = 1 << 16,
    GROUPS_MOST = 256 /* more would save what is little already */
};

ra_head_group ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group)
{
    int32_t const ratio = c->heads / c->kv_heads;
    int32_t const begin = (int32_t)ra_share_begin(c->kv_heads, group, count);
    int32_t const end = (int32_t)ra_share_begin(c->kv_heads, group + 1, count);
    return (ra_head_group){begin * ratio, (end - begin) * ratio, begin, end - begin};
}

int32_t ra_ring_more_groups(const ra_ring_config *c, int32_t count)
{
    int32_t const largest = ra_ring_group_of(c, count, count - 1).kv_count;
    return (int32_t)ra_div_ceil(c->kv_heads, largest - 1);
}

/* Most groups of which each has work enough. */
static int32_t groups_most(const ra_ring_config *c, int ranks)
{
    int64_t const rows = ra_max_i64(1, c->batch * (c->seq / ranks) * (c->heads / c->kv_heads));
    int64_t const heads_least = ra_div_ceil(ROW_HEADS_LEAST, rows);
    return (int32_t)ra_min_i64(ra_max_i64(1, c->kv_heads / heads_least), GROUPS_MOST);
}

/* The part of the rows of others that a group's heads touch, by branches whose segments are longer
   than what a team has of the sequence: one in a stride, at each offset. */
static double touched_by(const ra_pattern *pattern, const ra_head_group *group, int64_t team_rows)
{
    ra_heads const heads = {group->q_begin, 1, group->q_count};
    double part = 0;
    for (int32_t i = 0; i < ra_pattern_layer_count(pattern); ++i)
        if (ra_pattern_layer_segment(pattern, i) > team_rows &&
            ra_heads_common(ra_pattern_layer_heads(pattern, i), heads) > 0)
            part += 1.0 / (double)ra_pattern_layer_stride(pattern, i);
    return part < 1 ? part : 1;
}

/* What is sent in so many groups, in keys of a head times rows of the sequence. */
static double sent_in(const ra_ring_config *c, const ra_pattern *pattern, int teams, int32_t count)
{
    double sent = 0;
    for (int32_t g = 0; g < count; ++g) {
        ra_head_group const group = ra_ring_group_of(c, count, g);
        sent += touched_by(pattern, &group, c->seq / teams) * group.kv_count;
    }
    return sent;
}

int32_t ra_ring_fewest_groups(const ra_ring_config *c, const ra_pattern *pattern, int ranks,
                              int teams)
{
    int32_t const most = groups_most(c, ranks);
    if (teams == 1 || most == 1 || !ra_pattern_differs_by_head(pattern))
        return 1;
    return 4 * sent_in(c, pattern, teams, most) < 3 * sent_in(c, pattern, teams, 1) ? most : 1;
}
