/*
 * The stand-in for NCCL of a process that starts as any other.
 *
 *     RA_STANDIN_NCCL_FAIL  the call of this number fails; without it none does
 *     RA_STANDIN_NCCL_KILL  the call of this number is the process's last
 *     RA_STANDIN_NCCL_STOP  the call of this number stops the process
 */
#include "support/standin_nccl.h"

#include <signal.h>
#include <stdlib.h>

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void standin_nccl_begin(void)
{
    int64_t const kill = number("RA_STANDIN_NCCL_KILL"), stop = number("RA_STANDIN_NCCL_STOP");
    standin_nccl_reset();
    standin_nccl.is_strict = 1;
    standin_nccl.fail_call = number("RA_STANDIN_NCCL_FAIL");
    standin_nccl.signal_call = kill > 0 ? kill : stop;
    standin_nccl.signal = kill > 0 ? SIGKILL : SIGSTOP;
}
