/*
 * What one process writes takes the place of the file that was there when it is complete: where a
 * call fails, the n-th for n = 0, 1, … until there are no more, the old file is as it was, or the
 * new one is there whole.
 */
#include "fault/faulty_files.h"
#include "tool/hardware.h"
#include "tool/output_file.h"
#include "tool/tensor_fixture.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(output_file, .init = fixture_begin, .fini = fixture_end);

enum { LONG_BYTES = 1 << 17 }; /* more than a stream holds back */

static ra_status write_machine(const char *path)
{
    ra_hardware const hardware = {.name = "new", .ranks = 1, .ranks_per_node = 1};
    return ra_hardware_save(path, "a machine", &hardware);
}

static ra_status write_report(const char *path)
{
    return ra_text_write("new\n", path);
}

static ra_status write_long_report(const char *path)
{
    char *text = malloc(LONG_BYTES);
    cr_assert_not_null(text);
    memset(text, 'x', LONG_BYTES - 1);
    text[LONG_BYTES - 1] = '\0';
    ra_status const status = ra_text_write(text, path);
    free(text);
    return status;
}

static ra_status (*const writers[])(const char *) = {write_machine, write_report,
                                                     write_long_report};
enum { WRITER_COUNT = sizeof(writers) / sizeof(writers[0]) };

static void old_write(const char *path)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_geq(fputs("old", file), 0);
    cr_assert_eq(fclose(file), 0);
}

static bool is_old(const char *path)
{
    char text[8] = "";
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    size_t const bytes = fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    return bytes == 3 && strcmp(text, "old") == 0;
}

static bool files_are_equal(const char *one, const char *other)
{
    char command[300];
    snprintf(command, sizeof(command), "cmp -s '%s' '%s'", one, other);
    return system(command) == 0;
}

/* Over an old file, or where there is none; whether the call was made. */
static bool write_under_fault(int writer, bool replaces, file_call kind, int n, int cause)
{
    char path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    if (replaces)
        old_write(path);
    said.count = 0;
    fault_set(kind, n, 1, cause);
    ra_status const status = writers[writer](path);
    bool const hit = fault_was_hit();
    fault_set(NONE, 0, 0, 0);
    cr_assert_eq(status, hit ? RA_ERR_IO : RA_OK, "writer %d, call %d number %d", writer, kind, n);
    cr_assert_eq(said.count, hit);
    cr_assert(!hit || (strstr(said.line, strerror(cause)) != NULL && strstr(said.line, path)), "%s",
              said.line);
    /* When the folder is flushed, the new file has the name. */
    bool const is_new = !hit || (kind == FSYNC && n == 1);
    cr_assert_eq(entries_in_folder(), replaces || is_new, "writer %d, call %d number %d", writer,
                 kind, n);
    cr_assert(entries_in_folder() == 0 || is_old(path) == !is_new);
    unlink(path);
    return hit;
}

static void sweep(file_call kind, int cause, int calls)
{
    for (int writer = 0; writer < WRITER_COUNT; writer++) {
        for (int replaces = 0; replaces < 2; replaces++) {
            int n = 0;
            while (write_under_fault(writer, replaces, kind, n, cause))
                ++n;
            cr_assert_eq(n, calls, "writer %d made %d calls of kind %d", writer, n, kind);
        }
    }
}

Test(output_file, is_as_it_was_where_a_call_fails)
{
    sweep(OPEN, EMFILE, 2); /* the file and its folder, as with those that follow */
    sweep(FSYNC, EIO, 2);
    sweep(RENAME, EIO, 1);
    sweep(FCLOSE, EDQUOT, 1); /* some file systems find out only now */
}

/* Some file systems cannot flush a folder, and say so; of a file that is an error. */
Test(output_file, has_its_name_where_folders_cannot_be_flushed)
{
    char path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    for (int n = 0; n < 2; n++) {
        old_write(path);
        fault_set(FSYNC, n, 1, EINVAL);
        cr_expect_eq(write_report(path), n == 1 ? RA_OK : RA_ERR_IO, "flush %d", n);
        cr_expect(fault_was_hit());
        fault_set(NONE, 0, 0, 0);
        cr_expect_eq(is_old(path), n == 0);
    }
}

/* The first flush is the file's, the second the folder's. */
Test(output_file, is_flushed_again_after_an_interruption)
{
    for (int writer = 0; writer < WRITER_COUNT; writer++) {
        for (int n = 0; n < 2; n++) {
            char path[128];
            snprintf(path, sizeof(path), "%s", in_folder("out"));
            old_write(path);
            fault_set(FSYNC, n, 2, EINTR);
            cr_expect_eq(writers[writer](path), RA_OK, "writer %d, flush %d", writer, n);
            cr_expect(fault_was_hit());
            fault_set(NONE, 0, 0, 0);
            cr_expect_not(is_old(path));
            cr_expect_eq(said.count, 0);
        }
    }
}

