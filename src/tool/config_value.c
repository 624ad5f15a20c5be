#include "bytes_text.h"
#include "config_table.h"
#include "config_yaml.h"
#include "nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct unit {
    const char *name;
    int64_t factor;
} unit;

/* Both spellings are powers of 1024. */
static const unit size_units[] = {{"", 1},          {"K", 1 << 10},   {"KiB", 1 << 10},
                                  {"M", 1 << 20},   {"MiB", 1 << 20}, {"G", 1 << 30},
                                  {"GiB", 1 << 30}, {NULL, 0}};
static const unit time_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {NULL, 0}};

/* Digits, then a unit; -1 malformed, 1 does not fit, 0 read. */
static int integer_parse(const char *text, const unit *units, bool *negative_out,
                         uint64_t *magnitude_out)
{
    bool const negative = text[0] == '-';
    const char *at = text + (text[0] == '-' || text[0] == '+' ? 1 : 0);
    if (*at < '0' || *at > '9')
        return -1;
    uint64_t magnitude = 0;
    bool overflow = false;
    for (; *at >= '0' && *at <= '9'; at++) {
        overflow |= __builtin_mul_overflow(magnitude, 10, &magnitude);
        overflow |= __builtin_add_overflow(magnitude, (uint64_t)(*at - '0'), &magnitude);
    }
    while (units->name != NULL && strcmp(units->name, at) != 0)
        units++;
    if (units->name == NULL)
        return -1;
    overflow |= __builtin_mul_overflow(magnitude, (uint64_t)units->factor, &magnitude);
    *negative_out = negative;
    *magnitude_out = magnitude;
    return overflow ? 1 : 0;
}

void ra_config_key_expects(const ra_config_key *key, char *text, size_t bytes)
{
    const char *word = key->zero_name;
    const char *or_word = word != NULL ? ", or " : "";
    word = word != NULL ? word : "";
    long long const min = key->min, max = key->max;
    switch (key->type) {
    case RA_KEY_BOOL:
        snprintf(text, bytes, "true or false");
        return;
    case RA_KEY_INT32:
    case RA_KEY_INT64:
        snprintf(text, bytes, "an integer from %lld to %lld%s%s", min, max, or_word, word);
        return;
    case RA_KEY_UINT64:
        snprintf(text, bytes, "an integer from 0 to 18446744073709551615");
        return;
    case RA_KEY_BYTES:
        snprintf(text, bytes,
                 "a whole number of bytes, or of K, M, G (KiB, MiB, GiB), at least %lld%s%s", min,
                 or_word, word);
        return;
    case RA_KEY_TIME:
        snprintf(text, bytes, "a whole number of ms, s or m, from %lldms to %lldm%s%s", min,
                 max / 60000, or_word, word);
        return;
    case RA_KEY_REAL:
        snprintf(text, bytes, "a number from %g to %g%s%s", key->real_min, key->real_max, or_word,
                 word);
        return;
    case RA_KEY_TEXT:
        snprintf(text, bytes, "a file name, or none");
        return;
    case RA_KEY_LIST:
        snprintf(text, bytes, "a list, [A, B, ...], of integers from %lld to %lld", min, max);
        return;
    case RA_KEY_CHOICE:
        break;
    }
    snprintf(text, bytes, "one of");
    for (const ra_choice *choice = key->choices; choice->name != NULL; choice++)
        ra_text_append(text, bytes, choice == key->choices ? " " : ", ", "%s", choice->name);
}

static ra_status problem_expected(const ra_config_key *key, const char *text,
                                  char problem[RA_VALUE_PROBLEM_MAX])
{
    char expects[200], shown[48];
    ra_config_key_expects(key, expects, sizeof(expects));
    snprintf(problem, RA_VALUE_PROBLEM_MAX, "'%s' is not %s", ra_text_shown(text, shown), expects);
    return RA_ERR_CONFIG;
}

static ra_status integer_read(const ra_config_key *key, const char *text, int64_t *value_out,
                              char problem[RA_VALUE_PROBLEM_MAX])
{
    bool const is_time = key->type == RA_KEY_TIME;
    bool negative = false;
    uint64_t magnitude = 0;
    int const parsed =
        integer_parse(text, is_time ? time_units : size_units, &negative, &magnitude);
    if (parsed < 0) {
        ra_status const status = problem_expected(key, text, problem);
        if (!is_time && key->type != RA_KEY_BYTES)
            ra_text_append(problem, RA_VALUE_PROBLEM_MAX, " ",
                           "(K, M, G or KiB, MiB, GiB may follow)");
        return status;
    }
    if (key->type == RA_KEY_BYTES && !negative && (parsed > 0 || magnitude > (uint64_t)key->max)) {
        char shown[48];
        snprintf(problem, RA_VALUE_PROBLEM_MAX, "'%s' is above the most that it may be, %lld bytes",
                 ra_text_shown(text, shown), (long long)key->max);
        return RA_ERR_CONFIG;
    }
    if (parsed > 0 || magnitude > INT64_MAX)
        return problem_expected(key, text, problem);
    int64_t const value = negative ? -(int64_t)magnitude : (int64_t)magnitude;
    if (value < key->min || value > key->max)
        return problem_expected(key, text, problem);
    *value_out = value;
    return RA_OK;
}

static ra_status real_read(const ra_config_key *key, const char *text, double *value_out,
                           char problem[RA_VALUE_PROBLEM_MAX])
{
    /* strtod alone would also take "inf", "nan", hexadecimal and leading space. */
    char *end = NULL;
    if (text[0] == '\0' || strspn(text, "+-.0123456789eE") != strlen(text))
        return problem_expected(key, text, problem);
    double const value = strtod(text, &end);
    if (*end != '\0' || !(value >= key->real_min && value <= key->real_max))
        return problem_expected(key, text, problem);
    *value_out = value;
    return RA_OK;
}

