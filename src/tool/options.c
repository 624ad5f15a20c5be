#include "options_table.h"

#include "bytes_text.h"
#include "config_table.h"
#include "config_yaml.h"
#include "internal.h"
#include "nearest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ra_status refuse_nearest(const char *what, const char *name, ra_nearest nearest)
{
    char shown[48];
    ra_text_shown(name, shown);
    if (nearest.name[0] != '\0')
        ra_log(RA_LOG_ERROR, "unknown %s '%s'; did you mean '%s'?", what, shown, nearest.name);
    else
        ra_log(RA_LOG_ERROR, "unknown %s '%s'; see 'ringattn --help'", what, shown);
    return RA_ERR_CONFIG;
}

static ra_status command_find(const char *name, ra_command *command_out)
{
    ra_nearest nearest = ra_nearest_begin(name);
    for (const ra_command_entry *entry = ra_command_entries; entry->name != NULL; entry++) {
        if (strcmp(entry->name, name) == 0) {
            *command_out = entry->command;
            return RA_OK;
        }
        ra_nearest_offer(&nearest, entry->name);
    }
    return refuse_nearest("command", name, nearest);
}

/* "--seq" is no option, but shape.seq is a key; "--seed" may mean one of several. */
static void option_refuse(const char *name, ra_nearest nearest)
{
    enum { MEANT_MAX = 4 };
    char meant[256] = "";
    int count = 0;
    for (int i = 0; i < ra_config_key_count && strncmp(name, "--", 2) == 0; i++) {
        const char *path = ra_config_keys[i].path, *dot = strrchr(path, '.');
        if (strcmp(name + 2, path) != 0 && (dot == NULL || strcmp(name + 2, dot + 1) != 0))
            continue;
        if (++count <= MEANT_MAX)
            ra_text_append(meant, sizeof(meant), " or ", "'--set %s=VALUE'", path);
    }
    if (count > 0 && count <= MEANT_MAX)
        ra_log(RA_LOG_ERROR, "unknown option '%s'; did you mean %s?", name, meant);
    else
        (void)refuse_nearest("option", name, nearest);
}

