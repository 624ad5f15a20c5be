/*
 * The command line: which subcommand, and what it was given. One table in options_table.c
 * declares every subcommand and option; parsing and --help are both served by it.
 */
#ifndef RINGATTN_TOOL_OPTIONS_H
#define RINGATTN_TOOL_OPTIONS_H

#include "config.h"

typedef enum ra_command {
    RA_COMMAND_RUN,
    RA_COMMAND_INFO,
    RA_COMMAND_BENCH,
    RA_COMMAND_PLOT,
    RA_COMMAND_PROBE,
    RA_COMMAND_ABLATE,
    RA_COMMAND_PLAN,
    RA_COMMAND_HELP,       /* --help was asked for: print it and be done */
    RA_COMMAND_HELP_CONFIG /* --help-config */
} ra_command;

/* Everything is borrowed from argv, except the arrays that ra_options_fini frees. */
typedef struct ra_options {
    ra_command command;
    ra_command help_for;     /* with RA_COMMAND_HELP: a command; HELP: the whole program */
    bool version;            /* with RA_COMMAND_HELP: print the version only */
    bool markdown;           /* with RA_COMMAND_HELP_CONFIG */
    ra_config_source source; /* source.sets is owned */
    bool json;
    const char *json_path; /* NULL: standard output, and no table there */
    bool csv;
    const char *csv_path; /* NULL: standard output, and no table there */
    bool overlap;
    const char *trace_path; /* NULL: none */
    bool phases;
    const char **files; /* plot: at least one; in the memory of source.sets */
    int file_count;
    const char *prefix;                                 /* plot: NULL: from the first file's name */
    const char *ranks, *hardware_path, *calibrate_path; /* plan; NULL: not given */
    bool longest;                                       /* plan */
    const char *save_path;                              /* plan: the hardware as a file */
    bool predict;                                       /* probe */
    bool check;                                         /* info */
    bool quiet;
} ra_options;

/**
 * Parse a command line. What was wrong is one logged line with the nearest valid name.
 * @return RA_ERR_CONFIG, RA_ERR_NO_MEMORY
 */
RA_CHECKED ra_status ra_options_parse(int argc, char **argv, ra_options *options_out);
void ra_options_fini(ra_options *options); /* a zeroed one is fine */
/** Print the help that options->help_for asks for to standard output. */
void ra_options_print_help(const ra_options *options);

/** Whether standard output is for text: it is not asked for JSON or comma-separated values. */
bool ra_options_shows_text(const ra_options *options);

/** Whether ranks lost each other, so that nothing can be agreed on: the job is given up. */
bool ra_status_is_of_ranks(ra_status status);
/** The exit code that stands for a status: 0 to 5 (6, verification failed, is no status). */
int ra_exit_code(ra_status status);
enum { RA_EXIT_VERIFY = 6 };

/**
 * The subcommands; each returns the exit code. `comm` is a communicator over all ranks that were
 * started, or NULL if the process was started alone. The command takes it over and destroys it.
 */
int ra_command_run(const ra_options *options, ra_comm *comm);
int ra_command_info(const ra_options *options, ra_comm *comm);
int ra_command_bench(const ra_options *options, ra_comm *comm);
int ra_command_plot(const ra_options *options, ra_comm *comm);
int ra_command_probe(const ra_options *options, ra_comm *comm);
int ra_command_ablate(const ra_options *options, ra_comm *comm);
int ra_command_plan(const ra_options *options, ra_comm *comm);

#endif
