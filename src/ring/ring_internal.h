/* Private to src/ring: the plan of steps that a pass follows, and the ring that follows it. */
#ifndef RINGATTN_RING_INTERNAL_H
#define RINGATTN_RING_INTERNAL_H

#include "internal.h"
#include "ringattn/block_mask.h"
#include "ringattn/trace.h"

/*
 * Ranks that share memory, dealt into teams: all ranks of a host with schedule shared, each rank
 * by itself with the others. A rank's place is its number within its team.
 */
typedef struct ra_teams {
    int ranks, count, largest;
    const int *team, *place; /* [ranks] */
    const int *members;      /* [ranks] team after team, in ascending order */
    const int *begin;        /* [count + 1] into members */
    const int *turns; /* [count] steps for each distance: a member fetches rows of one owner at a
                         time. Of distance 0: 0 */
    ra_block block;
} ra_teams;

/** @param hosts  [ranks], numbered by their first ranks; NULL: each rank is a team. Copied. */
RA_CHECKED ra_status ra_teams_init(int ranks, const int *hosts, ra_pool *pool, ra_teams *teams_out);
void ra_teams_fini(ra_pool *pool, ra_teams *teams);
int ra_teams_size(const ra_teams *teams, int team);
/** The rank at a place of a team; -1: it has no such place. */
int ra_teams_member(const ra_teams *teams, int team, int place);
int ra_teams_ahead(const ra_teams *teams, int team, int distance);
int ra_teams_behind(const ra_teams *teams, int team, int distance);
/** How far ahead of `from` a team is: 0 to count - 1. */
int ra_teams_distance(const ra_teams *teams, int from, int to);
/** The owners in one of these turns: place p of `team` fetches from the p-th. */
const int *ra_teams_owners(const ra_teams *teams, int team, int distance, int turn, int *count_out);
/** Rows of all members, one after the other; `rows` has those of each rank. */
RA_CHECKED ra_status ra_teams_rows(const ra_teams *teams, int team, const ra_rowset *rows,
                                   ra_pool *pool, ra_rowset *rows_out);

/* Sets of rows, one after the other, as one set: those with the numbers in `which`, or, if that is
   NULL, the first `count`; but not number `skipped`, -1: all. */
RA_CHECKED ra_status ra_rowset_join(const ra_rowset *sets, const int *which, int count, int skipped,
                                    ra_pool *pool, ra_rowset *joined_out);

/* What the other ranks need of one owner's rows. */
typedef struct ra_demand {
    ra_rowset rows;  /* needed by anyone */
    int first, last; /* distances of the nearest and farthest rank that needs any; 0: none */
} ra_demand;

/** @param queries    [ranks]: those of each rank that count.
    @param local_out  the rows as local numbers of the owner; may be NULL */
RA_CHECKED ra_status ra_demand_init(const ra_pattern *pattern, const ra_layout *layout,
                                    const ra_rowset *queries, ra_heads heads, int owner,
                                    ra_comm *comm, ra_pool *pool, ra_demand *demand_out,
                                    ra_rowset *local_out);
void ra_demand_fini(ra_pool *pool, ra_demand *demand);

/* Largest share of live pairs over the mean one that counts as balanced. */
#define RA_LAYOUT_IMBALANCE 1.05

/* What layout auto goes by: rows that are sent, where pairs are even enough, else the imbalance. */
typedef struct ra_layout_cost {
    double imbalance, rows;
} ra_layout_cost;

static inline bool ra_layout_is_even(const ra_layout_cost *cost)
{
    return cost->imbalance <= RA_LAYOUT_IMBALANCE;
}
/* Not of equals: estimates of equally many rows differ in their last bits. */
bool ra_layout_is_better(const ra_layout_cost *cost, const ra_layout_cost *best);

/* As ra_layout_init, but only balanced visits live pairs: the imbalance of others is left 0. */
RA_CHECKED ra_status ra_layout_deal(ra_layout_kind kind, const ra_pattern *pattern, int ranks,
                                    ra_comm *comm, ra_pool *pool, ra_layout *layout_out);

