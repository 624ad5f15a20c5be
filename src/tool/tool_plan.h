/* `ringattn plan`, inside: from a configuration to a prediction, and its report. */
#ifndef RINGATTN_TOOL_TOOL_PLAN_H
#define RINGATTN_TOOL_TOOL_PLAN_H

#include "backend.h"
#include "hardware.h"
#include "tensors.h"

#include <jansson.h>

/* One configuration on so many ranks. Zeroed before ra_plan_point_init. */
typedef struct ra_plan_point {
    ra_config config;
    const char *variant; /* NULL: the file has none */
    ra_comm *comm;       /* of a rank that plans while the others wait; NULL: none wait */
    ra_pool *pool;       /* of the pairs of blocks that an input file brings */
    ra_tensor_source *source;
    int threads;
    const char *kernel_name; /* of the table whose tiles and scratch are planned */
    ra_predict_request request;
    ra_prediction prediction;
    char note[RA_BACKEND_NOTE_MAX]; /* why not a GPU of the described machine, or "" */
    bool has_longest;
    bool longest_shown;  /* with an earlier point that differs in its length alone */
    int64_t longest_seq; /* rows that fit request.memory_bytes; 0: not even one does */
    int32_t longest_head_groups, longest_rounds; /* that they are computed in */
} ra_plan_point;

/**
 * Check point->config, which is taken over, for a job of `ranks` ranks, and fill the request. Auto
 * is the GPUs that `hardware` has (ra_backend_choose_there), else the CPU; config.backend stays.
 * @param hardware  borrowed; NULL: memory and work without times, all ranks on one host
 */
RA_CHECKED ra_status ra_plan_point_init(ra_plan_point *point, int ranks,
                                        const ra_hardware *hardware);
/**
 * The same for a job of point->comm's ranks on their hosts, with the backend that it would use
 * here. Whether ranks of a host can share memory shows only when it is tried: they are assumed to.
 */
RA_CHECKED ra_status ra_plan_point_init_here(ra_plan_point *point);
/** Predicted bytes of the fullest rank at another length; its documents are repeated. */
RA_CHECKED ra_status ra_plan_point_peak(const ra_plan_point *point, int64_t seq,
                                        int64_t *peak_bytes_out);
/**
 * The longest sequence whose fullest rank stays within request.memory_bytes, other keys as they
 * are, to 1/1024; documents are repeated. RA_ERR_CONFIG if an input gives the length, or no memory
 * is given.
 */
RA_CHECKED ra_status ra_plan_point_longest(ra_plan_point *point);
void ra_plan_point_fini(ra_plan_point *point); /* a zeroed one is fine */

void ra_plan_point_print(const ra_plan_point *point);
/** The "points" entry, with a run's names of categories; NULL: no memory. */
json_t *ra_plan_point_to_json(const ra_plan_point *point);

#endif
