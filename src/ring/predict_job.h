/* Private to predictions (predict*.c): rows, needs, tile maps and steps while they are counted. */
#ifndef RINGATTN_PREDICT_JOB_H
#define RINGATTN_PREDICT_JOB_H

#include "ring/ring_internal.h"
#include "ringattn/predict.h"

/* Rows of which blocks are kept by chance. */
typedef struct ra_thin_range {
    ra_range rows;
    double miss; /* log of the chance that no query that sees a block keeps it */
} ra_thin_range;

/* Strided ranges of one owner's local rows, as they come; then as the ring lists them. */
typedef struct ra_need {
    ra_range *items;
    int64_t count, room;
    int64_t ordered; /* items that are sorted and disjoint; those behind them are new */
    ra_strides strides;
    int64_t row_count;   /* once listed; for random blocks, the expected value */
    int64_t piece_count; /* likewise; then items are all that may be among them */
    ra_thin_range *thin; /* random blocks, until they are listed */
    int64_t thin_count, thin_room;
} ra_need;

/* Keys of a map: rows that may be among them, and how many rows and pieces really are. */
typedef struct ra_predict_keys {
    ra_rowset set;
    int64_t row_count, piece_count;
} ra_predict_keys;

/* Where a piece of some rank's rows lies in the sequence. */
typedef struct ra_placed_piece {
    int64_t begin, last; /* global rows */
    int owner;
    const ra_row_piece *piece;
} ra_placed_piece;

/* The size of a tile map that is never made; counts of sampled chunks are scaled. */
typedef struct ra_map_size {
    double tiles, runs;
    double pairs, keys; /* over the heads asked for, one batch; keys: rows of keys of runs */
    int64_t rows;       /* queries in chunks with a live pair of any of these heads */
    int64_t bytes;      /* of its arrays */
    int64_t mask_bytes; /* of the block mask that it is made from, a separate block */
    int64_t k_rows;     /* rows of keys */
    int64_t kept_bytes; /* of the pattern cache's entry, if it is kept */
    bool is_empty;      /* no keys: to the cache all such maps of a plan are the same */
} ra_map_size;

/* Maps of one plan, by where they may lie. */
typedef struct ra_map_sum {
    int64_t bytes, kept_bytes, count; /* of those with keys: as the pool and the cache round them */
    int64_t copy_bytes;               /* on a GPU, of all */
    int64_t empty_bytes, empty_kept_bytes, empty_count; /* bytes: of one */
} ra_map_sum;

typedef struct ra_predict_step {
    ra_map_size map;
    int64_t *part_keys; /* [part_count]; 0: no live pair. Owned; NULL: parts are not computed
                           separately */
    int part_count;
    int held_from;                   /* -1: from several */
    int64_t held_rows, fetched_rows; /* of the team, and of this rank */
    int64_t sent_rows, grad_rows, grad_out_rows, grad_in_rows;
    int64_t sent_pieces; /* of the row set of our rows that are sent; 0: none is kept */
} ra_predict_step;

/* Queries that a look at a chunk stands for: those with live pairs in the map that is counted; and
   the most, and second most, of any map of the plan: at least two of its steps see the latter. */
typedef struct ra_predict_look {
    int64_t now, most, second;
} ra_predict_look;

/* The chunks that were looked at in the maps of one plan, as long as these have the same chunks. */
typedef struct ra_predict_looks {
    ra_predict_look *items; /* owned; NULL until one has a live pair */
    int64_t count;
    int64_t chunk_rows, chunk_count; /* of the maps, looked at or not */
    bool settled;                    /* chunk_rows is that of a map with live pairs */
    bool differ;                     /* another such map has other chunks */
} ra_predict_looks;

/* The steps of one rank for some heads. */
typedef struct ra_predict_plan {
    ra_predict_step *steps; /* [step_count], which is the job's where it is looked at */
    int step_count;
    ra_map_sum part_maps; /* of single parts of steps */
    ra_predict_looks looks;
} ra_predict_plan;

