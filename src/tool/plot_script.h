/* What all pictures share: how a gnuplot script begins, its strings and its colours. */
#ifndef RINGATTN_TOOL_PLOT_SCRIPT_H
#define RINGATTN_TOOL_PLOT_SCRIPT_H

#include "plot.h"

/* Rows of its key that a picture has room for; with more it grows. */
enum { RA_PLOT_COLOURS = 8, RA_PLOT_KEY_ROWS = 4 };

/* Approximate width between the axes, and of a character; and what is free right of the axes. */
enum { RA_PLOT_WIDTH_PX = 840, RA_PLOT_CHARACTER_PX = 8, RA_PLOT_MARGIN_CHARACTERS = 8 };

extern const char *const ra_plot_palette[RA_PLOT_COLOURS];

/* Write `text` as a string of gnuplot's. */
void ra_plot_quote(FILE *script, const char *text);

/* `title`, `x` and `y` contain no character that is special in gnuplot's strings. */
void ra_plot_begin(FILE *script, const char *title, const char *x, const char *y, int key_rows);

/* plot_bars.c: each draws one picture, if there is anything in it. */
bool ra_plot_memory_applies(const ra_plot_data *data);
void ra_plot_memory_write(FILE *script, const ra_plot_data *data);
bool ra_plot_probe_applies(const ra_plot_data *data);
void ra_plot_probe_write(FILE *script, const ra_plot_data *data);

#endif