/**
 * Layout auto: the fewest rows sent in a forward pass among the balanced ones, else the best
 * balanced; the first of equals. A team is sent what it needs of an owner once; with `hops`, blocks
 * go from rank to rank instead, as with schedule ring. `comm`, whose other ranks wait, or NULL,
 * gets a heartbeat after every rank or team, and after every part of the live pairs.
 */
RA_CHECKED ra_status ra_layout_choose(const ra_pattern *pattern, const ra_teams *teams, bool hops,
                                      ra_comm *comm, ra_pool *pool, ra_layout *layout_out);

/* Held rows of one owner. */
typedef struct ra_part {
    int owner;
    int64_t first;  /* within the held rows */
    ra_tilemap map; /* backward: our queries against these; none where they are all held rows */
} ra_part;

/*
 * One step of a pass, as one rank sees it. Step 0 works on the rows of the own team, where they
 * lie. In a step s >= 1 the team holds rows of ranks of another one: each member fetches what any
 * of the team needs of one owner, or a round's part of it, and all read all of it. In the backward
 * pass members take turns: in turn j the one at place p alone adds to the gradients of part p + j.
 *
 * Partial gradients of the fetched rows are sent at the end of the step. With schedule ring they go
 * round with the keys: what arrives belongs to the next step's rows, or, in the last step, to our
 * own. Else they go to the owner at once, and those of rows that we sent arrive and are added.
 */
typedef struct ra_step {
    ra_tilemap map; /* our queries against the held rows; no runs: nothing is computed */
    ra_part *parts;
    int part_count;
    int64_t held_rows;                   /* of all parts */
    int64_t fetched_first, fetched_rows; /* of them, by us; no rows: no message */

    int held_from, sent_to; /* keys and values */
    int64_t sent_rows;      /* 0: no message */
    ra_rowset sent_local; /* our own, by local numbers; empty: none is sent, or those held before */

    int grad_to, grad_from;
    int64_t grad_rows;                   /* held rows that have gradients so far */
    int64_t grad_out_rows, grad_in_rows; /* 0: no message */
    /* Incoming rows are added to these of ours; NULL: to the next step's. */
    const ra_rowset *grad_home;
} ra_step;

/* The steps for one set of heads and one part of every rank's queries; as many on every rank. */
typedef struct ra_plan {
    ra_step *steps;
    int step_count;
    int last_grads; /* the last step in which this rank's gradients travel, with schedule shared
                       any of its team's, which meets in every step; 0: none */
    ra_block block;
    /* The ring adds what its kernel takes: */
    ra_block chunk_steps; /* where the kernel reads it; empty: state is carried for all rows */
    int64_t state_rows;   /* per head; 0: no step leaves any to another */
} ra_plan;

typedef struct ra_plan_request {
    const ra_pattern *pattern;
    const ra_layout *layout;
    const ra_rowset *queries; /* [ranks]: the rows of the layout, or a part of those of each rank */
    const ra_teams *teams;
    ra_schedule schedule; /* not AUTO; only SHARED has teams of several ranks */
    ra_comm *comm;        /* whose other ranks wait for this one; or NULL */
    int rank;
    ra_heads heads;
    int rounds;              /* at least 1 */
    ra_pattern_cache *cache; /* or NULL */
    bool dense_mask;
    int32_t tile_rows;
    bool by_keys; /* maps have an index of runs by keys */
    bool backward;
} ra_plan_request;

RA_CHECKED ra_status ra_plan_init(const ra_plan_request *request, ra_pool *pool, ra_plan *plan_out);
/* Parts of it: the steps of schedule ring; the map of our queries against `keys`. */
RA_CHECKED ra_status ra_plan_init_ring(const ra_plan_request *request, ra_pool *pool,
                                       ra_plan *plan);
RA_CHECKED ra_status ra_plan_init_map(const ra_plan_request *request, const ra_rowset *keys,
                                      ra_pool *pool, ra_tilemap *map);
void ra_plan_fini(ra_pool *pool, ra_plan *plan);

