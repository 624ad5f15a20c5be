#include "ptx/test_ptx_trial.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHARED_BYTES = 16384, MODULE_BYTES = 1 << 16 };

_Alignas(512) uint32_t ptx_trial_memory[PTX_TRIAL_WORDS];

static int find(uintptr_t address, uintptr_t *begin, uintptr_t *end)
{
    *begin = (uintptr_t)ptx_trial_memory;
    *end = *begin + sizeof(ptx_trial_memory);
    return address >= *begin && address <= *end;
}

static ptx_counts run_from(const char *folder, const char *name, unsigned blocks, uint64_t seed)
{
    const ptx_kernel *const kernel = ptx_kernel_find(folder, 90, name);
    uint64_t const param = (uint64_t)(uintptr_t)ptx_trial_memory;
    ptx_counts counts = {0};
    cr_assert_not_null(kernel);
    ptx_launch const launch = {.blocks = blocks,
                               .threads = (unsigned)ptx_kernel_threads(kernel),
                               .shared_bytes = SHARED_BYTES,
                               .params = &param,
                               .resident = 3,
                               .seed = seed,
                               .find = find};
    ptx_run(kernel, &launch, &counts);
    return counts;
}

ptx_counts ptx_trial_run(const char *name, unsigned blocks, uint64_t seed)
{
    return run_from(RA_TEST_PTX_FOLDER, name, blocks, seed);
}

static void expect_end(const char *folder, const char *name, const char *line, const char *what)
{
    char said[1024];
    int channel[2], status;
    cr_assert_eq(pipe(channel), 0);
    pid_t const child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        dup2(channel[1], STDERR_FILENO);
        (void)run_from(folder, name, 1, 1);
        _exit(0);
    }
    close(channel[1]);
    FILE *const from = fdopen(channel[0], "r");
    size_t const bytes = fread(said, 1, sizeof(said) - 1, from);
    said[bytes] = '\0';
    fclose(from);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status), "%s%s ended as if all were right", name, what);
    cr_expect_not_null(strstr(said, line), "%s%s: \"%s\" is not in \"%s\"", name, what, line, said);
}

void ptx_trial_expect_end(const char *name, const char *line)
{
    expect_end(RA_TEST_PTX_FOLDER, name, line, "");
}

/* ---- edited kernels -------------------------------------------------------------------------- */

/* What a module has before its kernels, and the one of that name; false: it is in another. */
static bool read_kernel(const char *path, const char *name, char text[MODULE_BYTES])
{
    static char module[MODULE_BYTES];
    char entry[128];
    FILE *const file = fopen(path, "r");
    cr_assert_not_null(file);
    size_t const bytes = fread(module, 1, sizeof(module) - 1, file);
    fclose(file);
    cr_assert_lt(bytes, sizeof(module) - 1, "%s", path);
    module[bytes] = '\0';
    snprintf(entry, sizeof(entry), ".visible .entry %s(", name);
    const char *const at = strstr(module, entry), *const first = strstr(module, ".visible");
    const char *const end = at != NULL ? strstr(at, "\n}\n") : NULL;
    if (end == NULL)
        return false;
    snprintf(text, MODULE_BYTES, "%.*s%.*s\n}\n", (int)(first - module), module, (int)(end - at),
             at);
    return true;
}

static void find_kernel(const char *name, char text[MODULE_BYTES])
{
    DIR *const files = opendir(RA_TEST_PTX_FOLDER);
    bool found = false;
    cr_assert_not_null(files);
    for (struct dirent *entry; !found && (entry = readdir(files)) != NULL;) {
        char path[4096];
        snprintf(path, sizeof(path), "%s/%s", RA_TEST_PTX_FOLDER, entry->d_name);
        found = strstr(entry->d_name, ".ptx") != NULL && read_kernel(path, name, text);
    }
    closedir(files);
    cr_assert(found, "%s", name);
}

static void edit(char text[MODULE_BYTES], const char *name, const char *from, const char *to)
{
    static char edited[MODULE_BYTES];
    char *const at = strstr(text, from);
    cr_assert_not_null(at, "%s has no \"%s\"", name, from);
    cr_assert_null(strstr(at + 1, from), "%s has \"%s\" twice", name, from);
    int const length =
        snprintf(edited, sizeof(edited), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    cr_assert_lt(length, MODULE_BYTES);
    memcpy(text, edited, (size_t)length + 1);
}

void ptx_trial_expect_end_edited(const char *name, const char *line, ...)
{
    static char text[MODULE_BYTES];
    char folder[] = "/tmp/ringattn_ptx_XXXXXX", path[64], what[256] = "";
    va_list edits;
    find_kernel(name, text);
    va_start(edits, line);
    for (const char *from; (from = va_arg(edits, const char *)) != NULL;) {
        const char *const to = va_arg(edits, const char *);
        edit(text, name, from, to);
        snprintf(what, sizeof(what), ", with \"%s\"", to);
    }
    va_end(edits);
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/edited.ptx", folder);
    FILE *const file = fopen(path, "w");
    cr_assert(file != NULL && fputs(text, file) >= 0 && fclose(file) == 0);
    expect_end(folder, name, line, what);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(folder), 0);
}
