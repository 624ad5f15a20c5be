/*
 * The file that --trace writes: what a viewer needs of it, that it agrees with the report, and
 * what happens where it cannot be written.
 */
#include "comm/comm_internal.h"
#include "comm/local_ranks.h"
#include "support/captured_log.h"
#include "tool/command_runner.h"
#include "tool/json_reader.h"
#include "tool/trace_write.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

TestSuite(trace_file, .init = command_folder_make, .fini = command_folder_remove, .timeout = 200);

static command_result result;

/* ---- what is in it --------------------------------------------------------------------------- */

enum { RANKS_MAX = 4, TRACKS = 4 };

typedef struct summary {
    int named[RANKS_MAX], tracks[RANKS_MAX][TRACKS]; /* how often they were given a name */
    int kernels[RANKS_MAX], events[RANKS_MAX];
    long long sent_bytes, repetition_min, repetition_max;
} summary;

static void take_name(summary *s, json_t *event, int pid)
{
    const char *name = json_string_value(member(event, "name"));
    if (strcmp(name, "process_name") == 0) {
        char wanted[32];
        const char *shown = json_string_value(member(member(event, "args"), "name"));
        int const length = snprintf(wanted, sizeof(wanted), "rank %d on host ", pid);
        cr_expect_eq(strncmp(shown, wanted, (size_t)length), 0, "%s", shown);
        ++s->named[pid];
    }
    if (strcmp(name, "thread_name") == 0)
        ++s->tracks[pid][integer(event, "tid")];
}

static void take_event(summary *s, json_t *event, int pid, int ranks)
{
    const char *name = json_string_value(member(event, "name"));
    json_t *args = member(event, "args");
    long long const repetition = integer(args, "repetition");
    double const ts = json_number_value(member(event, "ts"));
    double const dur = json_number_value(member(event, "dur"));
    bool const computes = integer(event, "tid") == 0;
    const char *pass = json_string_value(member(args, "pass"));
    cr_expect(ts > 0 && dur >= 0, "%s at %f for %f", name, ts, dur);
    cr_expect_str_eq(json_string_value(member(event, "cat")),
                     computes ? "compute" : "communication");
    cr_expect(strcmp(pass, "forward") == 0 || strcmp(pass, "backward") == 0);
    cr_expect(integer(event, "tid") >= 0 && integer(event, "tid") < TRACKS);
    if (strncmp(name, "send ", 5) == 0 || strncmp(name, "receive ", 8) == 0 ||
        strncmp(name, "wait ", 5) == 0) {
        cr_expect(integer(args, "peer") >= 0 && integer(args, "peer") < ranks);
        cr_expect(integer(args, "peer") != pid);
        cr_expect(integer(args, "bytes") > 0 && integer(args, "rows") > 0);
        cr_expect(integer(args, "step") >= 1 && integer(args, "head_group") >= 0);
    }
    if (strncmp(name, "send ", 5) == 0 && repetition >= 0)
        s->sent_bytes += integer(args, "bytes");
    s->kernels[pid] += strstr(name, " kernel") != NULL;
    s->events[pid]++;
    s->repetition_min = repetition < s->repetition_min ? repetition : s->repetition_min;
    s->repetition_max = repetition > s->repetition_max ? repetition : s->repetition_max;
}

static summary summarize(json_t *root, int ranks)
{
    summary s = {.repetition_min = 1000, .repetition_max = -1000};
    size_t index;
    json_t *event;
    json_array_foreach(member(root, "traceEvents"), index, event)
    {
        int const pid = (int)integer(event, "pid");
        const char *phase = json_string_value(member(event, "ph"));
        cr_assert(pid >= 0 && pid < ranks, "pid %d", pid);
        cr_assert(strcmp(phase, "X") == 0 || strcmp(phase, "M") == 0);
        if (phase[0] == 'M')
            take_name(&s, event, pid);
        else
            take_event(&s, event, pid, ranks);
    }
    cr_assert_eq(integer(member(root, "otherData"), "lost_events"), 0);
    return s;
}