/** Whether every rank needs every row of every other; comm as ra_layout_choose takes it. */
RA_CHECKED ra_status ra_plan_is_full(const ra_pattern *pattern, const ra_layout *layout,
                                     ra_comm *comm, ra_pool *pool, bool *full_out);

/* On every rank. */
int ra_plan_count_steps(const ra_teams *teams, int rounds);
/* As many as are asked for, or those that auto tries first; 1 where nothing travels. */
int32_t ra_plan_first_rounds(const ra_ring_config *config, const ra_teams *teams);
/* What rounds auto tries if so many do not fit; 0: nothing more, or the steps get too many. */
int32_t ra_plan_more_rounds(const ra_ring_config *config, const ra_teams *teams, int32_t rounds);
/* The rank whose keys a step works on; -1: there are several. */
int ra_step_owner(const ra_step *step);
/** Steps that compute. */
int ra_plan_live_steps(const ra_plan *plan);

/*
 * Communication memory of a step: this rank's, or, with schedule shared and for what the team
 * reads or adds to, the team's. Standing buffers are taken once; else step by step.
 */
typedef struct ra_region {
    ra_block block;
    ra_window window;
} ra_region;

enum { RA_BUFFERS_MAX = 2 };

/*
 * What is computed together: heads, or, of one query head, a part of every rank's queries. Query
 * heads of one key head, and parts, may be in several groups, one after the other: its keys travel
 * for each of them, and its gradients are sums over all.
 */
typedef struct ra_head_group {
    int32_t q_begin, q_count, kv_begin, kv_count;
    int32_t q_part, q_parts;     /* which part of the queries, of how many; 0 of 1: all */
    bool begins_keys, ends_keys; /* the first, and the last, of those that share its keys */
} ra_head_group;

/* Of a rank's so many queries: where those of a group begin, and their number. */
int64_t ra_head_group_begin(const ra_head_group *group, int64_t rows);
int64_t ra_head_group_rows(const ra_head_group *group, int64_t rows);

/* A group's queries of every rank; of all parts, the layout's rows, borrowed. */
typedef struct ra_group_queries {
    const ra_rowset *rows; /* [ranks] */
    ra_block block;        /* empty where they are borrowed */
} ra_group_queries;

RA_CHECKED ra_status ra_group_queries_init(const ra_layout *layout, const ra_head_group *group,
                                           ra_pool *pool, ra_group_queries *queries_out);
void ra_group_queries_fini(ra_pool *pool, int ranks, ra_group_queries *queries);

/* Two views of the same rows: keys and values, or dk and dv. */
typedef struct ra_pair_view {
    ra_view first, second;
} ra_pair_view;

/* An exchange on its way, and its events where there is a trace. */
typedef struct ra_flight {
    ra_transfer *transfer; /* NULL: none */
    ra_trace_kind wait_kind;
    int step, peer;
    int64_t bytes, rows; /* of what is waited for */
    int64_t send_mark, recv_mark;
} ra_flight;

/* What linear attention keeps of one head group, in float32; see linear.h for what it holds. */
typedef enum ra_linear_part {
    RA_LINEAR_STATES,
    RA_LINEAR_SUMS, /* several ranks: our own states, of those before, of those after */
    RA_LINEAR_GRADS,
    RA_LINEAR_LINES,
    RA_LINEAR_PREFIXES,
    RA_LINEAR_PARTS
} ra_linear_part;

typedef struct ra_ring_linear {
    ra_block parts[RA_LINEAR_PARTS];
    ra_block host_sums;   /* where the host has the sums, if it does not reach them */
    ra_memory memory;     /* where all but host_sums lies */
    int32_t states_group; /* whose states are ready; -1: none */
} ra_ring_linear;

