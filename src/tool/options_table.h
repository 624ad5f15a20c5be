/* The one table of subcommands and options: parsing (options.c) and help are both served by it. */
#ifndef RINGATTN_TOOL_OPTIONS_TABLE_H
#define RINGATTN_TOOL_OPTIONS_TABLE_H

#include "options.h"

typedef struct ra_command_entry {
    const char *name;
    const char *help;
    ra_command command;
    bool takes_files; /* arguments without a dash */
} ra_command_entry;

extern const ra_command_entry ra_command_entries[]; /* ended by a NULL name */

typedef enum ra_option_kind {
    RA_OPTION_FLAG,   /* a bool */
    RA_OPTION_ONCE,   /* text */
    RA_OPTION_STREAM, /* a bool, and the path of a file, or NULL for standard output */
    RA_OPTION_SET,    /* one more of source.sets */
    /* Parsing ends with these. */
    RA_OPTION_HELP_CONFIG,
    RA_OPTION_HELP,
    RA_OPTION_VERSION
} ra_option_kind;

typedef struct ra_option_entry {
    const char *name;
    ra_option_kind kind;
    size_t offset, path_offset; /* in ra_options; path_offset: streams */
    unsigned commands;          /* bits 1 << ra_command: which ones it is for */
    const char *shown; /* the value in help: "" none, " FILE" a needed one, "[=FILE]" one at will */
    const char *help;
} ra_option_entry;

extern const ra_option_entry ra_option_entries[]; /* ended by a NULL name */

/** Whether a command takes an option; the whole program's help, or no command, takes all. */
bool ra_option_is_for(const ra_option_entry *entry, ra_command command);
/** Whether parsing ends with this: help of either kind. */
bool ra_command_is_help(ra_command command);
/** NULL for help. */
const ra_command_entry *ra_command_entry_of(ra_command command);

enum { RA_OPTION_LIST_MAX = 96 };

/** "'run', 'bench'": commands that take an option. */
const char *ra_option_users(const ra_option_entry *entry, char text[RA_OPTION_LIST_MAX]);
/** "run, bench, info": all commands. */
const char *ra_command_list(char text[RA_OPTION_LIST_MAX]);

#endif
