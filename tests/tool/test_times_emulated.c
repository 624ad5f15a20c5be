/*
 * Times of the whole command with the kernels for GPUs, on the stand-in runtime: what a report and
 * a trace say is about work that is done, not about its being handed on.
 */
#include "tool/device_runner.h"

TestSuite(times_emulated, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 300);

#define JOB                                                                                        \
    "run --quiet --set compute.backend=cuda --set shape.seq=40 --set shape.heads=1 "               \
    "--set shape.head_dim=16 --set shape.dtype=f32 --backward "

static void run_well(const char *start, const char *arguments)
{
    run(start, arguments);
    cr_assert_eq(result.code, 0, "%s", result.err);
}

/* The stand-in does work when it is asked whether it is done: a pass that does not ask takes none
   of the naps that are in it. Each has a launch at least, and resets its tickets. */
static void expect_naps(const char *more)
{
    char line[512];
    snprintf(line, sizeof(line), JOB "--json=r.json --set job.repeat=2 %s", more);
    run_well("RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_NAP_MS=10", line);
    json_t *root = load_json(command_folder, "r.json");
    const json_t *point = first_point(root);
    cr_expect_geq(real(member(point, "forward_ms"), "min"), 10, "%s", more);
    cr_expect_geq(real(member(point, "backward_ms"), "min"), 20, "%s", more);
    json_decref(root);
}

Test(times_emulated, times_of_passes_are_those_of_finished_work)
{
    expect_naps("");
    expect_naps("--set attention.kind=linear_causal");
    expect_naps("--set memory.pool.mode=driver");
}

/* ---- traces ---------------------------------------------------------------------------------- */

typedef struct summary {
    int kernels, transfers, waits, untimed;
} summary;

/* Work takes 100 s of the stand-in's time, which is nobody else's. */
static summary check_events(json_t *root)
{
    summary s = {0};
    size_t index;
    json_t *event;
    json_array_foreach(member(root, "traceEvents"), index, event)
    {
        const char *const name = text(event, "name");
        if (strcmp(text(event, "ph"), "X") != 0)
            continue;
        const char *const clock =
            json_string_value(json_object_get(member(event, "args"), "clock"));
        double const us = real(event, "dur");
        bool const waits = integer(event, "tid") == 3;
        bool const moves = strncmp(name, "send ", 5) == 0 || strncmp(name, "receive ", 8) == 0;
        cr_expect_eq(clock != NULL, !waits, "%s", name);
        s.waits += waits;
        s.transfers += moves;
        s.kernels += strstr(name, " kernel") != NULL;
        if (strstr(name, " kernel") != NULL || moves)
            cr_expect_geq(us, 99e6, "%s took %g us", name, us);
        if (waits)
            cr_expect_lt(us, 99e6, "%s took %g us", name, us);
    }
    s.untimed = (int)integer(member(root, "otherData"), "untimed_events");
    return s;
}

Test(times_emulated, a_trace_shows_when_kernels_ran)
{
    run_well("RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_WORK_S=100", JOB "--trace t.json");
    json_t *root = load_json(command_folder, "t.json");
    summary const s = check_events(root);
    cr_expect_eq(s.kernels, 2);
    cr_expect_eq(s.untimed, 0);
    json_decref(root);
}

Test(times_emulated, a_trace_shows_when_messages_of_gpus_travelled)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    for (int i = 0; i < 2; i++) {
        run_well("RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_WORK_S=100 \"$MPIEXEC\" -n 2",
                 i == 0 ? JOB "--trace t.json --set comm.backend=nccl"
                        : JOB "--trace t.json --set comm.backend=mpi");
        json_t *root = load_json(command_folder, "t.json");
        summary const s = check_events(root);
        cr_expect_geq(s.kernels, 4);
        cr_expect_geq(s.transfers, 4);
        cr_expect_geq(s.waits, 2);
        cr_expect_eq(s.untimed, 0);
        json_decref(root);
    }
}

Test(times_emulated, a_gpu_without_times_is_said_and_its_work_is_shown_as_handed_on)
{
    run_well("RA_STANDIN_MULTIPROCESSORS=2 RA_STANDIN_UNTIMED=1", JOB "--trace t.json");
    json_t *root = load_json(command_folder, "t.json");
    cr_expect_gt(integer(member(root, "otherData"), "untimed_events"), 0);
    cr_expect_eq(command_count_lines(result.err, "times of the GPU's work are not to be had"), 1,
                 "%s", result.err);
    cr_expect_eq(command_count_lines(result.err, "not when it ran"), 1, "%s", result.err);
    cr_expect_null(strstr(result.err, "ringattn: error"), "%s", result.err);
    json_decref(root);
}
