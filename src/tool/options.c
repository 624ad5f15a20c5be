#include "options.h"

#include "config_yaml.h"
#include "nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct command_entry {
    const char *name;
    const char *help;
    ra_command command;
    bool not_here;
} command_entry;

static const command_entry commands[] = {
    {"run", "compute attention, on one rank or on those that mpirun started", RA_COMMAND_RUN,
     false},
    {"info", "show topology, instruction sets, limits, and what this build can do", RA_COMMAND_INFO,
     false},
    {"bench", "time the points of a sweep, and the machine's own limits", RA_COMMAND_BENCH, false},
    {"probe", "the longest sequence that fits", RA_COMMAND_HELP, true},
    {"ablate", "what each feature costs", RA_COMMAND_HELP, true},
    {"plan", "predictions without running", RA_COMMAND_HELP, true},
    {"plot", "pictures of results", RA_COMMAND_HELP, true},
    {NULL, NULL, RA_COMMAND_HELP, false},
};

typedef enum option_id {
    OPTION_CONFIG,
    OPTION_SET,
    OPTION_VARIANT,
    OPTION_JSON,
    OPTION_BACKWARD,
    OPTION_QUIET,
    OPTION_INPUT,
    OPTION_OUTPUT,
    OPTION_VERIFY,
    OPTION_TRACE,
    OPTION_CSV,
    OPTION_OVERLAP,
    OPTION_HELP_CONFIG,
    OPTION_HELP,
    OPTION_VERSION
} option_id;

typedef enum option_value { VALUE_NONE, VALUE_NEEDED, VALUE_MAY } option_value;

/* Which commands an option is for. */
enum {
    RUN = 1 << RA_COMMAND_RUN,
    BENCH = 1 << RA_COMMAND_BENCH,
    ALL = RUN | BENCH | 1 << RA_COMMAND_INFO
};

typedef struct option_entry {
    const char *name;
    option_id id;
    option_value value;
    unsigned commands;
    const char *shown; /* how help writes the value */
    const char *help;
} option_entry;

static const option_entry entries[] = {
    {"--config", OPTION_CONFIG, VALUE_NEEDED, ALL, " FILE", "the job, in YAML"},
    {"--set", OPTION_SET, VALUE_NEEDED, ALL, " KEY=VALUE",
     "override a key of the configuration; may be repeated"},
    {"--variant", OPTION_VARIANT, VALUE_NEEDED, ALL, " NAME",
     "apply a named set of keys from the file's variants; bench runs all without it"},
    {"--json", OPTION_JSON, VALUE_MAY, ALL, "[=FILE]",
     "write everything measured as JSON, to standard output instead of the table, or to FILE"},
    {"--backward", OPTION_BACKWARD, VALUE_NONE, ALL, "", "compute gradients too"},
    {"--quiet", OPTION_QUIET, VALUE_NONE, ALL, "",
     "no progress, no remarks, nothing on placement; errors and other warnings stay"},
    {"--input", OPTION_INPUT, VALUE_NEEDED, RUN | BENCH, " FILE",
     "safetensors file with q, k, v (and do)"},
    {"--output", OPTION_OUTPUT, VALUE_NEEDED, RUN, " FILE",
     "safetensors file to write: o, lse (and dq, dk, dv)"},
    {"--verify", OPTION_VERIFY, VALUE_NONE, RUN | BENCH, "",
     "recompute sampled rows in float64 and compare; exit code 6 if they differ"},
    {"--trace", OPTION_TRACE, VALUE_NEEDED, RUN, " FILE",
     "write what every rank did and when, for Perfetto or chrome://tracing"},
    {"--csv", OPTION_CSV, VALUE_MAY, BENCH, "[=FILE]",
     "write a line per point, to standard output instead of the table, or to FILE"},
    {"--overlap", OPTION_OVERLAP, VALUE_NONE, BENCH, "",
     "time computing and communication apart too, and say how much of them overlaps"},
    {"--help-config", OPTION_HELP_CONFIG, VALUE_MAY, ALL, "[=markdown]",
     "list all keys of the configuration"},
    {"--help", OPTION_HELP, VALUE_NONE, ALL, "", "this text"},
    {"--version", OPTION_VERSION, VALUE_NONE, ALL, "", "the version"},
    {NULL, OPTION_HELP, VALUE_NONE, ALL, NULL, NULL},
};

