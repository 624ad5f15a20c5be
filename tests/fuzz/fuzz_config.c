/*
 * Any bytes may stand in a configuration file or after --set: they are refused with one line, or
 * they become a configuration whose JSON reads back as the same one.
 *
 * The input is the file's text up to the first 0xff, then --set texts, each up to the next one.
 */
#include "tool/config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SETS_MAX = 8 };

/*
 * libfyaml 0.7 loses a buffer on some texts that it refuses in the middle of a quoted scalar. That
 * our use of it leaves nothing behind is checked by the ordinary tests, which do not suppress this.
 */
const char *__lsan_default_suppressions(void);

const char *__lsan_default_suppressions(void)
{
    return "leak:libfyaml.so\n";
}

static int lines;

static void check(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "broken: %s\n", what);
        abort();
    }
}

static void count_line(void *context, ra_log_level level, const char *line)
{
    (void)context;
    (void)level;
    lines++;
    for (; *line != '\0'; line++)
        check((unsigned char)*line >= 0x20, "a line with a control character");
}

static void check_round_trip(const ra_config *config)
{
    ra_config second = {0};
    json_t *json = ra_config_to_json(config);
    check(json != NULL, "a configuration without JSON");
    char *text = json_dumps(json, 0);
    check(text != NULL, "JSON that cannot be dumped");
    check(ra_config_parse("again", true, text, strlen(text), NULL, &second) == RA_OK,
          "JSON that is refused");
    json_t *again = ra_config_to_json(&second);
    check(again != NULL && json_equal(json, again), "JSON that reads back as another job");
    json_decref(json);
    json_decref(again);
    free(text);
    ra_config_fini(&second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *sets[SETS_MAX];
    ra_config_source source = {.sets = sets, .pick.variant = bytes % 2 == 1 ? "lean" : NULL};
    ra_config config = {0};
    char *text = malloc(bytes + 1);
    check(text != NULL, "memory");
    if (bytes > 0)
        memcpy(text, data, bytes);
    text[bytes] = '\0';
    char *cut = memchr(text, 0xff, bytes);
    size_t const text_bytes = cut != NULL ? (size_t)(cut - text) : bytes;
    for (char *end = text + bytes; cut != NULL && source.set_count < SETS_MAX;) {
        *cut = '\0';
        sets[source.set_count++] = cut + 1;
        cut = memchr(cut + 1, 0xff, (size_t)(end - cut - 1));
    }
    ra_log_set_handler(count_line, NULL);
    lines = 0;
    ra_status const status = ra_config_parse("fuzz.yaml", true, text, text_bytes, &source, &config);
    if (status == RA_OK) {
        check(lines == 0, "a line for what is right");
        check_round_trip(&config);
        ra_status const checked = ra_config_check(&config, 1 + (int)(bytes % 3));
        check(checked == RA_OK || (checked == RA_ERR_CONFIG && lines == 1), "not one line");
        ra_config_fini(&config);
    } else {
        check(status == RA_ERR_CONFIG, "a status that text cannot cause");
        check(lines == 1, "not one line for a mistake");
    }
    free(text);
    return 0;
}
