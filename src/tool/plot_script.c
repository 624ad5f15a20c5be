/*
 * The pictures as gnuplot scripts. Series differ by colour (Okabe and Ito's palette, which colour
 * blindness leaves apart), by dash and by mark; stacked categories by colour and hatching.
 */
#include "plot.h"

#include <math.h>
#include <string.h>

enum { BARS_MAX = 24, COLOURS = 8 };

static const char *const palette[COLOURS] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                             "#E69F00", "#56B4E9", "#000000", "#999999"};

static double const mib = 1024.0 * 1024.0;

/* As a string of gnuplot's. */
static void quote(FILE *script, const char *text)
{
    fputc('"', script);
    for (; *text != '\0'; text++) {
        unsigned char const c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            fprintf(script, "\\%c", c);
        else if (c >= ' ')
            fputc(c, script);
    }
    fputc('"', script);
}

static void begin(FILE *script, const char *title, const char *x, const char *y)
{
    fputs("set terminal svg size 960,560 noenhanced background 'white' font 'sans-serif,13'\n"
          "set encoding utf8\nset key below Left reverse spacing 1.2\n"
          "set grid ytics lc rgb '#dddddd'\nset border 3\nset tics nomirror\n",
          script);
    fprintf(script, "set title \"%s\"\nset xlabel \"%s\"\nset ylabel \"%s\"\n", title, x, y);
}

/* ---- a value against the length ----------------------------------------------------------------
 */

typedef double value_of(const ra_plot_data *data, const ra_plot_point *point);

static bool in_series(const ra_plot_data *data, const ra_plot_point *point, int series)
{
    return strcmp(point->series, data->series[series]) == 0;
}

static int drawn_count(const ra_plot_data *data, int series, value_of *value)
{
    int count = 0;
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *p = &data->points[i];
        count += in_series(data, p, series) && p->tokens > 0 && value(data, p) > 0;
    }
    return count;
}

/* A line takes two points of different length. */
static bool has_line(const ra_plot_data *data, value_of *value)
{
    for (int s = 0; s < data->series_count; s++) {
        double first = NAN;
        for (int i = 0; i < data->count; i++) {
            const ra_plot_point *p = &data->points[i];
            if (!in_series(data, p, s) || !(value(data, p) > 0) || !(p->tokens > 0))
                continue;
            if (isnan(first))
                first = p->tokens;
            else if (p->tokens != first)
                return true;
        }
    }
    return false;
}

/* Whether an earlier series has drawn the same line already, as floors of one shape do. */
static bool is_repeated(const ra_plot_data *data, int series, value_of *value)
{
    for (int s = 0; s < series; s++) {
        bool same = drawn_count(data, s, value) == drawn_count(data, series, value);
        for (int i = 0, j = 0; same && i < data->count; i++) {
            const ra_plot_point *p = &data->points[i];
            if (!in_series(data, p, series) || !(value(data, p) > 0))
                continue;
            while (j < data->count &&
                   !(in_series(data, &data->points[j], s) && value(data, &data->points[j]) > 0))
                j++;
            same = j < data->count && data->points[j].tokens == p->tokens &&
                   value(data, &data->points[j]) == value(data, p);
            j++;
        }
        if (same)
            return true;
    }
    return false;
}

static void block_write(FILE *script, const ra_plot_data *data, const char *name, int series,
                        value_of *value)
{
    fprintf(script, "$%s%d << EOD\n", name, series);
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *p = &data->points[i];
        if (in_series(data, p, series) && p->tokens > 0 && value(data, p) > 0)
            fprintf(script, "%.17g %.17g\n", p->tokens, value(data, p));
    }
    fputs("EOD\n", script);
}

/* How one value of every series is drawn. */
typedef struct curve {
    const char *name, *suffix; /* data block; what follows a series' label in the key */
    value_of *value;
    const char *style; /* "linespoints", "lines", "points" */
    int dash;          /* 0: of the series */
    int mark;          /* 0: of the series */
} curve;

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
            if (drawn_count(data, s, k->value) == 0 ||
                (k->dash != 0 && is_repeated(data, s, k->value)))
                continue;
            snprintf(label, sizeof(label), "%s%s", data->series[s], k->suffix);
            fprintf(script, "%s $%s%d using 1:2 with %s lw 2 lc rgb '%s' dt %d pt %d ps 0.9 title ",
                    drawn++ == 0 ? "plot" : ", \\\n", k->name, s, k->style, palette[s % COLOURS],
                    k->dash != 0 ? k->dash : 1 + s % 5, k->mark != 0 ? k->mark : 4 + s % 10);
            quote(script, label);
        }
    }
    fputs("\n", script);
}

static void log_axes(FILE *script)
{
    fputs("set logscale x 2\nset logscale y 10\nset format x '%.0f'\n"
          "set xtics rotate by -35\n",
          script);
}

static double peak_mib(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->ok ? p->peak_bytes / mib : (double)NAN;
}

static double theory_mib(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->theory_bytes / mib;
}

static double floor_mib(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->floor_bytes / mib;
}

/* Where a job met its limit; without a limit there is no height to draw it at. */
static double failed_mib(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->ok ? (double)NAN : p->limit_bytes / mib;
}

static bool length_applies(const ra_plot_data *data)
{
    return has_line(data, peak_mib);
}

static void length_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {
        {"peak", "", peak_mib, "linespoints", 0, 0},
        {"theory", " (theory)", theory_mib, "lines", 3, 0},
        {"floor", " (floor)", floor_mib, "lines", 4, 0},
        {"failed", " (out of memory)", failed_mib, "points", 0, 2},
    };
    begin(script, "Peak memory by sequence length", "tokens", "MiB per rank");
    log_axes(script);
    curves_write(script, data, curves, 4);
}

