/* The command line, the nearest names, and what statuses become as exit codes. */
#include "support/captured_log.h"
#include "tool/nearest.h"
#include "tool/options.h"

#include <criterion/criterion.h>

static captured_log said;

static void begin(void)
{
    captured_log_begin(&said);
}

TestSuite(options, .init = begin);

enum { ARGUMENTS_MAX = 16 };

static ra_status parse(const char *const arguments[], ra_options *options)
{
    char *argv[ARGUMENTS_MAX + 2] = {(char *)"ringattn"};
    int argc = 1;
    for (; arguments[argc - 1] != NULL; argc++) {
        cr_assert_lt(argc, ARGUMENTS_MAX);
        argv[argc] = (char *)arguments[argc - 1];
    }
    said.count = 0;
    return ra_options_parse(argc, argv, options);
}

#define PARSE(options, ...) parse((const char *const[]){__VA_ARGS__, NULL}, options)

static void refused(ra_status status, ra_status wanted_status, const char *wanted)
{
    cr_assert_eq(status, wanted_status);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, wanted), "'%s' does not say '%s'", said.line, wanted);
}

Test(options, takes_every_option_of_run)
{
    ra_options o = {0};
    cr_assert_eq(PARSE(&o, "run", "--config", "f.yaml", "--set", "a=1", "--set=b=2", "--variant",
                       "lean", "--json=r.json", "--backward", "--quiet", "--input=i", "--output",
                       "o", "--verify"),
                 RA_OK);
    cr_assert_eq(o.command, RA_COMMAND_RUN);
    cr_assert_str_eq(o.source.file, "f.yaml");
    cr_assert_eq(o.source.set_count, 2);
    cr_assert_str_eq(o.source.sets[0], "a=1");
    cr_assert_str_eq(o.source.sets[1], "b=2");
    cr_assert_str_eq(o.source.pick.variant, "lean");
    cr_assert(o.json && o.quiet && o.source.backward && o.source.verify);
    cr_assert_str_eq(o.json_path, "r.json");
    cr_assert_str_eq(o.source.input, "i");
    cr_assert_str_eq(o.source.output, "o");
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "info", "--check"), RA_OK);
    cr_assert(o.check);
    ra_options_fini(&o);
    refused(PARSE(&o, "run", "--check"), RA_ERR_CONFIG, "--check");
    cr_assert_eq(PARSE(&o, "run", "--trace", "t.json"), RA_OK);
    cr_assert_str_eq(o.trace_path, "t.json");
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "run", "--phases"), RA_OK);
    cr_assert(o.phases && !o.json);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "run", "--json"), RA_OK);
    cr_assert(o.json && o.json_path == NULL);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "info", "--json=-"), RA_OK);
    cr_assert(o.command == RA_COMMAND_INFO && o.json && o.json_path == NULL);
    ra_options_fini(&o);
}

Test(options, help_and_version_end_the_parsing)
{
    ra_options o = {0};
    cr_assert_eq(PARSE(&o, "--help", "nonsense"), RA_OK);
    cr_assert(o.command == RA_COMMAND_HELP && o.help_for == RA_COMMAND_HELP && !o.version);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "run", "-h"), RA_OK);
    cr_assert(o.command == RA_COMMAND_HELP && o.help_for == RA_COMMAND_RUN);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "--version"), RA_OK);
    cr_assert(o.command == RA_COMMAND_HELP && o.version);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "run", "--help-config=markdown"), RA_OK);
    cr_assert(o.command == RA_COMMAND_HELP_CONFIG && o.markdown);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "run", "--help-config"), RA_OK);
    cr_assert(o.command == RA_COMMAND_HELP_CONFIG && !o.markdown);
    ra_options_fini(&o);
}

