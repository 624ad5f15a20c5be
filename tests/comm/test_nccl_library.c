/* This machine's own NCCL, which can be loaded where no GPU is. */
#include "comm/nccl_library.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What was written to a file, up to `bytes` - 1. */
static void read_back(FILE *file, char *text, size_t bytes)
{
    rewind(file);
    text[fread(text, 1, bytes - 1, file)] = '\0';
}

/* A report on standard output is read by programs. */
Test(nccl_library, writes_its_log_to_standard_error)
{
    char why_not[240], out[1024], err[4096];
    FILE *const out_file = tmpfile(), *const err_file = tmpfile();
    int const out_was = dup(STDOUT_FILENO), err_was = dup(STDERR_FILENO);
    ncclUniqueId id;
    cr_assert(out_file != NULL && err_file != NULL && out_was >= 0 && err_was >= 0);
    setenv("NCCL_DEBUG", "INFO", 1);
    unsetenv("NCCL_DEBUG_FILE");
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    const ra_nccl *const nccl = ra_nccl_open(why_not, sizeof(why_not));
    if (nccl == NULL)
        cr_skip_test("%s", why_not);
    fflush(NULL);
    cr_assert(dup2(fileno(out_file), STDOUT_FILENO) >= 0);
    cr_assert(dup2(fileno(err_file), STDERR_FILENO) >= 0);
    ncclResult_t const error = nccl->get_unique_id(&id);
    printf("ours\n");
    fflush(NULL);
    cr_assert(dup2(out_was, STDOUT_FILENO) >= 0 && dup2(err_was, STDERR_FILENO) >= 0);
    read_back(out_file, out, sizeof(out));
    read_back(err_file, err, sizeof(err));
    cr_expect_eq(error, ncclSuccess, "%s", err);
    cr_expect_str_eq(out, "ours\n");
    cr_expect_not_null(strstr(err, "NCCL INFO"), "%s", err);
}
