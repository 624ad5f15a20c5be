#include "tool/command_runner.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char command_folder[64];

static bool is_ours(const char *name)
{
    return name[0] == '.';
}

static void path_of(const char *name, char path[512])
{
    snprintf(path, 512, "%s/%s", command_folder, name);
}

/* How many there are; -1: the folder is not there. */
static int entries_visit(bool remove_them)
{
    int count = 0;
    DIR *dir = opendir(command_folder);
    struct dirent *entry;
    if (dir == NULL)
        return -1;
    while ((entry = readdir(dir)) != NULL) {
        char path[512];
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        count += is_ours(entry->d_name) ? 0 : 1;
        path_of(entry->d_name, path);
        if (remove_them)
            remove(path);
    }
    closedir(dir);
    return count;
}

static pid_t folder_maker;

/* A test that is skipped has no end of its own; nor is one of its children's an end of it. */
static void forget_folder(void)
{
    if (getpid() != folder_maker)
        return;
    (void)entries_visit(true);
    (void)rmdir(command_folder);
}

void command_folder_make(void)
{
    folder_maker = getpid();
    (void)atexit(forget_folder);
    snprintf(command_folder, sizeof(command_folder), "/tmp/ringattn-command-XXXXXX");
    cr_assert_not_null(mkdtemp(command_folder));
}

int command_folder_entries(void)
{
    int const count = entries_visit(false);
    cr_assert_geq(count, 0);
    return count;
}

void command_folder_remove(void)
{
    entries_visit(true);
    cr_assert_eq(rmdir(command_folder), 0);
}

void command_file_write(const char *name, const void *data, unsigned long bytes)
{
    char path[512];
    path_of(name, path);
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(data, 1, bytes, file), bytes);
    cr_assert_eq(fclose(file), 0);
}

bool command_file_exists(const char *name)
{
    char path[512];
    path_of(name, path);
    return access(path, F_OK) == 0;
}

bool command_has_mpi(void)
{
    return RA_TEST_MPIEXEC[0] != '\0';
}

static void output_read(const char *name, char text[OUTPUT_BYTES_MAX])
{
    char path[512];
    path_of(name, path);
    FILE *file = fopen(path, "rb");
    cr_assert_not_null(file);
    size_t const bytes = fread(text, 1, OUTPUT_BYTES_MAX - 1, file);
    text[bytes] = '\0';
    fclose(file);
}

void command_shell(command_result *result, const char *text)
{
    char script[512], line[1024];
    path_of(".script", script);
    FILE *file = fopen(script, "w");
    cr_assert_not_null(file);
    /* mpirun would give every rank of a failed job a second to clean up. And of two jobs at once,
       release 4 may remove the folder that the other is about to use, and release 5 take one's
       shared memory for the other's, by its name in /dev/shm. */
    fprintf(file,
            "RINGATTN='%s'\nMPIEXEC='%s'\nOMPI_MCA_odls_base_sigkill_timeout=0\n"
            "OMPI_MCA_orte_tmpdir_base=%s/.shared\nOMPI_MCA_btl_sm_backing_directory=%s/.shared\n"
            "export RINGATTN MPIEXEC OMPI_MCA_odls_base_sigkill_timeout\n"
            "export OMPI_MCA_orte_tmpdir_base OMPI_MCA_btl_sm_backing_directory\n%s\n",
            RA_TEST_COMMAND, RA_TEST_MPIEXEC, command_folder, command_folder, text);
    cr_assert_eq(fclose(file), 0);
    snprintf(line, sizeof(line),
             "cd %s && mkdir -p .shared && timeout -k 5 120 sh .script >.out 2>.err </dev/null\n"
             "code=$?; rm -rf .shared; exit $code",
             command_folder);
    int const status = system(line);
    cr_assert(WIFEXITED(status), "%s", text);
    result->code = WEXITSTATUS(status);
    output_read(".out", result->out);
    output_read(".err", result->err);
    cr_assert_neq(result->code, 124, "still running after two minutes: %s\n%s", text, result->err);
}

void command_run(command_result *result, int ranks, const char *arguments)
{
    char text[2048], start[64] = "";
    if (ranks > 0)
        snprintf(start, sizeof(start), "\"$MPIEXEC\" -n %d ", ranks);
    cr_assert_lt(snprintf(text, sizeof(text), "exec %s\"$RINGATTN\" %s", start, arguments),
                 (int)sizeof(text));
    command_shell(result, text);
}

void command_kill_after(command_result *result, const char *arguments, const char *file)
{
    char text[2048];
    cr_assert_lt(snprintf(text, sizeof(text),
                          "\"$RINGATTN\" %s & pid=$!\n"
                          "while [ ! -e %s ] && kill -0 $pid; do sleep 0.01; done\n"
                          "kill -KILL $pid; wait $pid",
                          arguments, file),
                 (int)sizeof(text));
    command_shell(result, text);
    cr_assert_eq(result->code, 128 + 9, "%s: ended by itself: %d\n%s", arguments, result->code,
                 result->err);
}

bool command_has_openblas(void)
{
    static command_result result;
    command_run(&result, 0, "info");
    return strstr(result.out, "OpenBLAS 0.") != NULL;
}

int command_count_lines(const char *text, const char *wanted)
{
    int count = 0;
    while (*text != '\0') {
        const char *end = strchr(text, '\n');
        size_t const length = end != NULL ? (size_t)(end - text) : strlen(text);
        const char *found = strstr(text, wanted);
        count += found != NULL && found < text + length;
        text += length + (end != NULL);
    }
    return count;
}

void command_refused(command_result *result, const char *arguments, int code, const char *said)
{
    command_run(result, 0, arguments);
    cr_expect_eq(result->code, code, "%s: exit code %d", arguments, result->code);
    cr_expect_eq(command_count_lines(result->err, "ringattn: error: "), 1, "%s: %s", arguments,
                 result->err);
    cr_expect_not_null(strstr(result->err, said), "%s: '%s' does not say '%s'", arguments,
                       result->err, said);
    cr_expect_str_eq(result->out, "", "%s: %s", arguments, result->out);
}
