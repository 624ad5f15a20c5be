/*
 * Draws the pictures of docs/patterns.md: draw_patterns FOLDER writes one SVG file per pattern,
 * pair by pair as ra_pattern_multiplicity defines it. What is drawn is the YAML that the page
 * shows.
 */
#include "tool/config.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 32, CELL = 9, SIDE = SEQ * CELL, LEFT = 34, TOP = 34, GAP = 34, RULES_MAX = 16 };

typedef struct picture {
    const char *name, *title, *yaml;
    int heads, panels; /* query heads of the job, and how many of them are drawn */
    int rule;          /* every so many tokens a block or segment begins; 0: none */
} picture;

static const picture pictures[] = {
    {"dense", "Every query sees every key", "", 1, 1, 0},
    {"causal", "causal: keys up to the query itself", "pattern: {causal: true}", 1, 1, 0},
    {"window", "window: 6 keys to the left, 2 to the right",
     "pattern: {window: {left: 6, right: 2}}", 1, 1, 0},
    {"window_causal", "A causal window of 7 keys", "pattern: {causal: true, window: {left: 6}}", 1,
     1, 0},
    {"sinks", "The first two keys stay visible",
     "pattern: {causal: true, window: {left: 6}, sinks: 2}", 1, 1, 0},
    {"documents", "Three documents that do not see one another",
     "pattern: {causal: true, documents: [12, 5, 15]}", 1, 1, 0},
    {"documents_sinks", "Every document has its own sinks",
     "pattern: {causal: true, window: {left: 3}, sinks: 2, documents: [12, 5, 15]}", 1, 1, 0},
    {"local_window", "Blocks of 4 tokens and their neighbours",
     "pattern: {blocks: {size: 4, kind: local_window, width: 1}}", 1, 1, 4},
    {"dilated_sparse", "Blocks at distances 0, 1, 2 and 4",
     "pattern: {blocks: {size: 2, kind: dilated_sparse, rates: [1, 2, 4]}}", 1, 1, 2},
    {"global_local", "One block that sees all and that all see",
     "pattern: {blocks: {size: 4, kind: global_local, globals: 1, width: 1}}", 1, 1, 4},
    {"random", "A fifth of all blocks, and the diagonal",
     "pattern: {blocks: {size: 2, kind: random, density: 0.2, seed: 1}}", 1, 1, 2},
    {"list", "The block pairs that the input file lists",
     "pattern: {blocks: {size: 8, kind: list}}\njob: {input: IN.safetensors}", 1, 1, 8},
    {"dilated", "Two branches for every head; what both keep counts twice",
     "pattern: {dilated: {segments: [8, 16], rates: [1, 2], heads: all}}", 2, 2, 8},
    {"dilated_grouped", "Each group of heads has one branch",
     "pattern: {dilated: {segments: [8, 16], rates: [1, 2], heads: grouped}}", 2, 2, 8},
    {"together", "All constraints hold together",
     "pattern: {causal: true, documents: [20, 12], blocks: {size: 4, kind: local_window}}", 1, 1,
     4},
};

static const int32_t listed_pairs[][2] = {{0, 0}, {1, 0}, {1, 1}, {2, 3}, {3, 1}};

/* ---- one panel: the pairs of one head -------------------------------------------------------- */

static void draw_rule(FILE *out, int at, const char *style)
{
    fprintf(out, "<path d='M%d 0V%d M0 %dH%d' %s/>\n", at, SIDE, at, SIDE, style);
}

/* Pairs of equal multiplicity that lie side by side are one rectangle. */
static void draw_pairs(FILE *out, const ra_pattern *pattern, int head)
{
    for (int i = 0; i < SEQ; ++i)
        for (int j = 0, end; j < SEQ; j = end) {
            int const m = ra_pattern_multiplicity(pattern, head, i, j);
            for (end = j + 1; end < SEQ && ra_pattern_multiplicity(pattern, head, i, end) == m;)
                ++end;
            if (m == 0)
                continue;
            fprintf(out, "<rect x='%d' y='%d' width='%d' height='%d' fill='%s'/>\n", j * CELL,
                    i * CELL, (end - j) * CELL, CELL, m == 1 ? "#7fa6cf" : "#1d3f66");
            for (int x = j; x < end && m > 1; ++x) /* the number says it without colour */
                fprintf(out,
                        "<text x='%.1f' y='%d' font-size='8' text-anchor='middle' fill='#fff'>%d"
                        "</text>\n",
                        (x + 0.5) * CELL, i * CELL + 8, m);
        }
}

