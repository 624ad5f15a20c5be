/*
 * A signal that ends a process while it writes an output leaves no temporary file, and under the
 * output's name nothing or all of it. The signal comes at every call that the writer makes to the
 * system, right before and right after it: in a child that raises it there, so that timing plays
 * no part. A whole job under mpirun is ended likewise, by a library that is loaded into rank 0.
 */
#include "comm/local_ranks.h"
#include "tool/command_runner.h"
#include "tool/doomed_file.h"
#include "tool/output_file.h"
#include "tool/tensor_fixture.h"
#include "tool/tensors.h"
#include "tool/trace_write.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(signals, .init = fixture_begin, .fini = fixture_end);
TestSuite(ended_job, .init = command_folder_make, .fini = command_folder_remove);

/* ---- the calls at which the signal comes ----------------------------------------------------- */

/* Point 2 n is before call n, point 2 n + 1 after it. A thread of any rank may come to it. */
static struct {
    int point, number; /* number 0: no signal */
    atomic_int passed;
} doom;

static void pass(void)
{
    if (doom.number != 0 && atomic_fetch_add(&doom.passed, 1) == doom.point)
        raise(doom.number);
}

#define WRAP(type, call, parameters, arguments)                                                    \
    type __real_##call parameters;                                                                 \
    type __wrap_##call parameters;                                                                 \
    type __wrap_##call parameters                                                                  \
    {                                                                                              \
        pass();                                                                                    \
        type const result = __real_##call arguments;                                               \
        pass();                                                                                    \
        return result;                                                                             \
    }

WRAP(int, fallocate, (int fd, int mode, off_t offset, off_t bytes), (fd, mode, offset, bytes))
WRAP(ssize_t, pwrite, (int fd, const void *data, size_t bytes, off_t offset),
     (fd, data, bytes, offset))
WRAP(int, fsync, (int fd), (fd))
WRAP(int, rename, (const char *from, const char *to), (from, to))
WRAP(int, fputs, (const char *text, FILE *file), (text, file))
WRAP(int, fclose, (FILE * file), (file))

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t const mode = (flags & O_CREAT) != 0 ? va_arg(args, mode_t) : 0;
    va_end(args);
    pass();
    int const fd = __real_open(path, flags, mode);
    pass();
    return fd;
}

/* ---- the outputs ----------------------------------------------------------------------------- */

enum { RANKS = 2, SEQ = 6, HEADS = 2, DIM = 4 };

static int write_tensors_of(ra_comm *comm, void *context)
{
    const ra_config *config = context;
    int const rank = ra_comm_rank(comm), ranks = ra_comm_size(comm);
    float const o[SEQ * HEADS * DIM] = {0}, lse[SEQ * HEADS] = {0};
    ra_range const range = {rank, ranks, SEQ / ranks};
    ra_result_tensors const results = {.o = o, .lse = lse};
    ra_rowset rows;
    ra_nonfinite found;
    ra_status status = ra_rowset_init(pool, &range, 1, &rows);
    if (status == RA_OK)
        status = ra_result_write(config, comm, &rows, &results, &found);
    ra_rowset_fini(pool, &rows);
    return status != RA_OK;
}

static int write_tensors_on(int ranks)
{
    ra_config config = parse_config("shape: {seq: %d, heads: %d, kv_heads: %d, head_dim: %d,"
                                    " dtype: f32}\njob: {output: %s}",
                                    SEQ, HEADS, HEADS, DIM, in_folder("out"));
    int const failures = local_ranks_run(ranks, 30000, write_tensors_of, &config);
    ra_config_fini(&config);
    return failures;
}

static int write_alone(void)
{
    return write_tensors_on(1);
}

static int write_together(void)
{
    return write_tensors_on(RANKS);
}

static int write_report(void)
{
    return ra_text_write("{}\n", in_folder("out")) != RA_OK;
}

static int write_trace_of(ra_comm *comm, void *context)
{
    ra_trace *trace = context;
    return ra_trace_write(trace, comm, in_folder("out")) != RA_OK;
}

static int write_trace(void)
{
    ra_trace *trace;
    if (ra_trace_create(pool, 4, 0, &trace) != RA_OK)
        return 1;
    int const failures = local_ranks_run(1, 30000, write_trace_of, trace);
    ra_trace_destroy(trace);
    return failures;
}

/* ---- ended at every point -------------------------------------------------------------------- */

static off_t bytes_in_folder(const char *name)
{
    int const fd = __real_open(in_folder(name), O_RDONLY);
    off_t const bytes = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1;
    if (fd >= 0)
        close(fd);
    return bytes;
}

/* The state in which a child ends that writes, and to which a signal comes at `point`. */
static int write_in_child(int (*write_output)(void), int number, sighandler_t action, int point)
{
    int state;
    pid_t const child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct rlimit const no_core = {0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(number, action);
        doom.point = point;
        doom.number = number;
        _exit(write_output());
    }
    cr_assert_eq(waitpid(child, &state, 0), child);
    return state;
}

/* A child writes and is ended at `point`; whether it came so far. */
static bool end_at(int (*write_output)(void), int number, int point, off_t whole)
{
    int const state = write_in_child(write_output, number, SIG_DFL, point);
    bool const reached = !WIFEXITED(state) || WEXITSTATUS(state) != 0;
    cr_assert(!reached || (WIFSIGNALED(state) && WTERMSIG(state) == number), "point %d: state %d",
              point, state);
    off_t const bytes = bytes_in_folder("out");
    cr_assert_eq(entries_in_folder(), bytes < 0 ? 0 : 1, "signal %d at point %d left a file",
                 number, point);
    cr_assert(bytes < 0 ? reached : bytes == whole, "point %d: %lld bytes", point,
              (long long)bytes);
    unlink(in_folder("out"));
    return reached;
}

