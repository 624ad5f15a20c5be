/* Before a suite that runs over the table for GPUs: a GPU, though only a stand-in's. */
#include "support/standin_cudart.h"

/* Few multiprocessors, because each has thread blocks that the emulator makes. */
__attribute__((constructor)) static void begin(void)
{
    standin_reset();
    standin.multiprocessors = 2;
}