struct ra_ring {
    ra_ring_config config;
    const ra_pattern *pattern;
    ra_comm *comm;
    ra_kernel *kernel;
    uint64_t number;           /* among the kernel's rings, from 1 */
    ra_pool *pool, *host_pool; /* the same one where kernels compute in host memory */
    ra_pool *buffer_pool;      /* of standing buffers; pool, or one of ra_comm_memory */
    ra_layout layout;
    ra_teams teams;
    ra_schedule schedule;
    ra_ring_mode mode;
    int32_t group_count;
    int32_t rounds; /* of the plans; 1 where nothing travels */
    ra_plan *plans; /* one per head group where heads differ, else one per part of the queries */
    int32_t plan_count;
    ra_block plans_block;
    ra_region held[RA_BUFFERS_MAX], partial[RA_BUFFERS_MAX], arriving;
    ra_region sent; /* packed rows; schedule ring has these in held, too */
    ra_block state; /* forward: acc, top, sum of one head group */
    ra_block grads; /* backward: dq, dk, dv in float32 of one head group, where not the outputs */
    ra_block delta; /* [batch][heads][rows], from the forward pass, or from rounded outputs */
    bool has_delta; /* the last forward pass was given dout */
    ra_flight keys_flight, grads_flight;
    bool failed_together;        /* the last pass, on all ranks at the same step */
    bool may_compute;            /* the last pass failed: kernels of it may still be at work */
    const char *pass;            /* "forward", "backward", for errors; NULL: between passes */
    int step;                    /* of the pass that is under way */
    ra_kernel_poll *caller_poll; /* the kernel's, between passes */
    void *caller_poll_context;
    ra_trace *trace;                   /* NULL: nothing is recorded */
    ra_window key_window, grad_window; /* schedule shared */
    ra_ring_linear linear;             /* schedule scan */
};

/* Shapes and bytes of a group. */
ra_head_group ra_ring_group_of(const ra_ring_config *config, int32_t group_count, int32_t group);
/* Whether there can be so many: 1 to kv_heads, or, of softmax attention, a multiple of kv_heads up
   to heads, or one of heads up to RA_QUERY_PARTS_MAX times. Of so many groups the last is the
   largest, the first the smallest. */
bool ra_ring_has_groups(const ra_ring_config *config, int32_t group_count);
/* Parts of every rank's queries in so many groups. */
int32_t ra_ring_parts(const ra_ring_config *config, int32_t group_count);
/* Plans of so many groups: one for each part, or, where heads differ in what they need of others,
   for each group. Group g goes by plan g modulo that. */
int32_t ra_ring_plan_count(const ra_ring_config *config, const ra_pattern *pattern, int teams,
                           int32_t group_count);
/* Of which heads such a plan is: of its group's, or of all. */
ra_heads ra_ring_plan_heads(const ra_ring_config *config, int32_t group_count, int32_t plan_count,
                            int32_t plan);
/* The most groups that auto takes: of an even share of the rows, parts are no shorter than a tile.
   `materialises`: scores, which are those of all queries. */
int32_t ra_ring_most_groups(const ra_ring_config *config, int ranks, int32_t tile_rows,
                            bool materialises);
/*
 * How many groups auto begins with. A row of keys travels with all heads of its group: where heads
 * of dilated branches see different rows of others, as many groups as leave each enough work, if
 * that saves a quarter of what is sent. Else 1.
 */
int32_t ra_ring_fewest_groups(const ra_ring_config *config, const ra_pattern *pattern, int ranks,
                              int teams);
/* Bytes of a plan. */
typedef struct ra_plan_bytes {
    int64_t maps, chunks; /* where kernels read them: its maps, the list of their chunks' steps */
    int64_t others;       /* steps and lists of rows; 0 if kernels read other memory */
} ra_plan_bytes;

static inline int64_t ra_plan_bytes_sum(ra_plan_bytes bytes)
{
    return bytes.maps + bytes.chunks + bytes.others;
}

/*
 * Estimate of what plans of so many groups take beyond that of all heads and all queries. Each set
 * of parts has all chunks. Maps together take at least what those of the one plan do; more where a
 * layer's heads are in several groups, where parts need other keys in a round than all queries do,
 * and where each is rounded. How much more, `stretch`, is seen when they are there.
 */
int64_t ra_ring_more_plan_bytes(const ra_ring_config *config, int32_t groups, int32_t plans,
                                const ra_plan_bytes *whole, double stretch);