/* On several ranks with more events of each than go into a message, 256. */
static void check_job(int ranks, const char *schedule)
{
    enum { REPEAT = 9 };
    char line[512];
    int const members = ranks > 0 ? ranks : 1;
    snprintf(line, sizeof(line),
             "run --quiet --backward --json=r.json --trace t.json --set shape.seq=400"
             " --set shape.heads=2 --set ring.head_groups=2 --set job.repeat=%d --set job.warmup=1"
             " --set ring.layout=zigzag --set pattern.causal=true --set ring.schedule=%s",
             REPEAT, schedule);
    command_run(&result, ranks, line);
    cr_assert_eq(result.code, 0, "%s", result.err);
    json_t *root = load_json(command_folder, "t.json"),
           *report = load_json(command_folder, "r.json");
    summary const s = summarize(root, members);
    json_t *point = json_array_get(member(report, "points"), 0);
    cr_expect_eq(s.sent_bytes, REPEAT * integer(point, "sent_bytes"), "%s", schedule);
    cr_expect_eq(s.repetition_min, -1);
    cr_expect_eq(s.repetition_max, REPEAT - 1);
    for (int r = 0; r < members; ++r) {
        cr_expect_eq(s.named[r], 1);
        for (int track = 0; track < TRACKS; ++track)
            cr_expect_eq(s.tracks[r][track], 1);
        /* Zigzag: every rank computes in every step. Shared keys are one forward step. */
        int const forward = strcmp(schedule, "shared") == 0 ? 1 : members;
        cr_expect(members == 1 || s.events[r] > 256, "%d events", s.events[r]);
        cr_expect_eq(s.kernels[r], (1 + REPEAT) * 2 * (forward + members), "%s: %d", schedule,
                     s.kernels[r]);
    }
    json_decref(root);
    json_decref(report);
    cr_expect_eq(command_folder_entries(), 2);
}

Test(trace_file, one_rank_is_one_process_with_its_tracks)
{
    check_job(0, "direct");
}

Test(trace_file, every_rank_is_a_process_and_transfers_sum_up_to_the_report)
{
    if (!command_has_mpi())
        cr_skip_test("this build has no MPI");
    check_job(3, "ring");
    check_job(3, "direct");
    check_job(2, "shared");
}

Test(trace_file, events_that_do_not_fit_are_counted_and_said)
{
    char path[128], tail[200] = "";
    command_run(&result, 0,
                "run --quiet --trace t.json --set shape.seq=1 --set shape.heads=1"
                " --set shape.head_dim=1 --set compute.threads=1 --set job.repeat=70000");
    cr_assert_eq(result.code, 0, "%s", result.err);
    /* Pass, group, step and kernel, 70,000 times, less 2^18. */
    cr_expect_eq(command_count_lines(result.err, "17856 events did not fit"), 1, "%s", result.err);
    snprintf(path, sizeof(path), "%s/t.json", command_folder);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    cr_assert_eq(fseek(file, -150, SEEK_END), 0);
    cr_assert_gt(fread(tail, 1, sizeof(tail) - 1, file), 0);
    fclose(file);
    cr_expect_not_null(strstr(tail, "\"lost_events\":17856,\"untimed_events\":0}"), "%s", tail);
}

/* ---- where it cannot be written -------------------------------------------------------------- */

#define JOB "--quiet --set shape.seq=200 --set shape.heads=1 "

Test(trace_file, a_path_that_cannot_be_written_is_found_before_work_begins)
{
    int const ranks = command_has_mpi() ? 2 : 0;
    static const char *const paths[] = {"missing/t.json", "."};
    for (int i = 0; i < 2; ++i) {
        char line[200];
        snprintf(line, sizeof(line), "run " JOB "--output o.st --trace %s", paths[i]);
        command_run(&result, ranks, line);
        cr_expect_eq(result.code, 3, "%s: %d", paths[i], result.code);
        cr_expect_eq(command_count_lines(result.err, "ringattn: error: --trace:"), 1, "%s",
                     result.err);
        cr_expect_str_eq(result.out, "", "it has worked");
        cr_expect_eq(command_folder_entries(), 0);
    }
}

Test(trace_file, a_full_disk_is_one_line_and_exit_code_3)
{
    command_run(&result, command_has_mpi() ? 2 : 0, "run " JOB "--trace /dev/full");
    cr_expect_eq(result.code, 3);
    cr_expect_eq(command_count_lines(result.err, "/dev/full: cannot write the trace"), 1, "%s",
                 result.err);
}