static ra_status refuse_nearest(const char *what, const char *name, ra_nearest nearest)
{
    char shown[48];
    ra_text_shown(name, shown);
    if (nearest.name != NULL)
        ra_log(RA_LOG_ERROR, "unknown %s '%s'; did you mean '%s'?", what, shown, nearest.name);
    else
        ra_log(RA_LOG_ERROR, "unknown %s '%s'; see 'ringattn --help'", what, shown);
    return RA_ERR_CONFIG;
}

static ra_status command_find(const char *name, ra_command *command_out)
{
    ra_nearest nearest = ra_nearest_begin(name);
    for (const command_entry *entry = commands; entry->name != NULL; entry++) {
        if (strcmp(entry->name, name) == 0 && entry->not_here) {
            ra_log(RA_LOG_ERROR, "'%s' is not in this version; it has run, bench and info", name);
            return RA_ERR_UNSUPPORTED;
        }
        if (strcmp(entry->name, name) == 0) {
            *command_out = entry->command;
            return RA_OK;
        }
        ra_nearest_offer(&nearest, entry->name);
    }
    return refuse_nearest("command", name, nearest);
}

/* Match argument `argv[*at]`, "--name" or "--name=value"; *at moves on to the value's argument. */
static ra_status option_match(int argc, char **argv, int *at, const option_entry **entry_out,
                              const char **value_out)
{
    const char *argument = argv[*at];
    size_t const length = strcspn(argument, "=");
    const char *value = argument[length] == '=' ? argument + length + 1 : NULL;
    char name[64];
    snprintf(name, sizeof(name), "%.*s", length < 60 ? (int)length : 60, argument);
    if (strcmp(name, "-h") == 0)
        snprintf(name, sizeof(name), "--help");
    ra_nearest nearest = ra_nearest_begin(name);
    const option_entry *entry = entries;
    while (entry->name != NULL && strcmp(entry->name, name) != 0) {
        ra_nearest_offer(&nearest, entry->name);
        entry++;
    }
    if (entry->name == NULL)
        return refuse_nearest("option", name, nearest);
    if (value != NULL && entry->value == VALUE_NONE) {
        ra_log(RA_LOG_ERROR, "%s takes no value", entry->name);
        return RA_ERR_CONFIG;
    }
    if (value == NULL && entry->value == VALUE_NEEDED) {
        if (*at + 1 >= argc) {
            ra_log(RA_LOG_ERROR, "%s needs a value: %s%s", entry->name, entry->name, entry->shown);
            return RA_ERR_CONFIG;
        }
        value = argv[++*at];
    }
    if (value != NULL && value[0] == '\0') {
        ra_log(RA_LOG_ERROR, "%s: the value is empty", entry->name);
        return RA_ERR_CONFIG;
    }
    *entry_out = entry;
    *value_out = value;
    return RA_OK;
}

static ra_status option_once(const char **member, const char *name, const char *value)
{
    if (*member != NULL) {
        ra_log(RA_LOG_ERROR, "%s was given twice", name);
        return RA_ERR_CONFIG;
    }
    *member = value;
    return RA_OK;
}

static ra_status help_config_take(ra_options *options, const char *value)
{
    if (value != NULL && strcmp(value, "markdown") != 0 && strcmp(value, "text") != 0) {
        ra_log(RA_LOG_ERROR, "--help-config: '%.40s' is not one of text, markdown", value);
        return RA_ERR_CONFIG;
    }
    options->command = RA_COMMAND_HELP_CONFIG;
    options->markdown = value != NULL && strcmp(value, "markdown") == 0;
    return RA_OK;
}