ra_head_group ra_ring_group(const ra_ring *ring, int32_t group);
const ra_plan *ra_ring_plan(const ra_ring *ring, int32_t group);
ra_kernel_shape ra_ring_shape(const ra_ring *ring, const ra_head_group *group);
int64_t ra_ring_local_rows(const ra_ring *ring);
/* This rank's place in its team, and how many ranks that has. */
int ra_ring_place(const ra_ring *ring);
int ra_ring_team_size(const ra_ring *ring);

/*
 * Parts of ra_ring_create, in this order: the pool of buffers; plans, in as many groups and rounds
 * as the available memory wants; memory for passes; and what is collective, so that earlier
 * failures are agreed on first: the last gradients, and windows.
 */
RA_CHECKED ra_status ra_ring_make_buffer_pool(ra_ring *ring);
RA_CHECKED ra_status ra_ring_make_plans(ra_ring *ring);
RA_CHECKED ra_status ra_ring_make_memory(ra_ring *ring);
RA_CHECKED ra_status ra_ring_settle_last_grads(ra_ring *ring);
RA_CHECKED ra_status ra_ring_make_windows(ra_ring *ring);
/** What of a configuration is wrong whatever the pattern is: RA_ERR_INVALID, and a line.
    materialises: scores, which are those of all queries. */
RA_CHECKED ra_status ra_ring_check_config(const ra_ring_config *config, bool materialises);
ra_stored_grads ra_ring_direct_grads(const ra_ring *ring, const ra_plan *plan,
                                     const ra_head_group *group);
void ra_ring_give_plan(ra_ring *ring, ra_plan *plan); /* and its maps; a zeroed one is fine */
void ra_ring_give_plans(ra_ring *ring);

/* Bytes that so many groups need, as the ledger will count them; *buffers_out: the part of what
   more rounds make smaller. */
typedef int64_t ra_group_bytes(const void *context, int32_t groups, int64_t *buffers_out);

/* Numbers of groups, with a plan of all heads in so many rounds. FUTILE: tensors alone leave no
   room, so that no choice fits, and none but groups of whole heads is looked at. */
enum { RA_GROUPS_NONE = INT32_MAX - 1, RA_GROUPS_FUTILE };
typedef struct ra_groups_found {
    int32_t fit;   /* that are taken as they fit: the fewest, or those that send less; or NONE */
    int32_t could; /* the fewest that would without what more rounds make smaller; NONE; FUTILE */
    int32_t least; /* `fit`, or, if none, those of kv_heads and more that need least */
    int64_t lack_bytes; /* once settled for all ranks: of those taken, where most are lacking */
} ra_groups_found;

static inline int32_t ra_groups_taken(ra_groups_found found)
{
    return found.fit != RA_GROUPS_NONE ? found.fit : found.least;
}

/* Of as many groups as were asked for, or of all numbers up to `most`: first of `fewest`, if they
   fit. `room`: beside the one plan, which takes plan_bytes. */
ra_groups_found ra_ring_find_groups(const ra_ring_config *config, ra_group_bytes *bytes_of,
                                    const void *context, int64_t room, int64_t plan_bytes,
                                    int32_t fewest, int32_t most);

/* Whether groups or rounds are auto's, and there is a choice. */
bool ra_ring_may_choose(const ra_ring_config *config, const ra_teams *teams);

typedef struct ra_plans_choice {
    int32_t groups, rounds;
} ra_plans_choice;

/* What plans were seen to take once they were made. */
#define RA_LACK_UNKNOWN INT64_MAX /* memory did not suffice to make them */
typedef struct ra_plans_made {
    int64_t lack_bytes; /* that passes lack beside them; not above 0: they fit */
    double stretch;     /* their maps, of those of the one plan */
} ra_plans_made;

/* What makes plans for ra_choose_plans. Each call takes the place of what those before it made.
   may_lack: lacking memory ends nothing, as others may be chosen. */
typedef struct ra_plans_maker {
    const ra_ring_config *config;
    const ra_teams *teams;
    void *context;
    /* The one plan of all heads and queries, and what fits beside it if the maps of several take
       `stretch` times its own; nothing, if memory does not even suffice for it. */
    ra_status (*make_whole)(void *context, int32_t rounds, double stretch, bool may_lack,
                            ra_groups_found *found_out);
    /* The plans of a choice: that one, if it serves all groups. *made_out if may_lack. */
    ra_status (*make_all)(void *context, ra_plans_choice choice, bool may_lack,
                          ra_plans_made *made_out);
} ra_plans_maker;