Test(options, takes_every_option_of_bench)
{
    ra_options o = {0};
    cr_assert_eq(PARSE(&o, "bench", "--config", "f.yaml", "--json=r.json", "--csv", "--overlap",
                       "--verify", "--input", "i"),
                 RA_OK);
    cr_assert_eq(o.command, RA_COMMAND_BENCH);
    cr_assert(o.json && o.csv && o.csv_path == NULL && o.overlap && o.source.verify);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "bench", "--json", "--csv=p.csv"), RA_OK);
    cr_assert_str_eq(o.csv_path, "p.csv");
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "bench", "--phases", "--json"), RA_OK);
    cr_assert(o.phases);
    ra_options_fini(&o);
    refused(PARSE(&o, "bench", "--phases", "--csv"), RA_ERR_CONFIG, "JSON only");
    refused(PARSE(&o, "bench", "--json", "--csv=-"), RA_ERR_CONFIG, "standard output");
    refused(PARSE(&o, "bench", "--output", "o"), RA_ERR_CONFIG, "an option of 'run'");
    refused(PARSE(&o, "run", "--overlap"), RA_ERR_CONFIG, "an option of 'bench'");
    refused(PARSE(&o, "info", "--csv"), RA_ERR_CONFIG, "an option of 'bench'");
}

Test(options, takes_every_option_of_plan_plot_and_probe)
{
    ra_options o = {0};
    cr_assert_eq(PARSE(&o, "plan", "--ranks", "8", "--hardware", "h", "--calibrate", "c",
                       "--longest", "--save", "s"),
                 RA_OK);
    cr_assert_str_eq(o.ranks, "8");
    cr_assert_str_eq(o.hardware_path, "h");
    cr_assert_str_eq(o.calibrate_path, "c");
    cr_assert_str_eq(o.save_path, "s");
    cr_assert(o.longest && !o.predict);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "plot", "--prefix", "p", "f.json"), RA_OK);
    cr_assert_str_eq(o.prefix, "p");
    cr_assert_eq(o.file_count, 1);
    ra_options_fini(&o);
    cr_assert_eq(PARSE(&o, "probe", "--predict"), RA_OK);
    cr_assert(o.predict && !o.longest);
    ra_options_fini(&o);
}

Test(options, mistakes_are_one_line_with_the_nearest_name)
{
    ra_options o = {0};
    static const char *const nothing[] = {NULL};
    refused(parse(nothing, &o), RA_ERR_CONFIG, "no command");
    refused(PARSE(&o, "rnu"), RA_ERR_CONFIG, "'run'");
    refused(PARSE(&o, "run", "--json", "r.json"), RA_ERR_CONFIG, "'--json=r.json'");
    refused(PARSE(&o, "run", "--quiet", "r.json"), RA_ERR_CONFIG, "--help");
    refused(PARSE(&o, "plot", ""), RA_ERR_CONFIG, "a file's name is empty");
    refused(PARSE(&o, "run", "job.yaml"), RA_ERR_CONFIG, "'--config job.yaml'");
    refused(PARSE(&o, "run", "--set", "shape.seq", "64"), RA_ERR_CONFIG, "'--set shape.seq=64'");
    refused(PARSE(&o, "run", "--set", "shape.seq=64", "64"), RA_ERR_CONFIG, "--help");
    refused(PARSE(&o, "run", "--set", "a.b", "=", "64"), RA_ERR_CONFIG, "'--set a.b=64'");
    refused(PARSE(&o, "run", "--set", "a.b", "=64"), RA_ERR_CONFIG, "'--set a.b=64'");
    refused(PARSE(&o, "run", "--set", "a.b", "="), RA_ERR_CONFIG, "--help");
    refused(PARSE(&o, "run", "--set", "a.b", "=", "--quiet"), RA_ERR_CONFIG, "--help");
    refused(PARSE(&o, "run", "--json", "=", "r.json"), RA_ERR_CONFIG, "'--json=r.json'");
    refused(PARSE(&o, "bench", "--ranks", "4"), RA_ERR_CONFIG, "mpirun -n COUNT");
    refused(PARSE(&o, "zzzzzzzz"), RA_ERR_CONFIG, "--help");
    refused(PARSE(&o, "run", "--confg", "x"), RA_ERR_CONFIG, "'--config'");
    refused(PARSE(&o, "run", "-x"), RA_ERR_CONFIG, "unknown option '-x'");
    refused(PARSE(&o, "run", "--seq", "64"), RA_ERR_CONFIG, "'--set shape.seq=VALUE'");
    refused(PARSE(&o, "run", "--shape.seq=64"), RA_ERR_CONFIG, "'--set shape.seq=VALUE'");
    refused(PARSE(&o, "run", "--seed=1"), RA_ERR_CONFIG,
            "did you mean '--set pattern.blocks.seed=VALUE' or '--set job.seed=VALUE'?");
    refused(PARSE(&o, "run", "-"), RA_ERR_CONFIG, "unknown option '-'");
    refused(PARSE(&o, "run", "--config"), RA_ERR_CONFIG, "--config FILE");
    refused(PARSE(&o, "run", "--config="), RA_ERR_CONFIG, "empty");
    refused(PARSE(&o, "run", "--config", "a", "--config", "b"), RA_ERR_CONFIG, "twice");
    refused(PARSE(&o, "run", "--json=a", "--json"), RA_ERR_CONFIG, "--json was given twice");
    refused(PARSE(&o, "run", "--json", "--json=a"), RA_ERR_CONFIG, "--json was given twice");
    refused(PARSE(&o, "run", "--json", "--json"), RA_ERR_CONFIG, "--json was given twice");
    refused(PARSE(&o, "run", "--trace", "a", "--trace", "b"), RA_ERR_CONFIG, "twice");
    refused(PARSE(&o, "bench", "--csv=a", "--csv=a"), RA_ERR_CONFIG, "--csv was given twice");
    refused(PARSE(&o, "run", "--quiet=1"), RA_ERR_CONFIG, "no value");
    refused(PARSE(&o, "run", "job.yaml"), RA_ERR_CONFIG, "job.yaml");
    refused(PARSE(&o, "run", "--help-config=html"), RA_ERR_CONFIG, "markdown");
    refused(PARSE(&o, "info", "--verify"), RA_ERR_CONFIG, "option of 'run'");
    refused(PARSE(&o, "--quiet"), RA_ERR_CONFIG, "no command");
}