static void sweep(int (*write_output)(void), int number, int least)
{
    int point = 0;
    cr_assert_eq(write_output(), 0);
    off_t const whole = bytes_in_folder("out");
    cr_assert_gt(whole, 0);
    unlink(in_folder("out"));
    while (end_at(write_output, number, point, whole))
        ++point;
    cr_assert_geq(point, least, "only %d points", point);
}

Test(signals, leave_whole_tensors_or_none)
{
    enum { CALLS = 7 + SEQ }; /* file, space, header, rows, flush, folder, name, flush */
    sweep(write_alone, SIGTERM, 2 * CALLS - 10);
    sweep(write_alone, SIGINT, 2 * CALLS - 10);
    sweep(write_alone, SIGHUP, 2 * CALLS - 10);
}

Test(signals, leave_whole_tensors_or_none_of_several_ranks)
{
    sweep(write_together, SIGTERM, 2 * (7 + SEQ));
}

/*
 * Who opens a file that another creates has named it before, and names it again. The signal comes
 * at any time of that, from outside; a round that fails can only be one where it was forgotten.
 */
Test(signals, find_a_file_that_is_named_again)
{
    for (int round = 0; round < 200; round++) {
        int ends[2], state;
        char ready;
        cr_assert_eq(pipe(ends), 0);
        pid_t const child = fork();
        cr_assert_geq(child, 0);
        if (child == 0) {
            ra_doomed_file_set(in_folder("doomed"));
            close(creat(in_folder("doomed"), 0600));
            close(ends[1]);
            for (;;)
                ra_doomed_file_set(in_folder("doomed"));
        }
        close(ends[1]);
        cr_assert_eq(read(ends[0], &ready, 1), 0);
        close(ends[0]);
        usleep(100 + (useconds_t)round);
        cr_assert_eq(kill(child, SIGTERM), 0);
        cr_assert_eq(waitpid(child, &state, 0), child);
        cr_assert(WIFSIGNALED(state) && WTERMSIG(state) == SIGTERM, "state %d", state);
        cr_assert_eq(entries_in_folder(), 0, "round %d left a file", round);
    }
}

static const int numbers[] = {SIGHUP, SIGINT, SIGQUIT, SIGALRM, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};
enum { NUMBERS = sizeof(numbers) / sizeof(numbers[0]) };

Test(signals, leave_a_whole_report_or_none)
{
    for (int i = 0; i < NUMBERS; i++)
        sweep(write_report, numbers[i], 6);
}

/* As nohup does it, and shells for what they start in the background. */
Test(signals, that_are_ignored_stay_so)
{
    for (int i = 0; i < NUMBERS; i++) {
        int const state = write_in_child(write_report, numbers[i], SIG_IGN, 4);
        cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "signal %d: state %d", numbers[i],
                  state);
        cr_expect_eq(bytes_in_folder("out"), 3);
        unlink(in_folder("out"));
    }
}

Test(signals, leave_a_whole_trace_or_none)
{
    sweep(write_trace, SIGTERM, 8);
}

/* ---- a whole job ----------------------------------------------------------------------------- */

/*
 * Rank 0 is ended at its first write to the temporary file: by a signal that it can handle, or by
 * one that it cannot, where the other rank, which mpirun ends then, removes the file. It is given
 * `seconds` for that. `before`: a line of shell, which leaves so many files.
 */
static void end_rank_0(const char *number, int seconds, const char *before, int files)
{
    command_result result;
    char text[1024];
    if (!command_has_mpi() || RA_TEST_SANITIZED)
        cr_skip_test("needs MPI, and a command without a sanitizer");
    snprintf(text, sizeof(text),
             "%s\ncp '%s' .writer.so\n" /* the loader splits the list at blanks */
             "export ENDED_WRITER_SIGNAL=%s OMPI_MCA_odls_base_sigkill_timeout=%d\n"
             "exec \"$MPIEXEC\" -n 2 -x LD_PRELOAD=\"$PWD/.writer.so\" \"$RINGATTN\" run --quiet"
             " --set shape.seq=64 --set shape.heads=1 --output out.safetensors",
             before, RA_TEST_ENDED_WRITER, number, seconds);
    command_shell(&result, text);
    cr_assert_neq(result.code, 0);
    cr_assert_not_null(strstr(result.err, "ended_writer: rank 0 writes"), "%s", result.err);
    cr_assert_eq(command_folder_entries(), files, "left a file: %s", result.err);
}

Test(ended_job, leaves_no_file_where_rank_0_is_terminated)
{
    end_rank_0("15", 0, "", 0);
}

Test(ended_job, leaves_no_file_where_rank_0_is_killed)
{
    end_rank_0("9", 2, "", 0);
}

/* The temporary file is beside what the link leads to. */
Test(ended_job, leaves_no_file_where_a_link_leads)
{
    command_result result;
    end_rank_0("9", 2, "mkdir there && touch there/out && ln -s there/out out.safetensors", 2);
    command_shell(&result, "ls -A there && rm -r there");
    cr_expect_str_eq(result.out, "out\n");
}