/* Match argument `argv[*at]`, "--name" or "--name=value"; *at moves on to the value's argument. */
static ra_status option_match(int argc, char **argv, int *at, const ra_option_entry **entry_out,
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
    const ra_option_entry *entry = ra_option_entries;
    while (entry->name != NULL && strcmp(entry->name, name) != 0) {
        ra_nearest_offer(&nearest, entry->name);
        entry++;
    }
    if (entry->name == NULL) {
        option_refuse(name, nearest);
        return RA_ERR_CONFIG;
    }
    if (value != NULL && entry->shown[0] == '\0') {
        ra_log(RA_LOG_ERROR, "%s takes no value", entry->name);
        return RA_ERR_CONFIG;
    }
    if (value == NULL && entry->shown[0] == ' ') {
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

static ra_status twice_refuse(const char *name)
{
    ra_log(RA_LOG_ERROR, "%s was given twice", name);
    return RA_ERR_CONFIG;
}

static ra_status option_once(const char **member, const char *name, const char *value)
{
    if (*member != NULL)
        return twice_refuse(name);
    *member = value;
    return RA_OK;
}

/* For a file, or standard output without a value or with "-". */
static ra_status stream_once(bool *given, const char **path, const char *name, const char *value)
{
    if (*given)
        return twice_refuse(name);
    *given = true;
    *path = value != NULL && strcmp(value, "-") != 0 ? value : NULL;
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

static ra_status option_take(ra_options *options, const ra_option_entry *entry, const char *value,
                             const char **sets)
{
    unsigned char *const members = (unsigned char *)options;
    void *const member = members + entry->offset, *const path = members + entry->path_offset;
    switch (entry->kind) {
    case RA_OPTION_FLAG:
        *(bool *)member = true;
        return RA_OK;
    case RA_OPTION_ONCE:
        return option_once(member, entry->name, value);
    case RA_OPTION_STREAM:
        return stream_once(member, path, entry->name, value);
    case RA_OPTION_SET:
        sets[options->source.set_count++] = value;
        return RA_OK;
    case RA_OPTION_HELP_CONFIG:
        return help_config_take(options, value);
    case RA_OPTION_HELP:
    case RA_OPTION_VERSION:
        options->version = entry->kind == RA_OPTION_VERSION;
        options->help_for = options->command;
        options->command = RA_COMMAND_HELP;
        return RA_OK;
    }
    return RA_ERR_INTERNAL;
}

static bool files_taken(ra_command command)
{
    const ra_command_entry *entry = ra_command_entry_of(command);
    return entry != NULL && entry->takes_files;
}

static ra_status file_take(ra_options *options, const char *path)
{
    if (path[0] == '\0') {
        ra_log(RA_LOG_ERROR, "a file's name is empty");
        return RA_ERR_CONFIG;
    }
    options->files[options->file_count++] = path;
    return RA_OK;
}

/* The value in "KEY VALUE", "KEY =VALUE" and "KEY = VALUE", behind KEY; NULL: there is none. */
static const char *stray_value(char **argv, int at)
{
    const char *stray = argv[at], *next = argv[at + 1];
    if (strcmp(stray, "=") != 0)
        return stray + (stray[0] == '=');
    return next != NULL && strncmp(next, "--", 2) != 0 ? next : NULL;
}

/* An argument that belongs to nothing: the value of the option before it, or a configuration. */
static ra_status stray_refuse(char **argv, int at)
{
    const char *stray = argv[at], *before = argv[at - 1], *dot = strrchr(stray, '.');
    const char *value = stray_value(argv, at);
    char meant[240] = "";
    for (const ra_option_entry *entry = ra_option_entries; entry->name != NULL; entry++)
        if (value != NULL && entry->shown[0] == '[' && strcmp(entry->name, before) == 0)
            snprintf(meant, sizeof(meant), "%s=%.100s", before, value);
    if (value != NULL && strcmp(argv[at - 2], "--set") == 0 && strchr(before, '=') == NULL)
        snprintf(meant, sizeof(meant), "--set %.100s=%.100s", before, value);
    else if (meant[0] == '\0' && dot != NULL &&
             (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        snprintf(meant, sizeof(meant), "--config %.100s", stray);
    if (meant[0] != '\0')
        ra_log(RA_LOG_ERROR, "unexpected argument '%.100s'; did you mean '%s'?", stray, meant);
    else
        ra_log(RA_LOG_ERROR, "unexpected argument '%.100s'; see 'ringattn --help'", stray);
    return RA_ERR_CONFIG;
}

/* Check options against each other, unless help was requested. */
static ra_status options_check(const ra_options *options)
{
    char here[RA_OPTION_LIST_MAX];
    if (ra_command_is_help(options->command))
        ra_log(RA_LOG_ERROR, "no command: expected one of %s; see 'ringattn --help'",
               ra_command_list(here));
    else if (files_taken(options->command) && options->file_count == 0)
        ra_log(RA_LOG_ERROR, "no file: expected what another command has written with --json=FILE");
    else if (options->json && options->json_path == NULL && options->csv &&
             options->csv_path == NULL)
        ra_log(RA_LOG_ERROR, "--json and --csv: only one of them can go to standard output; give "
                             "the other a file, as in --csv=FILE");
    else if (options->command == RA_COMMAND_BENCH && options->phases && !options->json)
        ra_log(RA_LOG_ERROR, "--phases: a bench tells them in its JSON only: give --json too");
    else
        return RA_OK;
    return RA_ERR_CONFIG;
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
        const ra_option_entry *entry = NULL;
        const char *value = NULL;
        if (argv[at][0] != '-' && files_taken(command)) {
            status = file_take(options, argv[at]);
            continue;
        }
        if (argv[at][0] != '-')
            return stray_refuse(argv, at);
        status = option_match(argc, argv, &at, &entry, &value);
        if (status != RA_OK)
            return status;
        if (!ra_option_is_for(entry, command)) {
            char users[RA_OPTION_LIST_MAX];
            ra_log(RA_LOG_ERROR, "%s is an option of %s%s", entry->name,
                   ra_option_users(entry, users),
                   strcmp(entry->name, "--ranks") == 0 ? "; elsewhere mpirun -n COUNT starts them"
                                                       : "");
            return RA_ERR_CONFIG;
        }
        status = option_take(options, entry, value, sets);
        helped = entry->kind >= RA_OPTION_HELP_CONFIG;
    }
    return status != RA_OK || helped ? status : options_check(options);
}

ra_status ra_options_parse(int argc, char **argv, ra_options *options_out)
{
    ra_options options = {.command = RA_COMMAND_HELP, .help_for = RA_COMMAND_HELP};
    const char **sets = calloc(2 * ((size_t)argc + 1), sizeof(*sets));
    if (sets == NULL)
        return ra_refuse_memory("the arguments");
    options.source.sets = sets;
    options.files = sets + argc + 1;
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

bool ra_options_shows_text(const ra_options *options)
{
    return !(options->json && options->json_path == NULL) &&
           !(options->csv && options->csv_path == NULL);
}

bool ra_status_is_of_ranks(ra_status status)
{
    return status == RA_ERR_NCCL || status == RA_ERR_MPI || status == RA_ERR_PEER ||
           status == RA_ERR_TIMEOUT;
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
    case RA_ERR_CUDA:
    case RA_ERR_NCCL:
    case RA_ERR_MPI:
    case RA_ERR_PEER:
    case RA_ERR_TIMEOUT:
        return 5;
    case RA_ERR_INVALID:
    case RA_ERR_INTERNAL:
        return 1;
    }
    return 1;
}