static void draw_grid(FILE *out, const ra_pattern_config *config, int rule)
{
    for (int at = 1; at < SEQ; ++at)
        draw_rule(out, at * CELL, "stroke='#d5d9de' stroke-width='0.5'");
    for (int at = rule; rule > 0 && at < SEQ; at += rule)
        draw_rule(out, at * CELL, "stroke='#8a929c' stroke-width='0.8'");
    for (int64_t d = 0, at = 0; d + 1 < config->document_count; ++d) {
        at += config->documents[d];
        draw_rule(out, (int)at * CELL,
                  "stroke='#c23b22' stroke-width='1.5' stroke-dasharray='5 3'");
    }
    fprintf(out, "<rect width='%d' height='%d' fill='none' stroke='#333'/>\n", SIDE, SIDE);
}

static void draw_panel(FILE *out, const picture *what, const ra_config *config,
                       const ra_pattern *pattern, int head)
{
    fprintf(out, "<g transform='translate(%d %d)'>\n", LEFT + head * (SIDE + GAP), TOP);
    fprintf(out, "<rect width='%d' height='%d' fill='#fff'/>\n", SIDE, SIDE);
    draw_pairs(out, pattern, head);
    draw_grid(out, &config->pattern, what->rule);
    fprintf(out, "<text x='0' y='-8'>keys j \xe2\x86\x92</text>\n");
    if (what->panels > 1)
        fprintf(out, "<text x='%d' y='-8' text-anchor='end'>head %d</text>\n", SIDE, head);
    fprintf(out, "<text transform='translate(-10 0) rotate(-90)' text-anchor='end'>"
                 "\xe2\x86\x90 queries i</text>\n</g>\n");
}

/* ---- one file -------------------------------------------------------------------------------- */

static bool draw_file(const picture *what, const ra_config *config, const ra_pattern *pattern,
                      const char *folder)
{
    char path[1024];
    if (snprintf(path, sizeof(path), "%s/%s.svg", folder, what->name) >= (int)sizeof(path))
        return false;
    FILE *out = fopen(path, "w");
    if (out == NULL) {
        perror(path);
        return false;
    }
    int const width = LEFT + what->panels * SIDE + (what->panels - 1) * GAP + 10;
    fprintf(out,
            "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' role='img' "
            "font-family='sans-serif' font-size='12' fill='#333'>\n",
            width, TOP + SIDE + 10);
    fprintf(out,
            "<title>%s</title>\n<desc>%s</desc>\n<rect width='100%%' height='100%%' "
            "fill='#fff'/>\n",
            what->title, what->yaml);
    for (int head = 0; head < what->panels; ++head)
        draw_panel(out, what, config, pattern, head);
    fprintf(out, "</svg>\n");
    bool const written = !ferror(out);
    if (fclose(out) != 0 || !written) {
        perror(path);
        return false;
    }
    return true;
}

static bool draw(const picture *what, ra_pool *pool, const char *folder)
{
    ra_config_source const source = {0};
    ra_config config;
    ra_pattern *pattern;
    if (ra_config_parse(what->name, true, what->yaml, strlen(what->yaml), &source, &config) !=
        RA_OK)
        return false;
    bool drawn = false;
    if (config.pattern.blocks_kind == RA_BLOCKS_LIST) {
        config.pattern.block_pairs = listed_pairs;
        config.pattern.block_pair_count = sizeof(listed_pairs) / sizeof(listed_pairs[0]);
    }
    if (ra_pattern_create(&config.pattern, SEQ, what->heads, pool, &pattern) == RA_OK) {
        drawn = draw_file(what, &config, pattern, folder);
        ra_pattern_destroy(pattern);
    }
    ra_config_fini(&config);
    return drawn;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: draw_patterns FOLDER\n");
        return 2;
    }
    ra_ledger *ledger;
    ra_pool *pool;
    if (ra_ledger_create(INT64_MAX, &ledger) != RA_OK)
        return 1;
    ra_pool_config const pool_config = {.memory = ra_memory_host(), .ledger = ledger};
    bool drawn = ra_pool_create(&pool_config, &pool) == RA_OK;
    for (size_t i = 0; i < sizeof(pictures) / sizeof(pictures[0]) && drawn; ++i)
        drawn = draw(&pictures[i], pool, argv[1]);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return drawn ? 0 : 1;
}
