#include "options_table.h"

#include <stdio.h>

const ra_command_entry ra_command_entries[] = {
    {"run", "compute attention, on one rank or on those that mpirun started", RA_COMMAND_RUN,
     false},
    {"info", "show topology, instruction sets, limits, and what this build can do", RA_COMMAND_INFO,
     false},
    {"bench", "time the points of a sweep, and the machine's own limits", RA_COMMAND_BENCH, false},
    {"plot", "draw what the others have written with --json", RA_COMMAND_PLOT, true},
    {"probe", "find the longest sequence that fits and runs, per variant", RA_COMMAND_PROBE, false},
    {"ablate", "run the job with each feature off in turn, and compare", RA_COMMAND_ABLATE, false},
    {"plan", "predict memory, traffic and times of a job without running it", RA_COMMAND_PLAN,
     false},
    {NULL, NULL, RA_COMMAND_HELP, false},
};

enum {
    RUN = 1 << RA_COMMAND_RUN,
    BENCH = 1 << RA_COMMAND_BENCH,
    PLOT = 1 << RA_COMMAND_PLOT,
    PROBE = 1 << RA_COMMAND_PROBE,
    ABLATE = 1 << RA_COMMAND_ABLATE,
    PLAN = 1 << RA_COMMAND_PLAN,
    CONFIGURED = RUN | BENCH | PROBE | ABLATE | PLAN |
                 1 << RA_COMMAND_INFO,     /* those that read a configuration */
    RANKED = RUN | BENCH | PROBE | ABLATE, /* those that compute on all ranks */
    ALL = CONFIGURED | PLOT
};

const ra_option_entry ra_option_entries[] = {
    {"--config", RA_OPTION_CONFIG, RA_VALUE_NEEDED, CONFIGURED, " FILE", "the job, in YAML"},
    {"--set", RA_OPTION_SET, RA_VALUE_NEEDED, CONFIGURED, " KEY=VALUE",
     "override a key of the configuration; may be repeated"},
    {"--variant", RA_OPTION_VARIANT, RA_VALUE_NEEDED, CONFIGURED, " NAME",
     "apply a named set of keys from the file's variants; bench, probe and plan take all without "
     "it"},
    {"--json", RA_OPTION_JSON, RA_VALUE_MAY, CONFIGURED, "[=FILE]",
     "write everything measured as JSON, to standard output instead of the table, or to FILE, "
     "which bench, probe and ablate write after each job"},
    {"--backward", RA_OPTION_BACKWARD, RA_VALUE_NONE, CONFIGURED, "", "compute gradients too"},
    {"--quiet", RA_OPTION_QUIET, RA_VALUE_NONE, ALL, "",
     "no progress, no remarks, nothing on placement; errors and other warnings stay"},
    {"--input", RA_OPTION_INPUT, RA_VALUE_NEEDED, RUN | BENCH | ABLATE | PLAN, " FILE",
     "safetensors file with q, k, v (and do)"},
    {"--output", RA_OPTION_OUTPUT, RA_VALUE_NEEDED, RUN, " FILE",
     "safetensors file to write: o, lse (and dq, dk, dv)"},
    {"--verify", RA_OPTION_VERIFY, RA_VALUE_NONE, RUN | BENCH | ABLATE | PLAN, "",
     "recompute sampled rows in float64 and compare; exit code 6 if they differ; plan: its memory"},
    {"--trace", RA_OPTION_TRACE, RA_VALUE_NEEDED, RUN, " FILE",
     "write what every rank did and when, for Perfetto or chrome://tracing"},
    {"--phases", RA_OPTION_PHASES, RA_VALUE_NONE, RUN | BENCH, "",
     "report what memory holds at each phase of the last passes too; for bench in --json"},
    {"--csv", RA_OPTION_CSV, RA_VALUE_MAY, BENCH, "[=FILE]",
     "write a line per point, to standard output instead of the table, or to FILE"},
    {"--overlap", RA_OPTION_OVERLAP, RA_VALUE_NONE, BENCH, "",
     "time computing and communication apart too, and say how much of them overlaps"},
    {"--ranks", RA_OPTION_RANKS, RA_VALUE_NEEDED, PLAN, " COUNT",
     "ranks to plan for, up to 4,096; without it, those of the hardware, or as many as were "
     "started"},
    {"--hardware", RA_OPTION_HARDWARE, RA_VALUE_NEEDED, PLAN, " FILE",
     "a machine in numbers, for times and for what is on which node: configs/hardware/*.yaml"},
    {"--calibrate", RA_OPTION_CALIBRATE, RA_VALUE_NEEDED, PLAN, " FILE",
     "learn this machine's speed from what bench has written with --json"},
    {"--longest", RA_OPTION_LONGEST, RA_VALUE_NONE, PLAN, "",
     "find the longest sequence for memory.limit, or for the hardware's memory"},
    {"--save", RA_OPTION_SAVE, RA_VALUE_NEEDED, PLAN, " FILE",
     "write the machine of --hardware and --calibrate as a hardware file"},
    {"--predict", RA_OPTION_PREDICT, RA_VALUE_NONE, PROBE, "",
     "compare what is found with what plan says"},
    {"--check", RA_OPTION_CHECK, RA_VALUE_NONE, 1 << RA_COMMAND_INFO, "",
     "compare every kernel with the plain one; exit code 6 if one is wrong"},
    {"--prefix", RA_OPTION_PREFIX, RA_VALUE_NEEDED, PLOT, " PATH",
     "pictures are PATH-memory.svg and so on; without it, the first file's name without .json"},
    {"--help-config", RA_OPTION_HELP_CONFIG, RA_VALUE_MAY, CONFIGURED, "[=markdown]",
     "list all keys of the configuration"},
    {"--help", RA_OPTION_HELP, RA_VALUE_NONE, ALL, "", "this text"},
    {"--version", RA_OPTION_VERSION, RA_VALUE_NONE, ALL, "", "the version"},
    {NULL, RA_OPTION_HELP, RA_VALUE_NONE, ALL, NULL, NULL},
};

