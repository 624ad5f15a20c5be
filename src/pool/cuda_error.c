#include "cuda_error.h"

#include "bytes_text.h"
#include "internal.h"
#include "ringattn/device.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

bool ra_cuda_is_absent(cudaError_t error)
{
    return error == cudaErrorInsufficientDriver || error == cudaErrorNoDevice ||
           error == cudaErrorStubLibrary;
}

void ra_cuda_explain_absent(cudaError_t error, char *text, size_t bytes)
{
    char driver_text[16], runtime_text[16];
    int driver = 0, runtime = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    if (cudaRuntimeGetVersion(&runtime) != cudaSuccess)
        runtime = 0;
    const char *why = "there is no GPU, or CUDA_VISIBLE_DEVICES hides it";
    if (error == cudaErrorStubLibrary)
        why = "the libcuda.so that was found is a stub for linking";
    else if (error == cudaErrorInsufficientDriver)
        why = driver > 0 ? "the NVIDIA driver is too old" : "there is no NVIDIA driver";
    snprintf(text, bytes, "%s (CUDA of the driver: %s, of this build: %s; error %d)", why,
             ra_cuda_version_text(driver, driver_text), ra_cuda_version_text(runtime, runtime_text),
             (int)error);
}

static atomic_bool in_use;

void ra_cuda_note_use(void)
{
    atomic_store(&in_use, true);
}

bool ra_cuda_is_sticky(cudaError_t error)
{
    switch (error) {
    case cudaErrorUnknown:
        return atomic_load(&in_use);
#if CUDART_VERSION >= 12080
    case cudaErrorContained:
    case cudaErrorTensorMemoryLeak:
#endif
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
        return true;
    default:
        return false;
    }
}

/* What was logged when the GPU was lost is the cause of all that fails on it later. */
static bool is_of_lost(cudaError_t error, const char *what)
{
    if (ra_cuda_is_sticky(error) && ra_device_lose())
        ra_log(RA_LOG_ERROR,
               "%s: %s (CUDA error %d): GPU %d is lost to this process: look at the kernel's log "
               "of that machine",
               what, cudaGetErrorString(error), (int)error, ra_device_used());
    return ra_device_is_lost();
}

cudaError_t ra_cuda_forget(cudaError_t error)
{
    if (error != cudaSuccess)
        (void)cudaGetLastError();
    return error;
}

ra_status ra_cuda_status(cudaError_t error, const char *what)
{
    if (ra_cuda_forget(error) == cudaSuccess)
        return RA_OK;
    if (is_of_lost(error, what))
        return RA_ERR_CUDA;
    if (ra_cuda_is_absent(error)) {
        char why[240];
        ra_cuda_explain_absent(error, why, sizeof(why));
        ra_log(RA_LOG_ERROR, "%s: %s", what, why);
        return RA_ERR_UNSUPPORTED;
    }
    ra_log(RA_LOG_ERROR, "%s: %s (CUDA error %d)", what, cudaGetErrorString(error), (int)error);
    return error == cudaErrorMemoryAllocation ? RA_ERR_NO_MEMORY : RA_ERR_CUDA;
}

ra_status ra_cuda_status_of_request(cudaError_t error, const char *what)
{
    if (error != cudaErrorMemoryAllocation || ra_device_is_lost())
        return ra_cuda_status(error, what);
    (void)ra_cuda_forget(error);
    return RA_ERR_NO_MEMORY;
}

ra_status ra_cuda_status_of_work(const ra_ledger *ledger, cudaError_t error, const char *what)
{
    char who[400];
    ra_status const status = ra_cuda_status_of_request(error, what);
    if (status == RA_ERR_NO_MEMORY) {
        snprintf(who, sizeof(who), "%s: the driver", what);
        ra_ledger_log_refusal(ledger, who, RA_MEM_CONTEXT, 0);
    }
    return status;
}

void ra_cuda_warn(cudaError_t error, const char *format, ...)
{
    char what[160];
    va_list args;
    if (ra_cuda_forget(error) == cudaSuccess)
        return;
    if (ra_cuda_is_sticky(error) || ra_device_is_lost())
        return;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    ra_log(RA_LOG_WARNING, "%s: %s (CUDA error %d)", what, cudaGetErrorString(error), (int)error);
}

bool ra_cuda_has_lost(cudaStream_t stream, const char *what)
{
    cudaError_t const error =
        ra_device_is_lost() ? cudaSuccess : ra_cuda_forget(cudaStreamQuery(stream));
    return what != NULL ? is_of_lost(error, what) : ra_device_is_lost() || ra_cuda_is_sticky(error);
}