typedef struct ra_predict_job {
    const ra_predict_request *request;
    ra_ledger *ledger;    /* of the pattern's own description, and of the layout */
    ra_pool *pool;        /* of host memory, in the mode that the job's own has there */
    ra_pattern *pattern;  /* if random blocks are too many, with all of them kept */
    ra_pattern *diagonal; /* the blocks that are surely kept; NULL: the pattern is exact */
    int64_t pattern_bytes;
    int64_t making_bytes; /* the most that making it took */
    int64_t pieces;       /* most strips of a chunk, among all maps */

    int ranks;
    ra_layout layout;         /* the one at hand; its imbalance is measured here */
    const ra_rowset *rows;    /* [ranks] of it */
    const ra_rowset *queries; /* [ranks]: rows, or those of the part whose plans are made */
    int64_t piece_count;      /* of all of them */
    ra_placed_piece *placed;  /* [piece_count], by their first rows */
    bool apart;               /* each ends before the next begins */
    bool left_out[RA_LAYOUT_AUTO];
    ra_schedule schedule;
    bool hops_left_out; /* the ring would take them */
    ra_teams teams;
    int step_count;
    int32_t groups, rounds;
    bool tried_rounds; /* others than these, whose maps a pattern cache may still keep */
    bool tried_plans;  /* others than these, which may have taken more before they were refused */
    double looks;      /* at slices, the least that plans of so many rounds take */

    int followed[RA_PREDICT_RANKS_ALL]; /* ranks, ascending */
    int followed_count;
    double weights[RA_PREDICT_RANKS_ALL]; /* ranks that each of them stands for, linearly between */
    double areas[RA_PREDICT_RANKS_ALL];   /* of followed ranks: live pairs, one batch */
    double area;                          /* of all ranks: live pairs, one batch */
    double *halves; /* [2 * ranks] of halves of contiguous shards; owned; NULL: not looked at */
    int readers;    /* whose needs share the visits to slices */
    /* Of more ranks than are followed, if their needs are counted: what they send, over all head
       groups and both passes, and what of it goes between nodes. */
    bool has_crossed;
    double crossed_bytes, crossed_network_bytes;
    bool sampled;
} ra_predict_job;

/* To be called in every loop over the pattern, or over what was gathered from it. */
static inline void ra_predict_beat(const ra_predict_job *job)
{
    ra_comm_beat(job->request->comm);
}

RA_CHECKED ra_status ra_predict_take(void *pointer_out, int64_t count, size_t item_bytes);
/* Room for more items, doubled; `array` points to their pointer, which is NULL while there is none.
 */
RA_CHECKED ra_status ra_predict_grow(void *array, int64_t *room, size_t item_bytes);
/* Append a copy of an item to such an array. */
RA_CHECKED ra_status ra_predict_push(void *array, int64_t *count, int64_t *room, const void *item,
                                     size_t item_bytes);
/* Bound of bytes that may exceed any memory, and any integer: such numbers can still be added. */
#define RA_PREDICT_BYTES_MOST ((int64_t)1 << 60)
int64_t ra_predict_bounded(double bytes);
void ra_predict_add_bytes(int64_t *sum, int64_t bytes);
/* Bytes as the job's pool rounds them, where kernels work, and where plans and tile maps lie. */
int64_t ra_predict_round(const ra_predict_job *job, int64_t bytes);
int64_t ra_predict_round_host(const ra_predict_job *job, int64_t bytes);
int64_t ra_predict_round_buffer(const ra_predict_job *job, int64_t bytes); /* of messages */

/* Make the rows of all ranks, measure the imbalance, and resolve layout auto. */
RA_CHECKED ra_status ra_predict_layout(ra_predict_job *job);
/* Of more ranks than are followed: follow the busiest, too, if it is busier than these. */
void ra_predict_follow_busiest(ra_predict_job *job);
void ra_predict_weigh_followed(ra_predict_job *job);
void ra_predict_free_rows(ra_predict_job *job);

/*
 * What the ranks [reader, reader + count) together need of each other rank; with count 0, what is
 * needed of each rank by any other: in the ring's order, in an array taken here, to be freed
 * whatever is returned.
 */
RA_CHECKED ra_status ra_predict_needs_of(ra_predict_job *job, ra_heads heads, int reader, int count,
                                         ra_need **needs_out);
/* A part of that: ranges as they come, into an entry for each rank, zeroed before. */
RA_CHECKED ra_status ra_predict_touch(ra_predict_job *job, ra_heads heads, int reader, int count,
                                      ra_need *needs);
/** All rows of a set, piece by piece. The caller frees the items. */
RA_CHECKED ra_status ra_predict_need_all(const ra_rowset *rows, ra_need *need_out);
void ra_predict_free_needs(ra_need *needs, int count);
/* The part of a listed need that travels in a round; its items are the caller's to free. */
RA_CHECKED ra_status ra_predict_need_of_round(const ra_predict_job *job, const ra_need *need,
                                              int round, ra_need *part_out);

