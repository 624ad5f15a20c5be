/*
 * Rank 0 works alone while the others wait under a deadline: it gives them signs of work, which a
 * communicator counts here. That such signs keep a wait from ending, the contract of communicators
 * shows (contract_beat.c).
 */
#include "comm/comm_internal.h"
#include "tool/gnuplot.h"
#include "tool/hardware.h"
#include "tool/job.h"
#include "tool/kernel_findings.h"
#include "tool/options.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int beats;
static char beat_path[64]; /* the file that a sign of work makes; "": none */

static void count_beat(ra_comm *comm)
{
    (void)comm;
    beats++;
    FILE *const file = beat_path[0] != '\0' ? fopen(beat_path, "w") : NULL;
    if (file != NULL)
        fclose(file);
}

static void destroy_nothing(ra_comm *comm)
{
    (void)comm;
}

/* One of two ranks, of which the other has nothing to say: what a single rank does with itself. */
static ra_comm first;
static ra_comm_ops counting;

static void begin(void)
{
    ra_comm *self;
    cr_assert_eq(ra_comm_create_self(1000, &self), RA_OK);
    counting = *self->ops;
    counting.beat = count_beat;
    counting.destroy = destroy_nothing;
    ra_comm_destroy(self);
    ra_comm_init(&first, &counting, 0, 2, 1000);
    beats = 0;
}

TestSuite(alone, .init = begin, .timeout = 60);

/* Linked with --wrap=ra_kernel_check: nothing is compared. */
static int checks;

ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out);
ra_status __wrap_ra_kernel_check(const ra_kernel_ops *ops, const ra_kernel_ops *plain,
                                 const ra_kernel_use *use, ra_kernel_poll *poll, void *poll_context,
                                 ra_kernel_verdict *verdict_out)
{
    (void)ops;
    (void)plain;
    (void)use;
    cr_assert_eq(beats, 2 * checks + 1, "before each");
    poll(poll_context);
    cr_assert_eq(beats, 2 * ++checks, "and meanwhile");
    *verdict_out = (ra_kernel_verdict){.agrees = true, .tensor = "out"};
    return RA_OK;
}

Test(alone, tells_the_others_while_it_checks_kernels)
{
    ra_kernel_finding found[RA_KERNEL_FINDINGS_MAX];
    int count = 0;
    cr_assert_eq(ra_kernel_findings_make(&first, 1, found, &count), RA_OK);
    cr_assert(count > 0 && checks >= 6 * count, "%d checks, %d findings", checks, count);
}

/* Linked with --wrap=ra_predict: how many predictions there were. */
static int predictions;

ra_status __real_ra_predict(const ra_predict_request *request, ra_prediction *prediction_out);
ra_status __wrap_ra_predict(const ra_predict_request *request, ra_prediction *prediction_out);
ra_status __wrap_ra_predict(const ra_predict_request *request, ra_prediction *prediction_out)
{
    int const before = beats;
    ra_status const status = __real_ra_predict(request, prediction_out);
    cr_assert_gt(beats, before + request->ranks, "rank by rank");
    predictions++;
    return status;
}

Test(alone, tells_the_others_while_it_plans)
{
    char *arguments[] = {"ringattn",  "plan",  "--ranks",           "8", "--set", "shape.seq=2048",
                         "--longest", "--set", "memory.limit=8MiB", NULL};
    ra_options options;
    cr_assert_eq(ra_options_parse(9, arguments, &options), RA_OK);
    cr_assert_eq(ra_command_plan(&options, &first), 0);
    cr_assert_gt(predictions, 2, "%d", predictions);
    ra_options_fini(&options);
}

/* A program of that name that draws when there was a sign of work, and gives up after long. */
Test(alone, tells_the_others_while_it_draws)
{
    char folder[] = "/tmp/ringattn-alone-XXXXXX", program[64], picture[64], path[4096];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(program, sizeof(program), "%s/gnuplot", folder);
    snprintf(picture, sizeof(picture), "%s/picture.svg", folder);
    snprintf(beat_path, sizeof(beat_path), "%s/beat", folder);
    FILE *file = fopen(program, "w");
    cr_assert_not_null(file);
    fprintf(file,
            "#!/bin/sh\n"
            "n=0\n"
            "until [ -e %s ]; do\n"
            "    [ $((n += 1)) -lt 1000 ] || exit 1\n"
            "    sleep 0.02\n"
            "done\n"
            "echo '<svg></svg>'\n",
            beat_path);
    cr_assert_eq(fclose(file), 0);
    cr_assert_eq(chmod(program, 0700), 0);
    snprintf(path, sizeof(path), "%s:%.4000s", folder, getenv("PATH"));
    cr_assert_eq(setenv("PATH", path, 1), 0);
    cr_expect_eq(ra_gnuplot_draw("", picture, &first), RA_OK, "no sign of work");
    cr_expect_geq(beats, 1);
    cr_expect_eq(remove(beat_path), 0);
    cr_expect_eq(remove(picture), 0);
    cr_expect_eq(remove(program), 0);
    cr_expect_eq(rmdir(folder), 0);
}
