/* How many groups of heads a job is computed in, and in how many rounds its keys travel. */
#include "internal.h"
#include "ring/ring_internal.h"

enum {
    /* Rows of queries times their heads that a group of a rank has at least: some waves of thread
       blocks on a large GPU, and some chunks for each of 64 threads. */
    ROW_HEADS_LEAST = 1 << 16,
    GROUPS_MOST = 256 /* more would save what is little already */
};

static int32_t ratio_of(const ra_ring_config *c)
{
    return c->heads / c->kv_heads;
}

/* One of `parts` groups of the query heads of one key head. */
static ra_head_group part_of(const ra_ring_config *c, int32_t kv_head, int32_t part, int32_t parts)
{
    int32_t const begin = (int32_t)ra_share_begin(ratio_of(c), part, parts);
    int32_t const end = (int32_t)ra_share_begin(ratio_of(c), part + 1, parts);
    return (ra_head_group){.q_begin = kv_head * ratio_of(c) + begin,
                           .q_count = end - begin,
                           .kv_begin = kv_head,
                           .kv_count = 1,
                           .begins_keys = part == 0,
                           .ends_keys = part + 1 == parts};
}

ra_head_group ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group)
{
    int32_t const parts = count / c->kv_heads;
    if (parts > 1)
        return part_of(c, group / parts, group % parts, parts);
    int32_t const begin = (int32_t)ra_share_begin(c->kv_heads, group, count);
    int32_t const end = (int32_t)ra_share_begin(c->kv_heads, group + 1, count);
    return (ra_head_group){.q_begin = begin * ratio_of(c),
                           .q_count = (end - begin) * ratio_of(c),
                           .kv_begin = begin,
                           .kv_count = end - begin,
                           .begins_keys = true,
                           .ends_keys = true};
}

bool ra_ring_has_groups(const ra_ring_config *c, int32_t count)
{
    bool const splits =
        c->linear == RA_LINEAR_NONE && count <= c->heads && count % c->kv_heads == 0;
    return count >= 1 && (count <= c->kv_heads || splits);
}

int32_t ra_ring_key_heads_sent(const ra_ring_config *c, int32_t count)
{
    return count > c->kv_heads ? count : c->kv_heads;
}

/* The next number of groups after `count` that makes the largest group smaller; the numbers between
   save nothing. */
static int32_t more_groups(const ra_ring_config *c, int32_t count)
{
    ra_head_group const largest = ra_ring_group_of(c, count, count - 1);
    bool const of_keys = count < c->kv_heads;
    int32_t const smaller = (of_keys ? largest.kv_count : largest.q_count) - 1;
    RA_ASSERT(smaller >= 1); /* below `heads` */
    return of_keys ? (int32_t)ra_div_ceil(c->kv_heads, smaller)
                   : c->kv_heads * (int32_t)ra_div_ceil(ratio_of(c), smaller);
}

ra_groups_found ra_ring_find_groups(const ra_ring_config *c, ra_group_bytes *bytes_of,
                                    const void *context, int64_t room, int32_t fewest)
{
    int32_t const most = c->linear == RA_LINEAR_NONE ? c->heads : c->kv_heads;
    ra_groups_found found = {RA_GROUPS_NONE, RA_GROUPS_NONE, c->head_groups};
    int64_t buffers, least_bytes = INT64_MAX;
    int32_t groups = c->head_groups;
    if (groups == 0)
        groups = fewest > 1 && bytes_of(context, fewest, &buffers) <= room ? fewest : 1;
    for (;; groups = more_groups(c, groups)) {
        int64_t const needed = bytes_of(context, groups, &buffers);
        if (needed - buffers <= room && found.could == RA_GROUPS_NONE)
            found.could = groups;
        if (needed <= room) {
            found.fit = found.least = groups;
            return found;
        }
        if (groups >= c->kv_heads && needed < least_bytes) {
            found.least = groups;
            least_bytes = needed;
        }
        if (c->head_groups != 0 || groups >= most)
            return found;
    }
}

ra_rounds_search ra_rounds_search_begin(int32_t rounds)
{
    return (ra_rounds_search){.rounds = rounds, .first = rounds, .best_groups = RA_GROUPS_NONE};
}

bool ra_rounds_search_goes_on(ra_rounds_search *s, const ra_ring_config *c, ra_groups_found found,
                              int32_t more)
{
    if (s->is_last || found.fit <= c->kv_heads)
        return false;
    if (found.fit < s->best_groups) {
        s->best_groups = found.fit;
        s->best_rounds = s->rounds;
    }
    int32_t const tried = s->rounds;
    bool const may_do = more > 0 && found.could < s->best_groups;
    s->is_last = !may_do;
    s->rounds = may_do ? more : s->best_groups != RA_GROUPS_NONE ? s->best_rounds : s->first;
    return s->rounds != tried;
}

/* Most groups of which each has work enough. */
static int32_t groups_most(const ra_ring_config *c, int ranks)
{
    int64_t const rows = ra_max_i64(1, c->batch * (c->seq / ranks) * ratio_of(c));
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