/*
 * Plans in as many groups and rounds as fit. Several plans are chosen by an estimate, a low one of
 * their maps. If they do not fit once they are made, they are chosen again with what they took,
 * some times; in the end, what lacked least of all that was tried is taken.
 */
RA_CHECKED ra_status ra_choose_plans(const ra_plans_maker *maker);

/* Whether lse is among the caller's tensors. */
static inline bool ra_ring_has_lse(const ra_ring_config *config)
{
    return config->linear == RA_LINEAR_NONE && (config->backward || config->lse_follows);
}

/* Auto may have chosen schedule ring, which has one round. */
static inline ra_schedule ra_schedule_of_rounds(ra_schedule chosen, int32_t rounds)
{
    return chosen == RA_SCHEDULE_RING && rounds > 1 ? RA_SCHEDULE_DIRECT : chosen;
}

/* Collective: bytes that this rank's ring may take beside the caller's tensors. Boundless, and not
   read, if neither groups nor rounds are chosen by it. */
RA_CHECKED ra_status ra_ring_read_room(ra_ring *ring, int64_t *bytes_out);
/* Collective: the number of head groups, and on every rank what was found for all. Ranks may have
   different room: the largest number wins; `fit` is NONE if that does not fit everywhere. */
RA_CHECKED ra_status ra_ring_settle_groups(ra_ring *ring, ra_group_bytes *bytes_of,
                                           const void *context, int64_t room, int64_t plan_bytes,
                                           int32_t fewest, ra_groups_found *found_out);

/* Bytes of accumulators, buffers and what a forward step gives back with so many groups of one
 * plan, as the ledger will count them; *buffer_bytes_out: but for accumulators. */
int64_t ra_ring_group_bytes(const ra_ring *ring, const ra_plan *plan, int32_t groups,
                            int64_t *buffer_bytes_out);

/* Likewise of the ring's plans and groups. */
int64_t ra_ring_pass_bytes(const ra_ring *ring);

/* The worst status of all ranks, on all of them. */
RA_CHECKED ra_status ra_ring_agree(ra_ring *ring, ra_status mine);

/*
 * Schedule shared: windows, collective over all ranks (`bytes` may be 0 if another team has more),
 * and views of a member's rows in them. A rank is charged for the share of its own rows. `mine`:
 * this rank's status so far; if any has failed, no window is made and all fail.
 */
RA_CHECKED ra_status ra_shared_take(ra_ring *ring, ra_status mine, ra_category category,
                                    size_t bytes, ra_window *window);
void ra_shared_give(ra_ring *ring, ra_category category, ra_window *window);
int64_t ra_shared_share(const ra_ring *ring, size_t bytes);
int64_t ra_shared_team_rows(const ra_ring *ring);
/* Barrier of the team; schedules that share nothing have nobody to wait for. */
RA_CHECKED ra_status ra_shared_barrier(ra_ring *ring, const char *operation, int step);
ra_pair_view ra_shared_keys(const ra_ring *ring, int32_t head, int place);
ra_pair_view ra_shared_grads(const ra_ring *ring, const ra_head_group *group, int place);

/*
 * Linear attention. Make is the part of ra_ring_create after the layout: groups and all memory;
 * collective, and every rank returns the same.
 */
RA_CHECKED ra_status ra_linear_make(ra_ring *ring);
void ra_linear_give(ra_ring *ring);
/* Largest share of rows over the mean one: work grows with rows, not with the pairs that the layout
   counts. */
double ra_linear_imbalance(const ra_layout *layout, int64_t seq);
RA_CHECKED ra_status ra_linear_forward_group(ra_ring *ring, const ra_ring_tensors *tensors,
                                             int32_t group);
RA_CHECKED ra_status ra_linear_backward_group(ra_ring *ring, const ra_ring_tensors *tensors,
                                              int32_t group);