static ra_status option_take(ra_options *options, const option_entry *entry, const char *value,
                             const char **sets)
{
    ra_config_source *source = &options->source;
    switch (entry->id) {
    case OPTION_CONFIG:
        return option_once(&source->file, entry->name, value);
    case OPTION_SET:
        sets[source->set_count++] = value;
        return RA_OK;
    case OPTION_VARIANT:
        return option_once(&source->variant, entry->name, value);
    case OPTION_JSON:
        options->json = true;
        options->json_path = value != NULL && strcmp(value, "-") != 0 ? value : NULL;
        return RA_OK;
    case OPTION_BACKWARD:
        source->backward = true;
        return RA_OK;
    case OPTION_QUIET:
        options->quiet = true;
        return RA_OK;
    case OPTION_INPUT:
        return option_once(&source->input, entry->name, value);
    case OPTION_OUTPUT:
        return option_once(&source->output, entry->name, value);
    case OPTION_VERIFY:
        source->verify = true;
        return RA_OK;
    case OPTION_TRACE:
        return option_once(&options->trace_path, entry->name, value);
    case OPTION_CSV:
        options->csv = true;
        options->csv_path = value != NULL && strcmp(value, "-") != 0 ? value : NULL;
        return RA_OK;
    case OPTION_OVERLAP:
        options->overlap = true;
        return RA_OK;
    case OPTION_HELP_CONFIG:
        return help_config_take(options, value);
    case OPTION_HELP:
    case OPTION_VERSION:
        options->version = entry->id == OPTION_VERSION;
        options->help_for = options->command;
        options->command = RA_COMMAND_HELP;
        return RA_OK;
    }
    return RA_ERR_INTERNAL;
}

/* Help ends the parsing: what follows it does not matter. */
static bool is_help(ra_command command)
{
    return command == RA_COMMAND_HELP || command == RA_COMMAND_HELP_CONFIG;
}

/* Help of the whole program, and no command at all, know every option. */
static bool is_for(const option_entry *entry, ra_command command)
{
    return is_help(command) || (entry->commands & 1u << command) != 0;
}

/* "'run' and 'bench'" */
static const char *users_list(const option_entry *entry, char text[48])
{
    int used = 0;
    text[0] = '\0';
    for (const command_entry *c = commands; c->name != NULL && used < 40; c++) {
        if (!c->not_here && is_for(entry, c->command))
            used += snprintf(text + used, 48 - (size_t)used, "%s'%s'", used > 0 ? " and " : "",
                             c->name);
    }
    return text;
}

static ra_status arguments_take(int argc, char **argv, ra_options *options, const char **sets)
{
    bool const has_command = argc > 1 && argv[1][0] != '-';
    ra_status status = RA_OK;
    /* Without a command only --help, --version and the like are left to say. */
    ra_command command = RA_COMMAND_HELP;
    if (has_command)
        status = command_find(argv[1], &command);
    options->command = command;
    bool helped = false;
    for (int at = has_command ? 2 : 1; at < argc && status == RA_OK && !helped; at++) {
        const option_entry *entry = NULL;
        const char *value = NULL;
        if (argv[at][0] != '-') {
            ra_log(RA_LOG_ERROR, "unexpected argument '%.100s'; see 'ringattn --help'", argv[at]);
            return RA_ERR_CONFIG;
        }
        status = option_match(argc, argv, &at, &entry, &value);
        if (status != RA_OK)
            return status;
        if (!is_for(entry, command)) {
            char users[48];
            ra_log(RA_LOG_ERROR, "%s is an option of %s", entry->name, users_list(entry, users));
            return RA_ERR_CONFIG;
        }
        status = option_take(options, entry, value, sets);
        helped = entry->id == OPTION_HELP || entry->id == OPTION_VERSION ||
                 entry->id == OPTION_HELP_CONFIG;
    }
    if (status == RA_OK && !helped && is_help(command)) {
        ra_log(RA_LOG_ERROR, "no command: expected run, bench or info; see 'ringattn --help'");
        status = RA_ERR_CONFIG;
    }
    if (status == RA_OK && !helped && options->json && options->json_path == NULL && options->csv &&
        options->csv_path == NULL) {
        ra_log(RA_LOG_ERROR, "--json and --csv: only one of them can go to standard output; give "
                             "the other a file, as in --csv=FILE");
        status = RA_ERR_CONFIG;
    }
    return status;
}