RA_CHECKED ra_status ra_predict_push_range(ra_need *need, ra_range range);
/* Push the rows that are not there yet. Time: logarithmic in the number of disjoint ranges. */
RA_CHECKED ra_status ra_predict_add_range(ra_need *need, ra_range range);
/* Sorted, merged, and cut where the owner's pieces end. */
RA_CHECKED ra_status ra_predict_list_unit(ra_need *need, const ra_rowset *owner);

/* Rows of an owner of which long stretches that repeat are shortened (predict_fold.c). */
typedef struct ra_fold {
    int64_t *edges, *folded; /* [count]: where ranges and pieces begin and end, and shortened */
    int64_t count;
    int64_t period; /* of rows between two edges; 0: they do not repeat */
    int64_t reach;  /* rows at either end of such a stretch that are kept */
} ra_fold;

/** To be freed whatever is returned. A need of an owner with rows. */
RA_CHECKED ra_status ra_fold_init(const ra_need *need, const ra_rowset *owner, ra_fold *fold_out);
void ra_fold_fini(ra_fold *fold);
int64_t ra_fold_edge(const ra_fold *fold, int64_t edge);
/** One of the need's, and one that was found among what is left. */
ra_range ra_fold_range(const ra_fold *fold, ra_range range);
ra_range ra_unfold_range(const ra_fold *fold, ra_range range);

/* Random blocks that are too many to be counted (predict_random.c): whether they are, the pattern
   without them, and what they would have taken. */
bool ra_predict_is_thin(const ra_predict_request *request);
RA_CHECKED ra_status ra_predict_make_thin(ra_predict_job *job);
/*
 * As ra_pattern_visit. *chance_out: before every visit, how likely each block of the slice is kept;
 * if below 1, all queries of the slice see all its keys, and lie in one row of blocks.
 */
RA_CHECKED ra_status ra_predict_visit(const ra_predict_job *job, int32_t layer, int64_t q_begin,
                                      int64_t q_count, ra_slice_visitor *visit, void *context,
                                      double *chance_out);
/* Expected live pairs with queries in a range of rows, over all heads. */
double ra_predict_area(const ra_predict_job *job, ra_range queries);
/* Expected number of times that runs of a row join because no block between them is held; `share`:
   of the blocks that may be kept, those that are held. */
double ra_predict_joined_runs(double chance, double share, int64_t blocks);
/* A range of local rows that so many rows of blocks see, with that chance each. */
RA_CHECKED ra_status ra_predict_add_thin(ra_need *need, ra_range range, double chance,
                                         double rows_of_blocks);
RA_CHECKED ra_status ra_predict_list_thin(const ra_predict_job *job, int owner, ra_need *need);

/* The map of `queries` against `keys`, with at most `chunks_max` chunks looked at. `looks`: of the
   map's plan, or NULL. */
RA_CHECKED ra_status ra_predict_map(ra_predict_job *job, ra_heads heads, const ra_rowset *queries,
                                    const ra_predict_keys *keys, int64_t chunks_max,
                                    ra_predict_looks *looks, ra_map_size *size_out);
/* Before the chunks of a map are looked at, which may happen again with smaller ones. */
void ra_predict_begin_looks(ra_predict_looks *looks, int64_t chunk_rows, int64_t chunk_count);
/* Look `index` of `count` stands for so many more queries with live pairs. */
RA_CHECKED ra_status ra_predict_look_at(ra_predict_looks *looks, int64_t count, int64_t index,
                                        int64_t rows);
/* After all looks at a map with live pairs. *rows: its queries in chunks with live pairs, unless
   its chunks are not those of the others. */
void ra_predict_end_looks(ra_predict_looks *looks, int64_t chunk_rows, int64_t *rows);
/* Lists of a block mask: RA_MASK_BLOCK rows on a side, int32 indices with room for all blocks. */
int64_t ra_predict_mask_bytes(int32_t layers, int64_t q_rows, int64_t k_rows);
/* Blocks of queries in a chunk, each of which is counted separately. */
double ra_predict_mask_looks(const ra_predict_job *job);
/* What the pattern cache takes for a map: its own record, the key, and the arrays. */
int64_t ra_predict_entry_bytes(const ra_predict_job *job, ra_heads heads, int64_t pieces,
                               int64_t map_bytes);

