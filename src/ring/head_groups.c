/* Groups of heads, and of parts of the queries of one. */
#include "internal.h"
#include "ring/ring_internal.h"

#include <string.h>

enum {
    /* Rows of queries times their heads that a group of a rank has at least: some waves of thread
       blocks on a large GPU, and some chunks for each of 64 threads. */
    ROW_HEADS_LEAST = 1 << 16,
    GROUPS_MOST = 256,    /* more would save what is little already */
    PART_UNIT = 1024,     /* rows: chunks of most tile maps divide it */
    PART_UNITS_LEAST = 16 /* in a part, so that parts stay even */
};

static int32_t ratio_of(const ra_ring_config *c)
{
    return c->heads / c->kv_heads;
}

/* A group of some query heads of one key head, or of a part of one's queries. */
static ra_head_group share_of(const ra_ring_config *c, int32_t count, int32_t group)
{
    int32_t const each = count / c->kv_heads, kv_head = group / each, index = group % each;
    int32_t const parts = ra_ring_parts(c, count), sets = each / parts;
    int32_t const begin = (int32_t)ra_share_begin(ratio_of(c), index / parts, sets);
    int32_t const end = (int32_t)ra_share_begin(ratio_of(c), index / parts + 1, sets);
    return (ra_head_group){.q_begin = kv_head * ratio_of(c) + begin,
                           .q_count = end - begin,
                           .kv_begin = kv_head,
                           .kv_count = 1,
                           .q_part = index % parts,
                           .q_parts = parts,
                           .begins_keys = index == 0,
                           .ends_keys = index + 1 == each};
}

ra_head_group ra_ring_group_of(const ra_ring_config *c, int32_t count, int32_t group)
{
    if (count > c->kv_heads)
        return share_of(c, count, group);
    int32_t const begin = (int32_t)ra_share_begin(c->kv_heads, group, count);
    int32_t const end = (int32_t)ra_share_begin(c->kv_heads, group + 1, count);
    return (ra_head_group){.q_begin = begin * ratio_of(c),
                           .q_count = (end - begin) * ratio_of(c),
                           .kv_begin = begin,
                           .kv_count = end - begin,
                           .q_parts = 1,
                           .begins_keys = true,
                           .ends_keys = true};
}

bool ra_ring_has_groups(const ra_ring_config *c, int32_t count)
{
    int32_t const unit = count <= c->heads ? c->kv_heads : c->heads;
    bool const splits =
        c->linear == RA_LINEAR_NONE && count % unit == 0 && count / c->heads <= RA_QUERY_PARTS_MAX;
    return count >= 1 && (count <= c->kv_heads || splits);
}

int32_t ra_ring_parts(const ra_ring_config *c, int32_t count)
{
    return (int32_t)ra_max_i64(1, count / c->heads);
}

int32_t ra_ring_plan_count(const ra_ring_config *c, const ra_pattern *pattern, int teams,
                           int32_t count)
{
    /* Packed keys differ by what the group's heads need; those of one team are never packed. */
    return teams > 1 && ra_pattern_differs_by_head(pattern) ? count : ra_ring_parts(c, count);
}

ra_heads ra_ring_plan_heads(const ra_ring_config *c, int32_t count, int32_t plans, int32_t plan)
{
    ra_head_group const group = ra_ring_group_of(c, count, plan);
    ra_heads const own = {group.q_begin, 1, group.q_count}, all = {0, 1, c->heads};
    return plans == count ? own : all;
}

int32_t ra_ring_most_groups(const ra_ring_config *c, int ranks, int32_t tile_rows,
                            bool materialises)
{
    /* The next number after the most is in range, too. */
    int64_t const parts = ra_min_i64(ra_min_i64(c->seq / ranks / tile_rows, RA_QUERY_PARTS_MAX),
                                     (RA_GROUPS_NONE - 1) / c->heads - 1);
    if (c->linear != RA_LINEAR_NONE)
        return c->kv_heads;
    return c->heads * (materialises ? 1 : (int32_t)ra_max_i64(1, parts));
}

/* In rows that parts are made of. */
static int64_t part_unit(int32_t parts, int64_t rows)
{
    return rows / parts >= PART_UNIT * PART_UNITS_LEAST ? PART_UNIT : 1;
}

static int64_t part_begin(int64_t rows, int32_t part, int32_t parts)
{
    int64_t const unit = part_unit(parts, rows);
    return part == parts ? rows : unit * ra_share_begin(rows / unit, part, parts);
}

int64_t ra_head_group_begin(const ra_head_group *group, int64_t rows)
{
    return part_begin(rows, group->q_part, group->q_parts);
}

int64_t ra_head_group_rows(const ra_head_group *group, int64_t rows)
{
    return part_begin(rows, group->q_part + 1, group->q_parts) - ra_head_group_begin(group, rows);
}

ra_status ra_group_queries_init(const ra_layout *layout, const ra_head_group *group, ra_pool *pool,
                                ra_group_queries *queries_out)
{
    ra_group_queries queries = {.rows = layout->rows};
    if (group->q_parts == 1) {
        *queries_out = queries;
        return RA_OK;
    }
    size_t const bytes = (size_t)layout->ranks * sizeof(ra_rowset);
    ra_status status = ra_pool_alloc(pool, RA_MEM_TILEMAP, bytes, NULL, &queries.block);
    if (status != RA_OK)
        return status;
    ra_rowset *const rows = memset(queries.block.data, 0, bytes);
    queries.rows = rows;
    for (int r = 0; r < layout->ranks && status == RA_OK; ++r) {
        int64_t const count = layout->rows[r].row_count;
        int64_t const begin = ra_head_group_begin(group, count);
        status = ra_rowset_slice(pool, &layout->rows[r], begin,
                                 begin + ra_head_group_rows(group, count), &rows[r]);
    }
    if (status != RA_OK)
        ra_group_queries_fini(pool, layout->ranks, &queries);
    else
        *queries_out = queries;
    return status;
}

void ra_group_queries_fini(ra_pool *pool, int ranks, ra_group_queries *queries)
{
    ra_rowset *const own = queries->block.data;
    for (int r = 0; r < ranks && own != NULL; ++r)
        ra_rowset_fini(pool, &own[r]);
    ra_pool_free(pool, NULL, &queries->block);
    *queries = (ra_group_queries){0};
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