/*
 * Take a region of `bytes` for one step (comm_buffers 0), or find it standing; and give it back.
 * Of no bytes a region is left as it is. Taking a team's region for one step is collective over all
 * ranks: a failed rank takes part with its status, `mine`; otherwise a failed `mine` is returned at
 * once. Standing regions are buffers; a step's are its workspace, from the pool, which holds what
 * the step before gave back.
 */
RA_CHECKED ra_status ra_region_take(ra_ring *ring, ra_region *region, size_t bytes);
RA_CHECKED ra_status ra_region_take_shared(ra_ring *ring, ra_status mine, ra_region *region,
                                           size_t bytes);
void ra_region_give(ra_ring *ring, ra_region *region);
void *ra_region_data(const ra_region *region);

/* Bytes of `rows` rows of keys and values in the job's dtype, or of their gradients in float32. */
size_t ra_ring_keys_bytes(const ra_ring *ring, int32_t kv_heads, int64_t rows);
size_t ra_ring_grads_bytes(const ra_ring *ring, int32_t kv_heads, int64_t rows);

/*
 * Row after row; a row has first one tensor for all batches, then the other. So any run of rows is
 * contiguous: one message.
 */
ra_pair_view ra_ring_pair(const ra_ring *ring, int32_t kv_heads, void *data, ra_dtype dtype);
/* The same views from row `rows` on. */
ra_pair_view ra_pair_skip(const ra_pair_view *pair, int64_t rows);

/*
 * Keys and values of step s, one step after the other: *held_out is its block (nothing to be read
 * if nothing came), in step 0 the team's rows, where they lie. With two buffers those of step s + 1
 * are on their way then. `own` are the group's own keys and values.
 */
RA_CHECKED ra_status ra_keys_bring(ra_ring *ring, const ra_plan *plan, const ra_head_group *group,
                                   int step, const ra_pair_view *own, const char *operation,
                                   ra_pair_view *held_out);
/* Step s has computed: its block is given back, unless step s + 1 sends it on. */
void ra_keys_leave(ra_ring *ring, const ra_plan *plan, int step);
/* Whether what a step sends are rows that the step before held, not our own. */
static inline bool ra_keys_hop(ra_schedule schedule, int step)
{
    return schedule == RA_SCHEDULE_RING && step > 1;
}

/* Which region a step uses for held rows: one serves all; two take turns if one is written while
   the other is read or sent on. */
static inline int ra_keys_slot(const ra_ring_config *config, ra_schedule schedule, int step)
{
    return config->comm_buffers == 2 || schedule == RA_SCHEDULE_RING ? step % 2 : 0;
}

/* And for their gradients: while one is computed, the one before travels. */
static inline int ra_grads_slot(const ra_ring_config *config, int step)
{
    return config->comm_buffers == 2 ? step % 2 : 0;
}

/*
 * Backward: the own step's heads are computed in two parts, one while the first step's keys come,
 * one while the last gradients travel. Lots of heads that either may have: key heads, or the query
 * heads of a single one; and how many come early, as keys are to their gradients in bytes. A single
 * lot comes late where gradients are longer. All ranks deal alike: members of a team wait for each
 * other.
 */
static inline int32_t ra_own_lots(const ra_head_group *group)
{
    return group->kv_count > 1 ? group->kv_count : group->q_count;
}

static inline int32_t ra_early_lots(int32_t lots, ra_dtype dtype)
{
    double const keys = (double)ra_dtype_bytes(dtype), grads = sizeof(float);
    return (int32_t)(keys / (keys + grads) * lots + 0.5);
}

/*
 * Start an exchange, and wait for it; NULL transfer: RA_OK at once. `kind` is that of the send:
 * receiving and waiting come next to it.
 */
RA_CHECKED ra_status ra_flight_start(ra_ring *ring, ra_flight *flight, const ra_exchange *exchange,
                                     ra_trace_kind kind, int64_t sent_rows, int64_t recv_rows);
RA_CHECKED ra_status ra_flight_wait(ra_ring *ring, ra_flight *flight);