/* The line, and the status, of a layout that makes too many pieces of a pattern. */
RA_CHECKED ra_status ra_predict_refuse_pieces(const ra_predict_job *job);
/* Slices that one chunk of queries of the middle rank meets. */
RA_CHECKED ra_status ra_predict_slices(const ra_predict_job *job, double *slices_out);
/* Chunks looked at, times slices: more would take too long. */
extern const double ra_predict_looks_most;
/* RA_PREDICT_SPARED: if not all can be looked at, an estimate takes this much less. */
enum { RA_PREDICT_CHUNKS_LEAST = 4, RA_PREDICT_SPARED = 8 };

/* Steps of followed ranks for some heads and the queries at hand, one of so many parts of all:
   [followed_count] plans. */
RA_CHECKED ra_status ra_predict_plans(ra_predict_job *job, ra_heads heads, int32_t parts,
                                      ra_predict_plan *plans);
void ra_predict_free_plans(ra_predict_job *job, ra_predict_plan *plans);
void ra_predict_add_map(const ra_predict_job *job, const ra_map_size *map, ra_map_sum *sum);
int32_t ra_predict_plan_count(const ra_predict_job *job, int32_t groups);
/* Whether every rank needs every row of every other. */
RA_CHECKED ra_status ra_predict_is_full(ra_predict_job *job, bool *full_out);
/* Of more ranks than are followed: add what crosses for such heads and the queries at hand, of so
   many key heads. */
RA_CHECKED ra_status ra_predict_cross(ra_predict_job *job, ra_heads heads, int32_t kv_heads);
/* Rows sent in one forward pass of the layout at hand. */
RA_CHECKED ra_status ra_predict_crossing(ra_predict_job *job, double *rows_out);

static inline void ra_predict_raise(int64_t *bytes, int64_t least)
{
    *bytes = *bytes > least ? *bytes : least;
}

/* What a rank takes beside its tensors, over its plans and head groups. */
typedef struct ra_predict_bytes {
    int64_t state, grads, delta, shared;       /* accumulators; the largest group's */
    int64_t held[2], partial[2];               /* buffers, each for its largest step */
    int64_t sent, arriving;                    /* one each, for all steps */
    int64_t passing;                           /* most that is taken and given back within steps */
    int64_t passing_scores;                    /* the part of scores; the rest are buffers */
    int64_t step_scores;                       /* of the largest forward step, where none is kept */
    int64_t scores;                            /* kept from the forward pass on */
    int64_t grad_scores;                       /* of the groups so far */
    int64_t plans, maps, cached, cached_count; /* category tilemap, and pattern_cache */
    int64_t spare_cached;                      /* of plans that were given back */
    int64_t map_copies;                        /* on a GPU */
    int64_t read_maps;                         /* where kernels read them, in a cache or not */
    int64_t map_arrays;
    double sent_bytes, pairs;
} ra_predict_bytes;

/* Keys and values of so many rows; their gradients, in float32. */
int64_t ra_predict_keys_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows);
int64_t ra_predict_grads_bytes(const ra_predict_job *job, int32_t kv_heads, int64_t rows);
/* Charged bytes of a buffer of held rows: this rank's, or its share of the team's. */
int64_t ra_predict_counted(const ra_predict_job *job, int rank, int64_t bytes);
/* Add what a group's steps take and give back. */
void ra_predict_add_passing(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                            ra_head_group group, ra_predict_bytes *bytes);
/* One more head group, whose steps `plan` says. */
void ra_predict_add_group(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                          ra_head_group group, ra_predict_bytes *bytes);
/* Add the plan itself. */
void ra_predict_add_plan(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                         ra_predict_bytes *bytes);
/* Add what is left of a plan that was given back: maps that the cache keeps. */
void ra_predict_add_given_back(const ra_predict_job *job, const ra_predict_plan *plan,
                               ra_predict_bytes *bytes);
/* Of the plan that alone made these totals. */
ra_plan_bytes ra_predict_plan_bytes(const ra_predict_job *job, const ra_predict_plan *plan,
                                    const ra_predict_bytes *totals);
/* Rows, per head, that carry state from step to step, of a group's queries; and the list of chunks'
   steps, which is a part of the plan. */
