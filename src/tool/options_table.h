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

typedef enum ra_option_id {
    RA_OPTION_CONFIG,
    RA_OPTION_SET,
    RA_OPTION_VARIANT,
    RA_OPTION_JSON,
    RA_OPTION_BACKWARD,
    RA_OPTION_QUIET,
    RA_OPTION_INPUT,
    RA_OPTION_OUTPUT,
    RA_OPTION_VERIFY,
    RA_OPTION_TRACE,
    RA_OPTION_PHASES,
    RA_OPTION_CSV,
    RA_OPTION_OVERLAP,
    RA_OPTION_PREFIX,
    RA_OPTION_RANKS,
    RA_OPTION_HARDWARE,
    RA_OPTION_CALIBRATE,
    RA_OPTION_LONGEST,
    RA_OPTION_SAVE,
    RA_OPTION_PREDICT,
    RA_OPTION_CHECK,
    RA_OPTION_HELP_CONFIG,
    RA_OPTION_HELP,
    RA_OPTION_VERSION
} ra_option_id;

typedef enum ra_option_value { RA_VALUE_NONE, RA_VALUE_NEEDED, RA_VALUE_MAY } ra_option_value;

typedef struct ra_option_entry {
    const char *name;
    ra_option_id id;
    ra_option_value value;
    unsigned commands; /* bits 1 << ra_command: which ones it is for */
    const char *shown; /* how help writes the value */
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
