/*
 * The pictures as gnuplot scripts. Series differ by colour (Okabe and Ito's palette, which colour
 * blindness leaves apart), by dash and by mark; stacked categories by colour and hatching.
 */
#include "plot_script.h"

#include <string.h>

/* Pixels of a picture whose key has RA_PLOT_KEY_ROWS rows, and about what a row takes. */
enum { WIDTH_PX = 960, HEIGHT_PX = 560, ROW_PX = 24 };
enum { SAMPLE_CHARACTERS = 11 };

const char *const ra_plot_palette[RA_PLOT_COLOURS] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                      "#E69F00", "#56B4E9", "#000000", "#999999"};

/* Some characters as octal numbers: gnuplot runs what stands between two ` of a command, strings
   included, and ends a string of data at any ". */
void ra_plot_quote(FILE *script, const char *text)
{
    fputc('"', script);
    for (; *text != '\0'; text++) {
        unsigned char const c = (unsigned char)*text;
        if (c == '"' || c == '\\' || c == '`')
            fprintf(script, "\\%03o", c);
        else if (c >= ' ')
            fputc(c, script);
    }
    fputc('"', script);
}

void ra_plot_begin(FILE *script, const char *title, const char *x, const char *y, int key_rows)
{
    int const more = key_rows > RA_PLOT_KEY_ROWS ? key_rows - RA_PLOT_KEY_ROWS : 0;
    fprintf(script,
            "set terminal svg size %d,%d noenhanced background 'white' font 'sans-serif,13'\n",
            WIDTH_PX, HEIGHT_PX + more * ROW_PX);
    fputs("set encoding utf8\nset key below Left reverse spacing 1.2 height 1\n"
          "set grid ytics lc rgb '#dddddd'\nset border 3\nset tics nomirror\n",
          script);
    fprintf(script, "set title \"%s\"\nset xlabel \"%s\"\nset ylabel \"%s\"\n", title, x, y);
}

/* ---- a value against the length -------------------------------------------------------------- */

/* Whether both axes, which are logarithmic, have a place for this point. */
static bool has_place(const ra_plot_point *p, ra_plot_value value)
{
    return p->tokens > 0 && p->value[value] > 0;
}

/* The next point from `i` on that has a place; the count: there is none. */
static int next_drawn(const ra_plot_series *series, int i, ra_plot_value value)
{
    while (i < series->count && !has_place(series->points[i], value))
        i++;
    return i;
}

/* A line takes two points of different length. */
static bool has_line(const ra_plot_data *data, ra_plot_value value)
{
    for (int s = 0; s < data->series_count; s++) {
        const ra_plot_series *series = &data->series[s];
        int const first = next_drawn(series, 0, value);
        for (int i = first; i < series->count; i = next_drawn(series, i + 1, value)) {
            if (series->points[i]->tokens != series->points[first]->tokens)
                return true;
        }
    }
    return false;
}

static bool is_same(const ra_plot_series *a, const ra_plot_series *b, ra_plot_value value)
{
    int i = next_drawn(a, 0, value), j = next_drawn(b, 0, value);
    while (i < a->count && j < b->count) {
        const ra_plot_point *p = a->points[i], *q = b->points[j];
        if (p->tokens != q->tokens || p->value[value] != q->value[value])
            return false;
        i = next_drawn(a, i + 1, value);
        j = next_drawn(b, j + 1, value);
    }
    return i == a->count && j == b->count;
}

/* Whether an earlier series has drawn the same line already, as floors of one shape do. */
static bool is_repeated(const ra_plot_data *data, int series, ra_plot_value value)
{
    for (int s = 0; s < series; s++) {
        if (is_same(&data->series[s], &data->series[series], value))
            return true;
    }
    return false;
}

static void block_write(FILE *script, const ra_plot_data *data, const char *name, int series,
                        ra_plot_value value)
{
    const ra_plot_series *from = &data->series[series];
    fprintf(script, "$%s%d << EOD\n", name, series);
    for (int i = next_drawn(from, 0, value); i < from->count; i = next_drawn(from, i + 1, value))
        fprintf(script, "%.17g %.17g\n", from->points[i]->tokens, from->points[i]->value[value]);
    fputs("EOD\n", script);
}

/* How one value of every series is drawn. */
typedef struct curve {
    const char *name, *suffix; /* data block; what follows a series' label in the key */
    ra_plot_value value;
    const char *style; /* "linespoints", "lines", "points" */
    int dash;          /* 0: of the series */
    int mark;          /* 0: of the series */
} curve;