Test(output_file, is_as_it_was_where_the_disk_is_full)
{
    struct rlimit limit;
    char path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    old_write(path);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int writer = 0; writer < WRITER_COUNT; writer++) {
        rlim_t const before = limit.rlim_cur;
        said.count = 0;
        limit.rlim_cur = 3;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        ra_status const status = writers[writer](path);
        limit.rlim_cur = before;
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        cr_expect_eq(status, RA_ERR_IO);
        cr_expect_eq(said.count, 1);
        cr_expect_not_null(strstr(said.line, strerror(EFBIG)), "%s", said.line);
        cr_expect_eq(entries_in_folder(), 1);
        cr_expect(is_old(path), "writer %d", writer);
    }
}

/* What another function wrote to the stream, which does not say what was wrong. */
Test(output_file, is_as_it_was_where_a_stream_has_failed)
{
    ra_output output;
    struct rlimit limit;
    char path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    old_write(path);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(ra_output_open(&output, path, "", "cannot write"), RA_OK);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t const before = limit.rlim_cur;
    limit.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_assert_eq(setvbuf(output.stream, NULL, _IONBF, 0), 0);
    fputs("too long", output.stream);
    limit.rlim_cur = before;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    cr_expect_eq(ra_output_close(&output, true), RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    cr_expect_eq(entries_in_folder(), 1);
    cr_expect(is_old(path));
}

Test(output_file, keeps_permissions_and_links)
{
    struct stat info;
    char target[128], path[128];
    snprintf(target, sizeof(target), "%s", in_folder("target"));
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    old_write(target);
    cr_assert_eq(chmod(target, 0640), 0);
    cr_assert_eq(symlink("target", path), 0);
    cr_expect_eq(write_report(path), RA_OK);
    cr_expect_eq(fault_created_mode(), 0600); /* closed until it has the mode */
    /* Nothing that lies there is written to, wherever it leads. */
    cr_expect_eq(fault_created_flags() & (O_EXCL | O_NOFOLLOW), O_EXCL | O_NOFOLLOW);
    cr_expect_not(is_old(target));
    cr_assert_eq(lstat(path, &info), 0);
    cr_expect(S_ISLNK(info.st_mode));
    cr_assert_eq(stat(target, &info), 0);
    cr_expect_eq(info.st_mode & 07777, 0640);
    cr_assert_eq(unlink(target), 0); /* now the link leads nowhere */
    cr_expect_eq(write_report(path), RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    cr_expect_eq(entries_in_folder(), 1);
    cr_assert_eq(lstat(path, &info), 0);
    cr_expect(S_ISLNK(info.st_mode));
}

/* As /dev/stdout is: what was written there before stays, and so does the link. */
Test(output_file, is_written_to_the_stream_that_a_path_leads_to)
{
    static const char before[] = "before\n";
    char log[128], path[128], text[256] = "";
    struct stat info;
    snprintf(log, sizeof(log), "%s", in_folder("log"));
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    cr_assert_eq(symlink("/proc/self/fd/1", path), 0);
    int const kept = dup(STDOUT_FILENO), fd = open(log, O_RDWR | O_CREAT, 0600);
    cr_assert(kept >= 0 && fd >= 0);
    fflush(stdout);
    cr_assert_eq(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
    bool const begun = write(STDOUT_FILENO, before, strlen(before)) == (ssize_t)strlen(before);
    ra_status const first = write_report(path), second = write_report(path);
    cr_assert_eq(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
    cr_assert(begun);
    cr_expect_eq(first, RA_OK);
    cr_expect_eq(second, RA_OK);
    ssize_t const bytes = pread(fd, text, sizeof(text) - 1, 0);
    cr_assert_gt(bytes, 0);
    size_t const each = ((size_t)bytes - strlen(before)) / 2;
    cr_expect_eq(strncmp(text, before, strlen(before)), 0, "%s", text);
    cr_expect(each > 0 && memcmp(text + strlen(before), text + strlen(before) + each, each) == 0,
              "%s", text);
    cr_assert_eq(lstat(path, &info), 0);
    cr_expect(S_ISLNK(info.st_mode));
    cr_expect_eq(entries_in_folder(), 2);
    close(kept);
    close(fd);
}

/* ---- pipes ----------------------------------------------------------------------------------- */

/* A pipe, and where a process takes from it all that comes, after a while; that process. */
static pid_t reader_start(const char *pipe, const char *copy)
{
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    pid_t const reader = fork();
    cr_assert_geq(reader, 0);
    if (reader == 0) {
        char data[1000];
        usleep(150000);
        int const from = open(pipe, O_RDONLY), to = open(copy, O_WRONLY | O_CREAT, 0600);
        ssize_t got;
        usleep(150000);
        while ((got = read(from, data, sizeof(data))) > 0)
            if (write(to, data, (size_t)got) != got)
                _exit(1);
        _exit(got < 0);
    }
    return reader;
}

Test(output_file, reaches_a_slow_reader_of_a_pipe_whole)
{
    char pipe[128], copy[128], path[128];
    snprintf(path, sizeof(path), "%s", in_folder("out"));
    for (int writer = 0; writer < WRITER_COUNT; writer++) {
        int code = 0;
        snprintf(pipe, sizeof(pipe), "%s", in_folder("pipe"));
        snprintf(copy, sizeof(copy), "%s", in_folder("copy"));
        pid_t const reader = reader_start(pipe, copy);
        fault_set(POLL, 0, 2, EINTR); /* the reader takes 0.15 s to come */
        cr_expect_eq(writers[writer](pipe), RA_OK, "writer %d", writer);
        cr_expect(fault_was_hit());
        fault_set(NONE, 0, 0, 0);
        cr_assert_eq(waitpid(reader, &code, 0), reader);
        cr_assert_eq(code, 0);
        cr_assert_eq(writers[writer](path), RA_OK);
        cr_expect(files_are_equal(path, copy), "writer %d", writer);
        cr_assert(unlink(pipe) == 0 && unlink(copy) == 0 && unlink(path) == 0);
    }
    cr_expect_eq(said.count, 0);
}

static void given_up(ra_status status, const char *pipe)
{
    cr_expect_eq(status, RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    cr_expect(strstr(said.line, pipe) != NULL && strstr(said.line, "for an hour") != NULL, "%s",
              said.line);
    said.count = 0;
}

/* The time is over at once. */
Test(output_file, gives_up_a_pipe_that_nobody_opens)
{
    char pipe[128];
    snprintf(pipe, sizeof(pipe), "%s", in_folder("pipe"));
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    for (int writer = 0; writer < WRITER_COUNT; writer++) {
        fault_set(POLL, 0, INT_MAX, ZERO);
        given_up(writers[writer](pipe), pipe);
        cr_expect(fault_was_hit());
    }
}

Test(output_file, gives_up_a_pipe_that_nobody_reads)
{
    char pipe[128];
    snprintf(pipe, sizeof(pipe), "%s", in_folder("pipe"));
    cr_assert_eq(mkfifo(pipe, 0600), 0);
    int const held = open(pipe, O_RDWR), least = fcntl(held, F_SETPIPE_SZ, 1);
    cr_assert(held >= 0 && least > 0);
    /* What fits is written; that nothing does any more is only known when the time is over. */
    fault_set(POLL, least / PIPE_BUF, 1, ZERO);
    given_up(write_long_report(pipe), pipe);
    cr_expect(fault_was_hit());
    close(held);
}

Test(output_file, tells_that_a_reader_is_gone)
{
    char pipe[128];
    snprintf(pipe, sizeof(pipe), "%s", in_folder("pipe"));
    signal(SIGPIPE, SIG_IGN);
    pid_t const reader = reader_start(pipe, "/nowhere/at/all"); /* reads once, and fails */
    int code = 0;
    cr_expect_eq(write_long_report(pipe), RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, strerror(EPIPE)), "%s", said.line);
    cr_assert_eq(waitpid(reader, &code, 0), reader);
}

/* ---- standard output ------------------------------------------------------------------------- */

/* A table is printed row by row, and what has failed is told at its end. */
Test(output_file, on_standard_output_tells_its_first_failure)
{
    struct rlimit limit;
    signal(SIGXFSZ, SIG_IGN);
    int const kept = dup(STDOUT_FILENO), fd = open(in_folder("log"), O_RDWR | O_CREAT, 0600);
    cr_assert(kept >= 0 && fd >= 0);
    fflush(stdout);
    cr_assert_eq(dup2(fd, STDOUT_FILENO), STDOUT_FILENO);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    rlim_t const before = limit.rlim_cur;
    limit.rlim_cur = 3;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    printf("too long\n");
    ra_stdout_flush();
    limit.rlim_cur = before;
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    printf("and this is not\n");
    errno = 0;
    ra_status const status = ra_stdout_check(" the table");
    cr_assert_eq(dup2(kept, STDOUT_FILENO), STDOUT_FILENO);
    cr_expect_eq(status, RA_ERR_IO);
    cr_expect_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, strerror(EFBIG)), "%s", said.line);
    close(kept);
    close(fd);
}

/* A process that was killed may have had the same number. */
Test(output_file, is_written_beside_what_a_killed_process_left_behind)
{
    char name[32];
    snprintf(name, sizeof(name), "ringattn.tmp-%ld", (long)getpid());
    old_write(in_folder(name));
    cr_expect_eq(write_report(in_folder("out")), RA_OK);
    cr_expect(is_old(in_folder(name)));
    cr_expect_eq(entries_in_folder(), 2);
}
