/*
 * The stand-in runtime of a process that starts as any other.
 *
 *     RA_STANDIN_CONTEXT          bytes that its context takes; without it none
 *     RA_STANDIN_CONTEXTS         a file that all processes of a GPU share, for theirs to count
 *     RA_STANDIN_CONTEXT_MS       milliseconds that making it takes
 *     RA_STANDIN_ABSENT           the error of every call; without it there is a GPU
 *     RA_STANDIN_DRIVER           the newest CUDA of its driver, 0 for none; without it 13000
 *     RA_STANDIN_DEVICES          how many there are; without it two
 *     RA_STANDIN_MAJOR            they are of so many .0; without it 9
 *     RA_STANDIN_OLD              so many of them, from the first, are of 7.0; without it none
 *     RA_STANDIN_BYTES            memory of each device; without it 1 GiB
 *     RA_STANDIN_MODE             the compute mode of all devices; without it 0, Default
 *     RA_STANDIN_TAKEN            the error of choosing a device
 *     RA_STANDIN_NO_CODE          the error of each launch
 *     RA_STANDIN_MULTIPROCESSORS  of each device; without it 132
 *     RA_STANDIN_SHARED_BYTES     shared memory of a thread block; without it 232448
 *     RA_STANDIN_FULL_AT          the request for device memory of this number, from 1, is refused
 *     RA_STANDIN_HANG             the launch of this number, from 1, never ends
 *     RA_STANDIN_CLOCK            a file for the time of a job where one does (standin_clock.c)
 *     RA_STANDIN_FAULT            behind the launch of this number calls meet an illegal address
 *     RA_STANDIN_STICKY           from the call of this number, from 1, they do
 *     RA_STANDIN_LOST             likewise, not counting questions whether work is over
 *     RA_STANDIN_REPORT           a file for the numbers of calls and of such calls at the end
 *     RA_STANDIN_WORK_S           seconds that each piece of work takes of the stand-in's time
 *     RA_STANDIN_NAP_MS           milliseconds that it takes of everybody's
 *     RA_STANDIN_UNTIMED          1: there are no events that tell a time
 */
#include "support/standin_cudart.h"

#include <stdio.h>
#include <stdlib.h>

static int64_t number(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : otherwise;
}

__attribute__((constructor)) static void standin_begin(void)
{
    standin_reset();
    standin.absent = (cudaError_t)number("RA_STANDIN_ABSENT", cudaSuccess);
    standin.driver_version = (int)number("RA_STANDIN_DRIVER", standin.driver_version);
    standin.device_count = (int)number("RA_STANDIN_DEVICES", standin.device_count);
    for (int i = 0; i < STANDIN_DEVICES_MAX; i++)
        standin.major[i] = (int)number("RA_STANDIN_MAJOR", standin.major[i]);
    for (int i = 0; i < number("RA_STANDIN_OLD", 0) && i < STANDIN_DEVICES_MAX; i++)
        standin.major[i] = 7;
    standin.used_bytes = standin.context_bytes = number("RA_STANDIN_CONTEXT", 0);
    standin.contexts_file = getenv("RA_STANDIN_CONTEXTS");
    standin.context_ns = 1000000 * number("RA_STANDIN_CONTEXT_MS", 0);
    standin.memory_bytes = number("RA_STANDIN_BYTES", standin.memory_bytes);
    standin.compute_mode = (int)number("RA_STANDIN_MODE", cudaComputeModeDefault);
    standin.taken_error = (cudaError_t)number("RA_STANDIN_TAKEN", cudaSuccess);
    standin.code_error = (cudaError_t)number("RA_STANDIN_NO_CODE", cudaSuccess);
    standin.multiprocessors = (int)number("RA_STANDIN_MULTIPROCESSORS", standin.multiprocessors);
    standin.shared_bytes = number("RA_STANDIN_SHARED_BYTES", standin.shared_bytes);
    standin.full_at = number("RA_STANDIN_FULL_AT", 0);
    standin.hang_launch = number("RA_STANDIN_HANG", 0);
    standin.fault_launch = number("RA_STANDIN_FAULT", 0);
    standin.fail_call = number("RA_STANDIN_STICKY", 0);
    standin.fail_act = number("RA_STANDIN_LOST", 0);
    standin.fail_error = cudaErrorIllegalAddress;
    standin.fails_for_good = standin.fail_call > 0 || standin.fail_act > 0;
    standin.work_ns = standin.peer_ns = 1000000000 * number("RA_STANDIN_WORK_S", 0);
    standin.nap_ns = 1000000 * number("RA_STANDIN_NAP_MS", 0);
    standin.is_untimed = (int)number("RA_STANDIN_UNTIMED", 0);
}

/* A driver waits for its device when a process ends by exit. */
__attribute__((destructor)) static void standin_end(void)
{
    const char *const report = getenv("RA_STANDIN_REPORT");
    if (standin.hangs)
        abort();
    FILE *const file = report != NULL ? fopen(report, "w") : NULL;
    if (file == NULL)
        return;
    fprintf(file, "%lld %lld", (long long)standin.calls, (long long)standin.acts);
    fclose(file);
}
