#include "options_table.h"

#include "bytes_text.h"

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

#define AT(member)   offsetof(ra_options, member)
#define FLAG(member) RA_OPTION_FLAG, AT(member), 0
#define ONCE(member) RA_OPTION_ONCE, AT(member), 0
#define STREAM(flag) RA_OPTION_STREAM, AT(flag), AT(flag##_path)
#define ALONE(kind)  RA_OPTION_##kind, 0, 0

const ra_option_entry ra_option_entries[] = {
    {"--config", ONCE(source.file), CONFIGURED, " FILE", "the job, in YAML; info only checks it"},
    {"--set", ALONE(SET), CONFIGURED, " KEY=VALUE",
     "override a key of the configuration; may be repeated"},
    {"--variant", ONCE(source.pick.variant), CONFIGURED, " NAME",
     "apply a named set of keys from the file's variants; bench, probe and plan take all without "
     "it"},
    {"--json", STREAM(json), CONFIGURED, "[=FILE]",
     "write everything measured as JSON, to standard output instead of the table, or to FILE, "
     "which bench, probe and ablate write after each job"},
    {"--backward", FLAG(source.backward), CONFIGURED, "", "compute gradients too"},
    {"--quiet", FLAG(quiet), ALL, "",
     "no progress, no remarks, nothing on placement; errors and other warnings stay"},
    {"--input", ONCE(source.input), RUN | BENCH | ABLATE | PLAN, " FILE",
     "safetensors file with q, k, v (and do)"},
    {"--output", ONCE(source.output), RUN, " FILE",
     "safetensors file to write: o, lse (and dq, dk, dv)"},
    {"--verify", FLAG(source.verify), RUN | BENCH | ABLATE | PLAN, "",
     "recompute sampled rows in float64 and compare; exit code 6 if they differ; plan: its memory"},
    {"--trace", ONCE(trace_path), RUN, " FILE",
     "write what every rank did and when, for Perfetto or chrome://tracing"},
    {"--phases", FLAG(phases), RUN | BENCH, "",
     "report what memory holds at each phase of the last passes too; for bench in --json"},
    {"--csv", STREAM(csv), BENCH, "[=FILE]",
     "write a line per point, to standard output instead of the table, or to FILE"},
    {"--overlap", FLAG(overlap), BENCH, "",
     "time computing and communication apart too, and say how much of them overlaps"},
    {"--ranks", ONCE(ranks), PLAN, " COUNT",
     "ranks to plan for, up to 4,096; without it, those of the hardware, or as many as were "
     "started"},
    {"--hardware", ONCE(hardware_path), PLAN, " FILE",
     "a machine in numbers, for times and for what is on which node: configs/hardware/*.yaml"},
    {"--calibrate", ONCE(calibrate_path), PLAN, " FILE",
     "learn this machine's speed from what bench has written with --json"},
    {"--longest", FLAG(longest), PLAN, "",
     "find the longest sequence for memory.limit, or for the hardware's memory"},
    {"--save", ONCE(save_path), PLAN, " FILE",
     "write the machine of --hardware and --calibrate as a hardware file"},
    {"--predict", FLAG(predict), PROBE, "", "compare what is found with what plan says"},
    {"--check", FLAG(check), 1 << RA_COMMAND_INFO, "",
     "compare every kernel with the plain one; exit code 6 if one is wrong"},
    {"--prefix", ONCE(prefix), PLOT, " PATH",
     "pictures are PATH-memory.svg and so on; without it, the first file's name without .json"},
    {"--help-config", ALONE(HELP_CONFIG), CONFIGURED, "[=markdown]",
     "list all keys of the configuration"},
    {"--help", ALONE(HELP), ALL, "", "this text"},
    {"--version", ALONE(VERSION), ALL, "", "the version"},
    {NULL, ALONE(HELP), ALL, NULL, NULL},
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
    text[0] = '\0';
    for (const ra_command_entry *c = ra_command_entries; c->name != NULL; c++) {
        if (entry == NULL || ra_option_is_for(entry, c->command))
            ra_text_append(text, RA_OPTION_LIST_MAX, ", ", "%s%s%s", quote, c->name, quote);
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