static bool is_drawn(const ra_plot_data *data, int series, const curve *k)
{
    const ra_plot_series *from = &data->series[series];
    return next_drawn(from, 0, k->value) < from->count &&
           (k->dash == 0 || !is_repeated(data, series, k->value));
}

/* A key takes as many columns as its longest label leaves room for, and the picture grows by rows.
 */
static void curves_begin(FILE *script, const ra_plot_data *data, const curve *curves, int count,
                         const char *title, const char *y)
{
    int entries = 0, longest = 0;
    for (int c = 0; c < count; c++) {
        for (int s = 0; s < data->series_count; s++) {
            int const length = (int)(strlen(data->series[s].label) + strlen(curves[c].suffix));
            if (!is_drawn(data, s, &curves[c]))
                continue;
            entries++;
            longest = length > longest ? length : longest;
        }
    }
    int const fit = RA_PLOT_WIDTH_PX / ((longest + SAMPLE_CHARACTERS) * RA_PLOT_CHARACTER_PX);
    int const columns = fit > 1 ? fit : 1;
    ra_plot_begin(script, title, "tokens", y, (entries + columns - 1) / columns);
    fprintf(script,
            "set key maxcols %d\nset rmargin %d\n"
            "set logscale x 2\nset logscale y 10\nset format x '%%.0f'\nset format y '%%.10g'\n"
            "set xtics rotate by -35\n",
            columns, RA_PLOT_MARGIN_CHARACTERS);
}

static void curves_write(FILE *script, const ra_plot_data *data, const curve *curves, int count)
{
    int drawn = 0;
    for (int c = 0; c < count; c++) {
        for (int s = 0; s < data->series_count; s++)
            block_write(script, data, curves[c].name, s, curves[c].value);
    }
    for (int c = 0; c < count; c++) {
        const curve *k = &curves[c];
        for (int s = 0; s < data->series_count; s++) {
            char label[RA_PLOT_LABEL_MAX + 40];
            if (!is_drawn(data, s, k))
                continue;
            snprintf(label, sizeof(label), "%s%s", data->series[s].label, k->suffix);
            fprintf(script, "%s $%s%d using 1:2 with %s lw 2 lc rgb '%s' dt %d pt %d ps 0.9 title ",
                    drawn++ == 0 ? "plot" : ", \\\n", k->name, s, k->style,
                    ra_plot_palette[s % RA_PLOT_COLOURS], k->dash != 0 ? k->dash : 1 + s % 5,
                    k->mark != 0 ? k->mark : 4 + s % 10);
            ra_plot_quote(script, label);
        }
    }
    fputs("\n", script);
}

static bool length_applies(const ra_plot_data *data)
{
    return has_line(data, RA_PLOT_PEAK_MIB);
}

static void length_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {
        {"peak", "", RA_PLOT_PEAK_MIB, "linespoints", 0, 0},
        {"theory", " (theory)", RA_PLOT_THEORY_MIB, "lines", 3, 0},
        {"floor", " (floor)", RA_PLOT_FLOOR_MIB, "lines", 4, 0},
        {"failed", " (out of memory)", RA_PLOT_FAILED_MIB, "points", 0, 2},
    };
    curves_begin(script, data, curves, 4, "Peak memory by sequence length", "MiB per rank");
    curves_write(script, data, curves, 4);
}

static bool time_applies(const ra_plot_data *data)
{
    return has_line(data, RA_PLOT_FORWARD_MS);
}

static void time_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {
        {"forward", " forward", RA_PLOT_FORWARD_MS, "linespoints", 0, 0},
        {"backward", " backward", RA_PLOT_BACKWARD_MS, "linespoints", 0, 1}};
    curves_begin(script, data, curves, 2, "Time by sequence length (median)", "ms");
    curves_write(script, data, curves, 2);
}

static bool savings_applies(const ra_plot_data *data)
{
    return data->series_count > 1 && has_line(data, RA_PLOT_SAVINGS);
}

static void savings_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {{"savings", "", RA_PLOT_SAVINGS, "linespoints", 0, 0}};
    curves_begin(script, data, curves, 1, "Memory of the first series over the others'", "ratio");
    fputs("set arrow from graph 0, first 1 to graph 1, first 1 nohead dt 3\n", script);
    curves_write(script, data, curves, 1);
}

const ra_plot_kind ra_plot_kinds[] = {
    {"memory", ra_plot_memory_applies, ra_plot_memory_write},
    {"memory-length", length_applies, length_write},
    {"time-length", time_applies, time_write},
    {"savings", savings_applies, savings_write},
    {"probe", ra_plot_probe_applies, ra_plot_probe_write},
    {NULL, NULL, NULL},
};
