/* Pictures of bars: memory by category, stacked, and the longest sequences that fit. */
#include "plot_script.h"

#include <math.h>
#include <string.h>

static bool has_memory(const ra_plot_point *p)
{
    return p->ok && p->memory_bytes[RA_MEM_QKV] >= 0;
}

/* The longest point of a series stands for it; of several equally long ones the first. */
static const ra_plot_point *bar_of(const ra_plot_series *series)
{
    const ra_plot_point *best = NULL;
    for (int i = 0; i < series->count; i++) {
        const ra_plot_point *p = series->points[i];
        if (has_memory(p) && (best == NULL || p->tokens > best->tokens))
            best = p;
    }
    return best;
}

bool ra_plot_memory_applies(const ra_plot_data *data)
{
    for (int s = 0; s < data->series_count; s++) {
        if (bar_of(&data->series[s]) != NULL)
            return true;
    }
    return false;
}

static bool category_is_used(const ra_plot_data *data, int category)
{
    for (int s = 0; s < data->series_count; s++) {
        const ra_plot_point *p = bar_of(&data->series[s]);
        if (p != NULL && p->memory_bytes[category] > 0)
            return true;
    }
    return false;
}

/* Labels go down to the right of `count` bars: those of the last ones need room beside them. */
static void bars_begin(FILE *script, int count, int longest)
{
    int const within = RA_PLOT_WIDTH_PX / RA_PLOT_CHARACTER_PX / (count + 1);
    int const beside = 4 * longest / 5 + RA_PLOT_MARGIN_CHARACTERS / 2 - within;
    fprintf(script,
            "set style data histograms\nset style histogram rowstacked\nset boxwidth 0.6\n"
            "set xtics rotate by -20 scale 0\nset yrange [0:*]\nset rmargin %d\n",
            beside > RA_PLOT_MARGIN_CHARACTERS ? beside : RA_PLOT_MARGIN_CHARACTERS);
}

/* "flash, 4096 tokens", or "flash" where the length is not known; its length. */
static int bar_label(const ra_plot_data *data, const ra_plot_point *p, char *label, size_t bytes)
{
    const char *name = data->series[p->series].label;
    return isnan(p->tokens) ? snprintf(label, bytes, "%s", name)
                            : snprintf(label, bytes, "%s, %.0f tokens", name, p->tokens);
}

static void memory_begin(FILE *script, const ra_plot_data *data)
{
    char label[RA_PLOT_LABEL_MAX + 40];
    int count = 0, longest = 0;
    for (int s = 0; s < data->series_count; s++) {
        const ra_plot_point *p = bar_of(&data->series[s]);
        int const length = p != NULL ? bar_label(data, p, label, sizeof(label)) : 0;
        count += p != NULL;
        longest = length > longest ? length : longest;
    }
    ra_plot_begin(script, "Memory at its peak, by category", "", "MiB per rank", RA_PLOT_KEY_ROWS);
    bars_begin(script, count, longest);
}

void ra_plot_memory_write(FILE *script, const ra_plot_data *data)
{
    int drawn = 0;
    memory_begin(script, data);
    fputs("$bars << EOD\n", script);
    for (int s = 0; s < data->series_count; s++) {
        const ra_plot_point *p = bar_of(&data->series[s]);
        char label[RA_PLOT_LABEL_MAX + 40];
        if (p == NULL)
            continue;
        (void)bar_label(data, p, label, sizeof(label));
        ra_plot_quote(script, label);
        for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
            fprintf(script, " %.17g", fmax(p->memory_bytes[i], 0) / ra_plot_mib);
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
                ra_plot_palette[drawn % RA_PLOT_COLOURS], ra_category_name((ra_category)i));
        drawn++;
    }
    fputs(drawn > 0 ? "\n" : "plot [0:1][0:1] NaN notitle\n", script);
}

static bool is_probe_bar(const ra_plot_point *p)
{
    return p->probed && p->tokens > 0;
}

bool ra_plot_probe_applies(const ra_plot_data *data)
{
    for (int i = 0; i < data->count; i++) {
        if (is_probe_bar(&data->points[i]))
            return true;
    }
    return false;
}

void ra_plot_probe_write(FILE *script, const ra_plot_data *data)
{
    int count = 0, longest = 0;
    for (int i = 0; i < data->count; i++) {
        int const length = (int)strlen(data->series[data->points[i].series].label);
        if (!is_probe_bar(&data->points[i]))
            continue;
        count++;
        longest = length > longest ? length : longest;
    }
    ra_plot_begin(script, "Longest sequence that fits", "", "tokens", 0);
    bars_begin(script, count, longest);
    fputs("set style histogram clustered\nset format y '%.0f'\n$bars << EOD\n", script);
    for (int i = 0; i < data->count; i++) {
        const ra_plot_point *p = &data->points[i];
        if (!is_probe_bar(p))
            continue;
        ra_plot_quote(script, data->series[p->series].label);
        fprintf(script, " %.17g\n", p->tokens);
    }
    fprintf(script,
            "EOD\nplot $bars using 2:xtic(1) fs pattern 1 border lc rgb '#333333' lc rgb '%s' "
            "notitle, $bars using 0:2:(sprintf('%%.0f', column(2))) with labels offset 0,0.7 "
            "notitle\n",
            ra_plot_palette[0]);
}