ra_status ra_options_parse(int argc, char **argv, ra_options *options_out)
{
    ra_options options = {.command = RA_COMMAND_HELP, .help_for = RA_COMMAND_HELP};
    const char **sets = calloc((size_t)argc + 1, sizeof(*sets));
    if (sets == NULL) {
        ra_log(RA_LOG_ERROR, "out of memory");
        return RA_ERR_NO_MEMORY;
    }
    options.source.sets = sets;
    ra_status const status = arguments_take(argc, argv, &options, sets);
    if (status != RA_OK) {
        free(sets);
        return status;
    }
    *options_out = options;
    return RA_OK;
}

void ra_options_fini(ra_options *options)
{
    free((void *)options->source.sets);
    *options = (ra_options){0};
}

static const char *command_name(ra_command command)
{
    const command_entry *entry = commands;
    while (entry->name != NULL && (entry->not_here || entry->command != command))
        entry++;
    return entry->name != NULL ? entry->name : "";
}

void ra_options_print_help(const ra_options *options)
{
    if (options->version) {
        printf("ringattn %s\n", ra_version());
        return;
    }
    if (options->help_for == RA_COMMAND_HELP) {
        printf("ringattn %s: exact block-sparse ring attention over ranks\n\n"
               "usage: [mpirun -n RANKS] ringattn COMMAND [options]\n\ncommands:\n",
               ra_version());
        for (const command_entry *entry = commands; entry->name != NULL; entry++)
            printf("  %-8s %s%s\n", entry->name, entry->help,
                   entry->not_here ? " (not in this version)" : "");
    } else {
        bool const ranks = options->help_for != RA_COMMAND_INFO;
        printf("usage: %sringattn %s [options]\n", ranks ? "[mpirun -n RANKS] " : "",
               command_name(options->help_for));
    }
    printf("\noptions:\n");
    for (const option_entry *entry = entries; entry->name != NULL; entry++) {
        char left[40];
        char users[48] = "";
        bool const some = options->help_for == RA_COMMAND_HELP && entry->commands != ALL;
        if (!is_for(entry, options->help_for))
            continue;
        snprintf(left, sizeof(left), "%s%s", entry->name, entry->shown);
        printf("  %-24s %s%s%s%s\n", left, entry->help, some ? " (" : "",
               some ? users_list(entry, users) : "", some ? ")" : "");
    }
    printf("\nexit codes: 0 done, 1 a defect in ringattn, 2 usage or configuration, 3 a file,\n"
           "  4 out of memory, 5 a peer or the network, 6 verification failed\n");
}

int ra_exit_code(ra_status status)
{
    switch (status) {
    case RA_OK:
        return 0;
    case RA_ERR_CONFIG:
    case RA_ERR_UNSUPPORTED:
        return 2;
    case RA_ERR_IO:
        return 3;
    case RA_ERR_NO_MEMORY:
        return 4;
    case RA_ERR_NCCL:
    case RA_ERR_MPI:
    case RA_ERR_PEER:
    case RA_ERR_TIMEOUT:
        return 5;
    case RA_ERR_INVALID:
    case RA_ERR_CUDA:
    case RA_ERR_INTERNAL:
        return 1;
    }
    return 1;
}