Test(options, every_status_has_its_exit_code)
{
    static const int wanted[] = {
        [RA_OK] = 0,       [RA_ERR_INVALID] = 1,   [RA_ERR_CONFIG] = 2,
        [RA_ERR_IO] = 3,   [RA_ERR_NO_MEMORY] = 4, [RA_ERR_UNSUPPORTED] = 2,
        [RA_ERR_CUDA] = 5, [RA_ERR_NCCL] = 5,      [RA_ERR_MPI] = 5,
        [RA_ERR_PEER] = 5, [RA_ERR_TIMEOUT] = 5,   [RA_ERR_INTERNAL] = 1,
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++)
        cr_assert_eq(ra_exit_code((ra_status)i), wanted[i], "%s", ra_status_name((ra_status)i));
}

Test(nearest, counts_slips)
{
    cr_assert_eq(ra_edit_distance("", ""), 0);
    cr_assert_eq(ra_edit_distance("abc", ""), 3);
    cr_assert_eq(ra_edit_distance("", "abc"), 3);
    cr_assert_eq(ra_edit_distance("window", "window"), 0);
    cr_assert_eq(ra_edit_distance("windw", "window"), 1);   /* missing */
    cr_assert_eq(ra_edit_distance("winddow", "window"), 1); /* too many */
    cr_assert_eq(ra_edit_distance("windiw", "window"), 1);  /* another */
    cr_assert_eq(ra_edit_distance("widnow", "window"), 1);  /* swapped */
    cr_assert_eq(ra_edit_distance("kitten", "sitting"), 3);
}

Test(nearest, offers_only_what_is_near)
{
    ra_nearest nearest = ra_nearest_begin("seqq");
    ra_nearest_offer(&nearest, "batch");
    cr_assert_str_empty(nearest.name);
    ra_nearest_offer(&nearest, "seq");
    ra_nearest_offer(&nearest, "sex");
    cr_assert_str_eq(nearest.name, "seq");
    nearest = ra_nearest_begin("sm_90");
    ra_nearest_offer(&nearest, "sm_90abc");
    cr_assert_str_empty(nearest.name);
    ra_nearest_offer(&nearest, "sm_80");
    ra_nearest_offer(&nearest, "sm_90a");
    ra_nearest_offer(&nearest, "sm_91");
    cr_assert_str_eq(nearest.name, "sm_90a");
    char long_name[500]; /* a third of it is more than the distance of any two short names */
    memset(long_name, 'a', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    nearest = ra_nearest_begin(long_name);
    ra_nearest_offer(&nearest, "aaaa");
    cr_assert_str_empty(nearest.name);
}
