/* Configurations as tests write them: taken, or refused in one line. */
#ifndef RINGATTN_TESTS_PARSED_CONFIG_H
#define RINGATTN_TESTS_PARSED_CONFIG_H

#include "support/captured_log.h"
#include "tool/config_table.h"

#include <criterion/criterion.h>

static captured_log said;

static inline void begin(void)
{
    captured_log_begin(&said);
}

static inline ra_status parse_with(const char *text, const ra_config_source *source,
                                   ra_config *config)
{
    return ra_config_parse("job.yaml", true, text, strlen(text), source, config);
}

static inline ra_config parse(const char *text)
{
    ra_config config = {0};
    cr_assert_eq(parse_with(text, NULL, &config), RA_OK, "%s", said.line);
    return config;
}

/* Refused with exactly one line that holds all of `wanted`, which is ended by NULL. */
static inline void refuses_set(const char *text, const char *set, const char *const wanted[])
{
    ra_config config = {0};
    ra_config_source const source = {.sets = &set, .set_count = set != NULL};
    said.count = 0;
    ra_status status = parse_with(text, &source, &config);
    if (status == RA_OK)
        status = ra_config_check(&config, 1);
    cr_assert_eq(status, RA_ERR_CONFIG, "'%s' '%s' was taken", text, set != NULL ? set : "");
    cr_assert_eq(said.count, 1, "'%s': %d lines", text, said.count);
    for (int i = 0; wanted[i] != NULL; i++)
        cr_assert_not_null(strstr(said.line, wanted[i]), "'%s' does not say '%s'", said.line,
                           wanted[i]);
    cr_assert_null(strchr(said.line, '\n'));
    ra_config_fini(&config);
}

#define REFUSES(text, ...)    refuses_set(text, NULL, (const char *const[]){__VA_ARGS__, NULL})
#define REFUSES_SET(set, ...) refuses_set("", set, (const char *const[]){__VA_ARGS__, NULL})

#endif