bool ra_command_is_help(ra_command command)
{
    return command == RA_COMMAND_HELP || command == RA_COMMAND_HELP_CONFIG;
}

bool ra_option_is_for(const ra_option_entry *entry, ra_command command)
{
    return ra_command_is_help(command) || (entry->commands & 1u << command) != 0;
}

const ra_command_entry *ra_command_entry_of(ra_command command)
{
    for (const ra_command_entry *entry = ra_command_entries; entry->name != NULL; entry++) {
        if (entry->command == command)
            return entry;
    }
    return NULL;
}

/* Commands that take `entry`; all where it is NULL. */
static const char *list(const ra_option_entry *entry, const char *quote,
                        char text[RA_OPTION_LIST_MAX])
{
    size_t used = 0;
    text[0] = '\0';
    for (const ra_command_entry *c = ra_command_entries; c->name != NULL; c++) {
        if (entry != NULL && !ra_option_is_for(entry, c->command))
            continue;
        int const length = snprintf(text + used, RA_OPTION_LIST_MAX - used, "%s%s%s%s",
                                    used > 0 ? ", " : "", quote, c->name, quote);
        used += (size_t)length;
        if (used >= RA_OPTION_LIST_MAX)
            break;
    }
    return text;
}

const char *ra_option_users(const ra_option_entry *entry, char text[RA_OPTION_LIST_MAX])
{
    return list(entry, "'", text);
}

const char *ra_command_list(char text[RA_OPTION_LIST_MAX])
{
    return list(NULL, "", text);
}

static void usage_print(ra_command command)
{
    if (command != RA_COMMAND_HELP) {
        const ra_command_entry *entry = ra_command_entry_of(command);
        bool const ranks = (RANKED & 1 << command) != 0;
        printf("usage: %sringattn %s [options]%s\n", ranks ? "[mpirun -n RANKS] " : "", entry->name,
               entry->takes_files ? " FILE..." : "");
        return;
    }
    printf("ringattn %s: exact block-sparse ring attention over ranks\n\n"
           "usage: [mpirun -n RANKS] ringattn COMMAND [options]\n\ncommands:\n",
           ra_version());
    for (const ra_command_entry *entry = ra_command_entries; entry->name != NULL; entry++)
        printf("  %-8s %s\n", entry->name, entry->help);
}

void ra_options_print_help(const ra_options *options)
{
    if (options->version) {
        printf("ringattn %s\n", ra_version());
        return;
    }
    usage_print(options->help_for);
    printf("\noptions:\n");
    for (const ra_option_entry *entry = ra_option_entries; entry->name != NULL; entry++) {
        char left[40], users[RA_OPTION_LIST_MAX] = "";
        bool const some = options->help_for == RA_COMMAND_HELP && entry->commands != ALL &&
                          entry->commands != CONFIGURED;
        if (!ra_option_is_for(entry, options->help_for))
            continue;
        snprintf(left, sizeof(left), "%s%s", entry->name, entry->shown);
        printf("  %-24s %s%s%s%s\n", left, entry->help, some ? " (" : "",
               some ? ra_option_users(entry, users) : "", some ? ")" : "");
    }
    printf("\nexit codes: 0 done, 1 a defect in ringattn, 2 usage or configuration, 3 a file,\n"
           "  4 out of memory, 5 a peer, the network or a GPU, 6 verification failed\n");
}