static double forward_ms(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->ok ? p->forward_ms : (double)NAN;
}

static double backward_ms(const ra_plot_data *data, const ra_plot_point *p)
{
    (void)data;
    return p->ok ? p->backward_ms : (double)NAN;
}

static bool time_applies(const ra_plot_data *data)
{
    return has_line(data, forward_ms);
}

static void time_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {{"forward", " forward", forward_ms, "linespoints", 0, 0},
                                   {"backward", " backward", backward_ms, "linespoints", 0, 1}};
    begin(script, "Time by sequence length (median)", "tokens", "ms");
    log_axes(script);
    curves_write(script, data, curves, 2);
}

/* Memory of the first series over this one's, at the same length. */
static double savings(const ra_plot_data *data, const ra_plot_point *p)
{
    if (!p->ok || in_series(data, p, 0))
        return NAN;
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *first = &data->points[i];
        if (in_series(data, first, 0) && first->ok && first->tokens == p->tokens)
            return first->peak_bytes / p->peak_bytes;
    }
    return NAN;
}

static bool savings_applies(const ra_plot_data *data)
{
    return data->series_count > 1 && has_line(data, savings);
}

static void savings_write(FILE *script, const ra_plot_data *data)
{
    static const curve curves[] = {{"savings", "", savings, "linespoints", 0, 0}};
    begin(script, "Memory of the first series over the others'", "tokens", "ratio");
    log_axes(script);
    fputs("set arrow from graph 0, first 1 to graph 1, first 1 nohead dt 3\n", script);
    curves_write(script, data, curves, 1);
}

/* ---- bars ------------------------------------------------------------------------------------ */

static bool has_memory(const ra_plot_point *p)
{
    return p->ok && p->memory_bytes[RA_MEM_QKV] >= 0;
}

/* The longest point of a series stands for it; of several equally long ones the first. */
static const ra_plot_point *bar_of(const ra_plot_data *data, int series)
{
    const ra_plot_point *best = NULL;
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *p = &data->points[i];
        if (in_series(data, p, series) && has_memory(p) &&
            (best == NULL || p->tokens > best->tokens))
            best = p;
    }
    return best;
}

static bool memory_applies(const ra_plot_data *data)
{
    for (int s = 0; s < data->series_count && s < BARS_MAX; s++) {
        if (bar_of(data, s) != NULL)
            return true;
    }
    return false;
}

static bool category_is_used(const ra_plot_data *data, int category)
{
    for (int s = 0; s < data->series_count && s < BARS_MAX; s++) {
        const ra_plot_point *p = bar_of(data, s);
        if (p != NULL && p->memory_bytes[category] > 0)
            return true;
    }
    return false;
}

static void bars_begin(FILE *script)
{
    fputs("set style data histograms\nset style histogram rowstacked\nset boxwidth 0.6\n"
          "set xtics rotate by -20 scale 0\nset yrange [0:*]\n",
          script);
}

static void memory_write(FILE *script, const ra_plot_data *data)
{
    int drawn = 0;
    begin(script, "Memory at its peak, by category", "", "MiB per rank");
    bars_begin(script);
    fputs("$bars << EOD\n", script);
    for (int s = 0; s < data->series_count && s < BARS_MAX; s++) {
        const ra_plot_point *p = bar_of(data, s);
        char label[RA_PLOT_LABEL_MAX + 40];
        if (p == NULL)
            continue;
        snprintf(label, sizeof(label), "%s, %.0f tokens", p->series, p->tokens);
        quote(script, label);
        for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
            fprintf(script, " %.17g", fmax(p->memory_bytes[i], 0) / mib);
        fputs("\n", script);
    }
    fputs("EOD\n", script);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        if (!category_is_used(data, i))
            continue;
        fprintf(script,
                "%s $bars using %d%s fs pattern %d border lc rgb '#333333' lc rgb '%s' "
                "title \"%s\"",
                drawn == 0 ? "plot" : ", \\\n", i + 2, drawn == 0 ? ":xtic(1)" : "", 1 + drawn % 7,
                palette[drawn % COLOURS], ra_category_name((ra_category)i));
        drawn++;
    }
    fputs(drawn > 0 ? "\n" : "plot [0:1][0:1] NaN notitle\n", script);
}

static bool probe_applies(const ra_plot_data *data)
{
    for (int i = 0; i < data->count; i++) {
        if (data->points[i].probed && data->points[i].tokens > 0)
            return true;
    }
    return false;
}

static void probe_write(FILE *script, const ra_plot_data *data)
{
    begin(script, "Longest sequence that fits", "", "tokens");
    bars_begin(script);
    fputs("set style histogram clustered\nset format y '%.0f'\n$bars << EOD\n", script);
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *p = &data->points[i];
        if (!p->probed || !(p->tokens > 0))
            continue;
        quote(script, p->series);
        fprintf(script, " %.17g\n", p->tokens);
    }
    fprintf(script,
            "EOD\nplot $bars using 2:xtic(1) fs pattern 1 border lc rgb '#333333' lc rgb '%s' "
            "notitle, $bars using 0:2:(sprintf('%%.0f', column(2))) with labels offset 0,0.7 "
            "notitle\n",
            palette[0]);
}

const ra_plot_kind ra_plot_kinds[] = {
    {"memory", memory_applies, memory_write},  {"memory-length", length_applies, length_write},
    {"time-length", time_applies, time_write}, {"savings", savings_applies, savings_write},
    {"probe", probe_applies, probe_write},     {NULL, NULL, NULL},
};
