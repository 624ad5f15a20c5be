/* Errors that stay, over the stand-in runtime. */
#include "pool/cuda_error.h"
#include "ringattn/device.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <string.h>

static captured_log said;

/* A process each, because a GPU is lost for good. */
ParameterizedTestParameters(cuda_error, that_stays_loses_the_gpu_with_one_line)
{
    static cudaError_t errors[] = {cudaErrorIllegalAddress, cudaErrorECCUncorrectable,
                                   cudaErrorNvlinkUncorrectable, cudaErrorUnknown};
    return cr_make_param_array(cudaError_t, errors, sizeof(errors) / sizeof(errors[0]));
}

ParameterizedTest(cudaError_t *error, cuda_error, that_stays_loses_the_gpu_with_one_line)
{
    ra_memory memory = {0};
    void *data = NULL;
    standin_reset();
    captured_log_begin(&said);
    cr_assert_eq(ra_memory_device(0, &memory), RA_OK);
    standin.fail_call = standin.calls + 1;
    standin.fail_error = *error;
    standin.fails_for_good = 1;
    for (int i = 0; i < 3; i++) {
        cr_expect_eq(memory.ops->alloc(&memory, 4096, &data), RA_ERR_CUDA);
        cr_expect_eq(said.count, 1, "error %d", (int)*error);
    }
    cr_expect_not_null(strstr(said.line, "GPU 0 is lost to this process"), "%s", said.line);
    cr_expect(ra_device_is_lost());
}

/* As long as no GPU is in use there is none to lose, and a job may take the CPU. */
Test(cuda_error, that_is_unknown_before_a_gpu_is_used_loses_none)
{
    ra_memory memory = {0};
    standin_reset();
    captured_log_begin(&said);
    standin.fail_error = cudaErrorUnknown;
    standin.fail_call = 1;
    standin.fails_for_good = 1;
    cr_expect_eq(ra_device_use(0), RA_ERR_CUDA);
    cr_expect_eq(ra_memory_device(0, &memory), RA_ERR_CUDA);
    cr_expect_eq(said.count, 2);
    cr_expect_not(ra_device_is_lost());
}

/* A process each, as above: how many GPUs there are, what this one is, and the choice. */
ParameterizedTestParameters(cuda_error, while_a_gpu_is_chosen_loses_that_one)
{
    static int calls[] = {1, 2, 7, 9};
    return cr_make_param_array(int, calls, sizeof(calls) / sizeof(calls[0]));
}

ParameterizedTest(int *call, cuda_error, while_a_gpu_is_chosen_loses_that_one)
{
    standin_reset();
    captured_log_begin(&said);
    standin.fail_call = *call;
    standin.fail_error = cudaErrorIllegalAddress;
    cr_expect_eq(ra_device_use(1), RA_ERR_CUDA);
    cr_expect_eq(said.count, 1);
    cr_expect_not_null(strstr(said.line, "GPU 1 is lost to this process"), "%s", said.line);
    cr_expect_eq(ra_device_used(), 0);
}

/* What was said when it was lost is the cause, of memory that it refuses too. */
Test(cuda_error, of_a_gpu_that_is_lost_is_said_no_more)
{
    standin_reset();
    captured_log_begin(&said);
    cr_assert(ra_device_lose());
    ra_cuda_warn(cudaErrorInvalidValue, "something could not be returned");
    cr_expect_eq(ra_cuda_status(cudaErrorInvalidValue, "asking"), RA_ERR_CUDA);
    cr_expect_eq(ra_cuda_status(cudaErrorMemoryAllocation, "asking"), RA_ERR_CUDA);
    cr_expect_eq(ra_cuda_status_of_request(cudaErrorMemoryAllocation, "taking"), RA_ERR_CUDA);
    cr_expect_eq(said.count, 0, "%s", said.line);
}
