#include "ptx/test_ptx_trial.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SHARED_BYTES = 16384 };

_Alignas(512) uint32_t ptx_trial_memory[PTX_TRIAL_WORDS];

static int find(uintptr_t address, uintptr_t *begin, uintptr_t *end)
{
    *begin = (uintptr_t)ptx_trial_memory;
    *end = *begin + sizeof(ptx_trial_memory);
    return address >= *begin && address <= *end;
}

ptx_counts ptx_trial_run(const char *name, unsigned blocks, uint64_t seed)
{
    const ptx_kernel *const kernel = ptx_kernel_find(RA_TEST_PTX_FOLDER, 90, name);
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

void ptx_trial_expect_end(const char *name, const char *line)
{
    char said[1024];
    int channel[2], status;
    cr_assert_eq(pipe(channel), 0);
    pid_t const child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        (void)signal(SIGABRT, SIG_DFL);
        dup2(channel[1], STDERR_FILENO);
        (void)ptx_trial_run(name, 1, 1);
        _exit(0);
    }
    close(channel[1]);
    FILE *const from = fdopen(channel[0], "r");
    size_t const bytes = fread(said, 1, sizeof(said) - 1, from);
    said[bytes] = '\0';
    fclose(from);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status), "%s ended as if all were right", name);
    cr_expect_not_null(strstr(said, line), "%s: \"%s\" is not in \"%s\"", name, line, said);
}