Test(trace_file, a_file_that_cannot_grow_leaves_the_old_one_and_no_other)
{
    command_file_write("t.json", "old", 3);
    command_shell(&result, "ulimit -f 4; $RINGATTN run " JOB
                           "--set job.repeat=50 --trace t.json >/dev/null");
    cr_expect_eq(result.code, 3, "%d: %s", result.code, result.err);
    cr_expect_eq(command_count_lines(result.err, "t.json: cannot write the trace"), 1, "%s",
                 result.err);
    cr_expect_eq(command_folder_entries(), 1);
    char path[128], text[8] = "";
    snprintf(path, sizeof(path), "%s/t.json", command_folder);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    cr_expect_eq(fread(text, 1, sizeof(text) - 1, file), 3);
    fclose(file);
    cr_expect_str_eq(text, "old");
}

/* ---- every call that fails ------------------------------------------------------------------- */

/* Calls of rank 0, wrapped at link time: number `fault_at` of them fails. */
static atomic_int fault_at = -1, fault_seen;

static bool fault_hits(void)
{
    errno = EIO;
    return atomic_fetch_add(&fault_seen, 1) == atomic_load(&fault_at);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
FILE *__real_fdopen(int fd, const char *mode);
FILE *__wrap_fdopen(int fd, const char *mode);
int __real_fflush(FILE *stream);
int __wrap_fflush(FILE *stream);

int __wrap_fsync(int fd)
{
    return fault_hits() ? -1 : __real_fsync(fd);
}

int __wrap_rename(const char *from, const char *to)
{
    return fault_hits() ? -1 : __real_rename(from, to);
}

FILE *__wrap_fdopen(int fd, const char *mode)
{
    return fault_hits() ? NULL : __real_fdopen(fd, mode);
}

int __wrap_fflush(FILE *stream)
{
    return fault_hits() ? EOF : __real_fflush(stream);
}

static bool breaks; /* rank 0's communicator, before anything is written */

/* 1 where this rank was told of a failure. */
static int write_empty(ra_comm *comm, void *context)
{
    ra_ledger *ledger = NULL;
    ra_pool *pool = NULL;
    ra_trace *trace = NULL;
    ra_memory const memory = ra_memory_host();
    if (ra_ledger_create(INT64_MAX, &ledger) != RA_OK ||
        ra_pool_create(&(ra_pool_config){.memory = memory, .ledger = ledger}, &pool) != RA_OK ||
        ra_trace_create(pool, 1, 0, &trace) != RA_OK)
        return -100;
    if (breaks && ra_comm_rank(comm) == 0)
        ra_comm_break(comm);
    ra_status const status = ra_trace_write(trace, comm, context);
    ra_trace_destroy(trace);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    if (status != RA_OK && status != (breaks ? RA_ERR_PEER : RA_ERR_IO))
        return -100;
    return status != RA_OK;
}

/* But where the folder cannot be flushed, last of all: the file is whole, and has its name. */
Test(trace_file, every_call_that_fails_is_told_to_all_ranks_and_leaves_nothing)
{
    enum { RANKS = 3, CALLS = 5 }; /* fdopen, fflush, fsync, rename and fsync of the folder */
    char path[128];
    int failures = 0;
    captured_log said;
    snprintf(path, sizeof(path), "%s/t.json", command_folder);
    for (int at = 0; at < 20; ++at) {
        captured_log_begin(&said);
        atomic_store(&fault_seen, 0);
        atomic_store(&fault_at, at);
        int const told = local_ranks_run(RANKS, 30000, write_empty, path);
        bool const hit = atomic_load(&fault_seen) > at;
        atomic_store(&fault_at, -1);
        if (!hit) {
            cr_expect_eq(told, 0);
            cr_expect_eq(said.count, 0);
            break;
        }
        ++failures;
        cr_expect_eq(told, RANKS, "call %d: %d ranks were told", at, told);
        cr_expect_eq(said.count, 1, "call %d", at);
        cr_expect_eq(command_folder_entries(), at == CALLS - 1, "call %d", at);
        unlink(path);
    }
    ra_log_set_handler(NULL, NULL);
    cr_expect_eq(failures, CALLS);
    cr_expect_eq(command_folder_entries(), 1);
}

Test(trace_file, ranks_that_cannot_be_told_of_it_leave_nothing)
{
    char path[128];
    captured_log said;
    snprintf(path, sizeof(path), "%s/t.json", command_folder);
    captured_log_begin(&said);
    breaks = true;
    cr_expect_eq(local_ranks_run(2, 30000, write_empty, path), 2);
    cr_expect_eq(command_folder_entries(), 0);
    ra_log_set_handler(NULL, NULL);
}