int64_t ra_predict_state_rows(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                              const ra_head_group *group);
int64_t ra_predict_chunk_bytes(const ra_predict_job *job, const ra_predict_plan *plan);
/* Rows of a group's dq, dk and dv, of all heads and batches, that are summed in accumulators. */
int64_t ra_predict_summed_rows(const ra_predict_job *job, const ra_predict_plan *plan, int rank,
                               const ra_head_group *group);
/* What head_groups and rounds auto compare with the available room; *buffers_out: the part of
   communication buffers, and of scores that a step gives back. */
int64_t ra_predict_group_bytes(const ra_predict_job *job, int rank, const ra_predict_bytes *bytes,
                               int64_t *buffers_out);
/* What a ring that passes every block all the way round would send. */
double ra_predict_full_ring_bytes(const ra_predict_job *job);
/* The pattern's description, and every rank's rows. */
int64_t ra_predict_ground_bytes(const ra_predict_job *job);
/* What a rank's tensors will take; keys alone if the caller takes tensors from elsewhere. */
int64_t ra_predict_tensors_room(const ra_predict_job *job, int rank);
/* Categories of a rank at the moment of the peak, and what tensors alone take. */
typedef struct ra_predict_memory {
    int64_t bytes[RA_MEM_CATEGORY_COUNT], total_bytes;
    int64_t host_bytes[RA_MEM_CATEGORY_COUNT], host_total_bytes; /* beside a GPU's; else 0 */
    int64_t floor_bytes;
    bool evicts; /* kept maps that nobody uses, as the limit has no room for them */
} ra_predict_memory;

/* Whether the cache's bounds keep some of these maps out. */
bool ra_predict_evicts(const ra_predict_job *job, const ra_predict_bytes *bytes);
ra_predict_memory ra_predict_total(const ra_predict_job *job, const ra_predict_bytes *bytes,
                                   int rank);
/* Store this rank's memory in the prediction, if it holds most so far. */
void ra_predict_keep_fullest(const ra_predict_job *job, const ra_predict_memory *memory, int rank,
                             ra_prediction *out);

/* Linear attention, of rows that are laid out already. */
void ra_predict_linear(ra_predict_job *job, ra_prediction *out);

/* What computes, how fast (operations, in 1e12 per second; 0: unknown), and how long. */
ra_work ra_predict_work(const ra_predict_request *request);
double ra_predict_rate(const ra_predict_request *request, bool backward);
bool ra_predict_knows_times(const ra_predict_request *request);
double ra_predict_terms_ms(const ra_predict_request *request, bool backward,
                           const ra_pass_terms *terms);
/* Terms of one step, over so many query heads in so many groups, with `rows` queries. */
ra_pass_terms ra_predict_step_terms(const ra_predict_job *job, bool backward,
                                    const ra_map_size *map, int64_t rows, int32_t q_heads,
                                    int32_t groups);
/* sums_first: a causal pass has states before those of its rows. */
ra_pass_terms ra_predict_linear_terms(const ra_predict_job *job, bool backward, int64_t rows,
                                      bool sums_first);
void ra_predict_add_terms(const ra_pass_terms *from, ra_pass_terms *to);
double ra_predict_link_ms(const ra_link *link, double bytes);

/* Steps of followed ranks as they are reported: [followed_count][step_count]. */
typedef struct ra_predict_times {
    ra_predicted_step *steps;
    ra_pass_terms *terms; /* [followed_count][2]: forward, backward */
} ra_predict_times;

RA_CHECKED ra_status ra_predict_begin_times(ra_predict_job *job, ra_predict_times *times);
/* Add the steps of plan `number` of so many to those of a followed rank, for all of its groups. */
void ra_predict_add_times(const ra_predict_job *job, const ra_predict_plan *plan, int index,
                          int32_t number, int32_t plans, ra_predict_times *times);
/* Fill the prediction's fields for steps and time. */
RA_CHECKED ra_status ra_predict_end_times(const ra_predict_job *job, ra_predict_times *times,
                                          ra_prediction *out);
void ra_predict_free_times(ra_predict_times *times);

/* Plans in as many groups and rounds as the ring takes: what followed ranks hold and send over all
   groups, [followed_count], and their steps. Both are the caller's, also after an error. */
RA_CHECKED ra_status ra_predict_settle_plans(ra_predict_job *job, ra_predict_bytes **totals_out,
                                             ra_predict_times *times_out);

#endif