/* Whether an exchange was started that nobody has waited for yet. */
static inline bool ra_ring_is_exchanging(const ra_ring *ring)
{
    return ring->keys_flight.transfer != NULL || ring->grads_flight.transfer != NULL;
}

/* Whether the kernel's table takes memory in its steps. */
bool ra_ring_steps_can_fail(const ra_ring *ring);
/*
 * A kernel's status, or, if its table takes memory in its steps, the worst of all ranks': so no
 * rank waits for one that has given up, and a job can go on to its next try. All wait for
 * what is in flight first, also who had nothing to compute: messages between GPUs need not progress
 * while ranks agree, and the others do not come to that before they have theirs.
 */
RA_CHECKED ra_status ra_ring_agree_on_step(ra_ring *ring, ra_status mine);
/*
 * Before a step of such a table on a GPU: wait for all that is in flight, because giving memory
 * back there waits for messages too, without a deadline.
 */
RA_CHECKED ra_status ra_ring_wait_flights(ra_ring *ring);
/* As ra_ring_agree_on_step, if steps take communication buffers, for the status of taking one. */
RA_CHECKED ra_status ra_ring_agree_on_taken(ra_ring *ring, ra_status mine);
/* A pass, from its first event to its last: `begin` (or NULL), then head group by head group. */
RA_CHECKED ra_status
ra_ring_run_pass(ra_ring *ring, const ra_ring_tensors *tensors, bool backward,
                 ra_status (*begin)(ra_ring *ring, const ra_ring_tensors *tensors),
                 ra_status (*work)(ra_ring *ring, const ra_ring_tensors *tensors, int32_t group));

/*
 * Events: begin returns a mark, or -1 if the trace is full; end takes a mark that is not -1. The
 * functions of a ring below may be called with any mark, and without a trace.
 */
int64_t ra_trace_begin(ra_trace *trace, ra_trace_kind kind, int step, int peer, int64_t bytes,
                       int64_t rows);
void ra_trace_end(ra_trace *trace, int64_t mark);
int64_t ra_ring_mark_pass(const ra_ring *ring, ra_trace_kind kind);
/* Called after all that the pass waits for; on success, the device's times replace the host's. */
void ra_ring_mark_pass_end(const ra_ring *ring, int64_t mark, ra_status status);
/* How to time an exchange that is about to start, whose events begin at `first`. */
ra_timed ra_ring_timed(const ra_ring *ring, int64_t first, int32_t count);
int64_t ra_ring_mark_group(const ra_ring *ring, int32_t group);
int64_t ra_ring_mark_step(const ra_ring *ring, const ra_plan *plan, int step);

static inline int64_t ra_ring_mark(const ra_ring *ring, ra_trace_kind kind, int step, int peer,
                                   int64_t bytes, int64_t rows)
{
    return ring->trace == NULL ? -1 : ra_trace_begin(ring->trace, kind, step, peer, bytes, rows);
}

static inline void ra_ring_mark_end(const ra_ring *ring, int64_t mark)
{
    if (mark >= 0)
        ra_trace_end(ring->trace, mark);
}

/* This rank's rows of a tensor with so many heads, from head `head_begin` on. */
ra_view ra_ring_view(const ra_ring *ring, const void *data, int32_t heads, int32_t head_begin);
/* A group's heads of two tensors that are shaped as k. */
ra_pair_view ra_ring_key_views(const ra_ring *ring, const void *first, const void *second,
                               const ra_head_group *group);
/* A group's heads and rows of a tensor that is shaped as q; and this rank's number of such rows. */
ra_view ra_ring_query_view(const ra_ring *ring, const void *data, const ra_head_group *group);
int64_t ra_ring_query_rows(const ra_ring *ring, const ra_head_group *group);
/* Where the group's lines begin in an array [batch][heads][rows]; of parts there is one head, so
   that the next one's are nowhere asked for. */
int64_t ra_ring_first_line(const ra_ring *ring, const ra_head_group *group);
ra_pair_view ra_ring_own_keys(const ra_ring *ring, const ra_ring_tensors *tensors,
                              const ra_head_group *group);

#endif
