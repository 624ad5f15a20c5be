/* What `ringattn plot` draws: points of any report, gathered into series. */
#ifndef RINGATTN_TOOL_PLOT_H
#define RINGATTN_TOOL_PLOT_H

#include "ringattn/pool.h"

#include <stdio.h>

/* More series than that cannot be told apart in one picture. */
enum { RA_PLOT_LABEL_MAX = 120, RA_PLOT_SERIES_MAX = 24 };

static double const ra_plot_mib = 1024.0 * 1024.0;

/* What is drawn against the length, as it is drawn. */
typedef enum ra_plot_value {
    RA_PLOT_PEAK_MIB, /* of what ran, as times are */
    RA_PLOT_THEORY_MIB,
    RA_PLOT_FLOOR_MIB,
    RA_PLOT_FAILED_MIB, /* the limit that memory met; without one there is no height to draw at */
    RA_PLOT_FORWARD_MS,
    RA_PLOT_BACKWARD_MS,
    RA_PLOT_SAVINGS, /* memory of the first series of the setting over this one's */
    RA_PLOT_VALUES
} ra_plot_value;

/* One entry of "points". What a report does not have is NAN. */
typedef struct ra_plot_point {
    int series;    /* in ra_plot_data */
    double tokens; /* of a sequence */
    double value[RA_PLOT_VALUES];
    double memory_bytes[RA_MEM_CATEGORY_COUNT]; /* at the peak */
    bool ok;                                    /* else: no memory, refused, or found wrong */
    bool probed;                                /* tokens is the longest that fits */
} ra_plot_point;

typedef struct ra_plot_series {
    char label[RA_PLOT_LABEL_MAX]; /* variant, swept keys but for the length, ranks; cut */
    uint64_t id;                   /* of all of that: another series has another one */
    uint64_t setting_id;           /* series of one setting are compared with its first */
    int compared_with;             /* that series; may be this one */
    ra_plot_point *const *points;  /* borrowed; the shortest sequence first */
    int count;
} ra_plot_series;

/* The first RA_PLOT_SERIES_MAX series, in order of appearance, and their points. */
typedef struct ra_plot_data {
    ra_plot_point *points; /* in their order in the files */
    int count;
    int left_out_count; /* points of other series */
    ra_plot_series series[RA_PLOT_SERIES_MAX];
    int series_count;
    ra_plot_point **by_series; /* all points, series after series */
} ra_plot_data;

/**
 * Read the points of reports, in order, as written by `--json`. A warning says what is left out.
 * @return RA_ERR_IO         a file cannot be read, or is no report: one line says which and why
 *         RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_plot_read(const char *const *files, int file_count, ra_plot_data *data_out);
void ra_plot_fini(ra_plot_data *data); /* a zeroed one is fine */

/* A picture: whether there is anything to draw, and the gnuplot script that draws it. */
typedef struct ra_plot_kind {
    const char *name; /* "memory": PREFIX-memory.svg */
    bool (*applies)(const ra_plot_data *data);
    void (*write)(FILE *script, const ra_plot_data *data);
} ra_plot_kind;

extern const ra_plot_kind ra_plot_kinds[]; /* ended by a NULL name */

#endif
