/* Configuration files as they stand, which people copy: each point must be taken. */
#ifndef RINGATTN_TESTS_CONFIG_POINTS_H
#define RINGATTN_TESTS_CONFIG_POINTS_H

#include "tool/config.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static inline ra_config config_of(const char *path, const ra_config_source *source)
{
    ra_config config = {0};
    char *text = NULL;
    size_t bytes = 0;
    cr_assert_eq(ra_config_read_file("configuration", path, &text, &bytes), RA_OK);
    cr_assert_eq(ra_config_parse(path, true, text, bytes, source, &config), RA_OK, "%s", path);
    free(text);
    return config;
}

/* Every combination of every variant passes all checks that need no tensors; how many points. */
static inline int64_t check_points(const char *path, int variants_least)
{
    int64_t points = 1;
    for (int64_t p = 1; p <= points; p++) {
        ra_config_source source = {.pick.sweep_point = p};
        ra_config base = config_of(path, &source);
        points = base.sweep_points > 1 ? base.sweep_points : 1;
        cr_assert_geq(base.variant_count, variants_least, "%s compares nothing", path);
        cr_expect_eq(ra_config_check(&base, 1), RA_OK, "%s", path);
        for (int v = 0; v < base.variant_count; v++) {
            source.pick.variant = base.variants[v];
            ra_config config = config_of(path, &source);
            cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s: %s", path, source.pick.variant);
            ra_config_fini(&config);
        }
        ra_config_fini(&base);
    }
    return points;
}

#endif