/* What other programs call some of our choices. */
static const char *familiar(const char *text)
{
    static const char *const names[][2] = {{"gpu", "cuda"},    {"float", "f32"},
                                           {"float32", "f32"}, {"float16", "f16"},
                                           {"half", "f16"},    {"bfloat16", "bf16"}};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(text, names[i][0]) == 0)
            return names[i][1];
    }
    return text;
}

static ra_status choice_read(const ra_config_key *key, const char *text, unsigned *value_out,
                             char problem[RA_VALUE_PROBLEM_MAX])
{
    ra_nearest nearest = ra_nearest_begin(familiar(text));
    for (const ra_choice *choice = key->choices; choice->name != NULL; choice++) {
        ra_nearest_offer(&nearest, choice->name);
        if (strcmp(choice->name, text) != 0)
            continue;
        *value_out = choice->value;
        return RA_OK;
    }
    ra_status const status = problem_expected(key, text, problem);
    if (nearest.name[0] != '\0')
        ra_text_append(problem, RA_VALUE_PROBLEM_MAX, "; ", "did you mean '%s'?", nearest.name);
    return status;
}

static ra_status list_read(const ra_config_key *key, const ra_yaml_node *node,
                           ra_config_value *value, const ra_yaml_node **at_out,
                           char problem[RA_VALUE_PROBLEM_MAX])
{
    int64_t count = 0;
    for (const ra_yaml_node *item = node->first; item != NULL; item = item->next)
        count++;
    if (count == 0 && !key->keeps_empty)
        return RA_OK;
    int64_t *list = calloc((size_t)count + 1, sizeof(*list));
    if (list == NULL) {
        snprintf(problem, RA_VALUE_PROBLEM_MAX, "out of memory");
        return RA_ERR_NO_MEMORY;
    }
    int64_t at = 0;
    for (const ra_yaml_node *item = node->first; item != NULL; item = item->next) {
        const char *text = item->kind == RA_YAML_SCALAR ? item->text : "";
        ra_status const status = integer_read(key, text, &list[at++], problem);
        if (status != RA_OK) {
            *at_out = item;
            snprintf(problem, RA_VALUE_PROBLEM_MAX,
                     "item %lld must be an integer from %lld to %lld", (long long)at,
                     (long long)key->min, (long long)key->max);
            free(list);
            return status;
        }
    }
    value->list = list;
    value->list_count = count;
    return RA_OK;
}

static ra_status text_read(const char *text, ra_config_value *value,
                           char problem[RA_VALUE_PROBLEM_MAX])
{
    if (strcmp(text, "none") == 0)
        return RA_OK;
    if (text[0] == '\0') {
        snprintf(problem, RA_VALUE_PROBLEM_MAX, "it must not be empty");
        return RA_ERR_CONFIG;
    }
    if (!ra_text_is_line(text, strlen(text))) {
        snprintf(problem, RA_VALUE_PROBLEM_MAX,
                 "it must be UTF-8 text without control characters, as reports are");
        return RA_ERR_CONFIG;
    }
    value->text = strdup(text);
    if (value->text == NULL) {
        snprintf(problem, RA_VALUE_PROBLEM_MAX, "out of memory");
        return RA_ERR_NO_MEMORY;
    }
    return RA_OK;
}

static ra_status scalar_read(const ra_config_key *key, const char *text, ra_config_value *value,
                             char problem[RA_VALUE_PROBLEM_MAX])
{
    bool negative = false;
    int64_t integer = 0;
    ra_status status = RA_OK;
    if (key->zero_name != NULL && strcmp(text, key->zero_name) == 0)
        return RA_OK;
    switch (key->type) {
    case RA_KEY_BOOL:
        value->flag = strcmp(text, "true") == 0;
        return value->flag || strcmp(text, "false") == 0 ? RA_OK
                                                         : problem_expected(key, text, problem);
    case RA_KEY_INT32:
        status = integer_read(key, text, &integer, problem);
        value->narrow = (int32_t)integer; /* the key's range fits */
        return status;
    case RA_KEY_INT64:
    case RA_KEY_BYTES:
    case RA_KEY_TIME:
        return integer_read(key, text, &value->integer, problem);
    case RA_KEY_UINT64:
        return integer_parse(text, size_units, &negative, &value->bits) == 0 && !negative
                   ? RA_OK
                   : problem_expected(key, text, problem);
    case RA_KEY_REAL:
        return real_read(key, text, &value->real, problem);
    case RA_KEY_CHOICE:
        return choice_read(key, text, &value->choice, problem);
    case RA_KEY_TEXT:
        return text_read(text, value, problem);
    case RA_KEY_LIST:
        break;
    }
    return problem_expected(key, text, problem);
}

ra_status ra_config_value_read(const ra_config_key *key, const ra_yaml_node *node,
                               ra_config_value *value_out, const ra_yaml_node **at_out,
                               char problem[RA_VALUE_PROBLEM_MAX])
{
    static const char *const shown[] = {
        [RA_YAML_NULL] = "", [RA_YAML_SEQUENCE] = "[...]", [RA_YAML_MAPPING] = "{...}"};
    ra_config_value value = {0};
    ra_status status = RA_ERR_CONFIG;
    *at_out = node;
    if (node->kind == RA_YAML_SCALAR)
        status = scalar_read(key, node->text, &value, problem);
    else if (node->kind == RA_YAML_SEQUENCE && key->type == RA_KEY_LIST)
        status = list_read(key, node, &value, at_out, problem);
    else
        status = problem_expected(key, shown[node->kind], problem);
    if (status == RA_OK)
        *value_out = value;
    return status;
}
