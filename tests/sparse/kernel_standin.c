/* Before a suite that runs over the table for GPUs: a GPU, though only a stand-in's. */
#include "support/standin_cudart.h"

/* Few multiprocessors, because each has thread blocks that are made for a launch. */
__attribute__((constructor)) static void begin(void)
{
    standin_reset();
#if defined(RA_KERNEL_CASES_SM90A)
    standin.multiprocessors = 4; /* of one thread block, where long tasks are cut for as many */
#else
    standin.multiprocessors = 2;
#endif
#if defined(RA_STANDIN_MAJOR)
    for (int i = 0; i < standin.device_count; ++i)
        standin.major[i] = RA_STANDIN_MAJOR;
#endif
}
