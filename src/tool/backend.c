#include "backend.h"

#include "config_table.h"
#include "internal.h"

#include <math.h>
#include <stdio.h>

/*
 * Why this build's kernels cannot do the job on any GPU; NULL: they can. `text` holds some answers.
 */
static const char *why_not_kernels(const ra_config *config, int ranks,
                                   char text[RA_BACKEND_NOTE_MAX])
{
    if (ra_kernel_cuda() == NULL)
        return "this build has no kernels for GPUs";
    if (ranks > 1 && config->schedule == RA_SCHEDULE_SHARED)
        return "ring.schedule: shared is for ranks that share host memory";
    if (config->attention_kind == RA_ATTENTION_STANDARD && ra_kernel_cuda_standard() == NULL) {
        ra_cublas_describe(text, RA_BACKEND_NOTE_MAX);
        return text;
    }
    if (ra_backend_gpu_table(config) == NULL)
        return "this build has no kernels for it";
    return NULL;
}

/* Why no GPU of this machine can do it; `devices` and `text` hold some answers. */
static const char *why_not(const ra_config *config, int ranks, ra_devices *devices,
                           char text[RA_BACKEND_NOTE_MAX])
{
    ra_devices_read(devices);
    if (devices->usable_count == 0)
        return devices->why_not;
    if (config->attention_kind == RA_ATTENTION_STANDARD &&
        !ra_cublas_describe(text, RA_BACKEND_NOTE_MAX))
        return text;
    return why_not_kernels(config, ranks, text);
}

bool ra_backend_may_be_cpu(const ra_config *config)
{
    return config->backend != RA_BACKEND_CUDA && config->comm != RA_COMM_NCCL;
}

/* Whether a GPU, or this build, would do but for the instruction set. */
static bool isa_is_at_fault(const ra_config *config)
{
    char ignored[RA_BACKEND_NOTE_MAX];
    ra_devices devices;
    ra_config other = *config;
    other.isa = RA_ISA_AUTO;
    if (!ra_isa_is_gpus(config->isa) || config->isa == RA_ISA_SM80 || ra_kernel_cuda() == NULL)
        return false;
    if (ra_backend_gpu_table(config) == NULL)
        return true;
    ra_devices_read(&devices);
    return devices.usable_count > 0 && !ra_backend_gpu_serves(config, ignored) &&
           ra_backend_gpu_serves(&other, ignored);
}

ra_status ra_backend_refuse(const ra_config *config, const char *why)
{
    if (config->backend != RA_BACKEND_CUDA)
        return ra_config_refuse(config, "comm.backend",
                                "nccl is for GPUs, and none computes: %s: use auto or mpi", why);
    if (isa_is_at_fault(config)) {
        const ra_config_key *key = &ra_config_keys[ra_config_key_find("compute.isa")];
        return ra_config_refuse(config, key->path, "%s: %s: use compute.isa: auto",
                                ra_config_choice_name(key, config->isa), why);
    }
    return ra_config_refuse(config, "compute.backend", "cuda: %s: use auto or cpu", why);
}

/* Without what the tile maps need. */
static ra_kernel_use use_of(const ra_config *config, int threads)
{
    return (ra_kernel_use){.dtype = config->dtype,
                           .dim = config->head_dim,
                           .backward = config->backward,
                           .deterministic = config->deterministic,
                           .threads = threads,
                           .linear = ra_config_linear(config),
                           .method = config->linear_method,
                           .timeout_ms = config->timeout_ms};
}

ra_kernel_use ra_job_kernel_use(const ra_config *config, int ranks, int threads)
{
    bool const masked = config->mask == RA_MASK_DENSE_BLOCKS;
    ra_kernel_use use = use_of(config, threads);
    use.shares_rows = ra_pattern_shares_rows(&config->pattern, ranks, masked);
    use.shares_keys = ra_pattern_shares_keys(&config->pattern, config->heads, config->kv_heads);
    use.long_rows = ra_pattern_has_long_rows(&config->pattern);
    use.dilated = config->pattern.segments != NULL;
    return use;
}

const ra_kernel_ops *ra_backend_gpu_table(const ra_config *config)
{
    if (config->attention_kind == RA_ATTENTION_STANDARD)
        return ra_kernel_cuda_standard();
    return config->isa == RA_ISA_SM90A_BACKWARD ? ra_kernel_cuda_sm90a_backward()
           : config->isa == RA_ISA_SM90A        ? ra_kernel_cuda_sm90a()
                                                : ra_kernel_cuda();
}

bool ra_backend_gpu_runs(const ra_kernel_ops *ops, const ra_hardware *hardware)
{
    long const tenths = lround(10 * hardware->compute_capability);
    return ops->runs_on == NULL || ops->runs_on((int32_t)(tenths / 10), (int32_t)(tenths % 10));
}

bool ra_backend_gpu_suits(const ra_config *config, const ra_kernel_ops *ops,
                          const ra_hardware *hardware)
{
    char ignored[RA_BACKEND_NOTE_MAX];
    ra_kernel_use const use = use_of(config, 1);
    if (ops->differs != NULL && !ops->differs(&use))
        return false;
    if (hardware == NULL || hardware->multiprocessors == 0)
        return ops->serves == NULL || ops->serves(&use, ignored, sizeof(ignored));
    return ra_backend_gpu_runs(ops, hardware);
}

bool ra_backend_gpu_serves(const ra_config *config, char why_not[RA_BACKEND_NOTE_MAX])
{
    const ra_kernel_ops *const ops = ra_backend_gpu_table(config);
    ra_kernel_use const use = use_of(config, 1);
    RA_ASSERT(ops != NULL);
    return ops->serves == NULL || ops->serves(&use, why_not, RA_BACKEND_NOTE_MAX);
}

ra_status ra_backend_choose(const ra_config *config, int ranks, ra_backend *backend_out,
                            char note_out[RA_BACKEND_NOTE_MAX])
{
    ra_devices devices;
    char text[RA_BACKEND_NOTE_MAX];
    note_out[0] = '\0';
    *backend_out = RA_BACKEND_CPU;
    if (ra_config_wants_cpu(config))
        return RA_OK;
    const char *why = why_not(config, ranks, &devices, text);
    if (why == NULL) {
        *backend_out = RA_BACKEND_CUDA;
        return RA_OK;
    }
    if (!ra_backend_may_be_cpu(config))
        return ra_backend_refuse(config, why);
    if (devices.runtime_version > 0)
        snprintf(note_out, RA_BACKEND_NOTE_MAX, "%s", why);
    return RA_OK;
}

/* Why the GPUs of a described machine cannot do it; NULL: they can. */
static const char *why_not_there(const ra_config *config, int ranks, const ra_hardware *hardware,
                                 char text[RA_BACKEND_NOTE_MAX])
{
    double const capability = hardware->compute_capability; /* 0: not known */
    if (capability > 0 && capability < RA_DEVICE_MAJOR_MIN) {
        snprintf(text, RA_BACKEND_NOTE_MAX, "kernels run from compute capability %d.0 on",
                 RA_DEVICE_MAJOR_MIN);
        return text;
    }
    return why_not_kernels(config, ranks, text);
}

ra_status ra_backend_choose_there(const ra_config *config, int ranks, const ra_hardware *hardware,
                                  ra_backend *backend_out, char note_out[RA_BACKEND_NOTE_MAX])
{
    char text[RA_BACKEND_NOTE_MAX];
    bool const wants_cuda = config->backend == RA_BACKEND_CUDA;
    note_out[0] = '\0';
    *backend_out = RA_BACKEND_CPU;
    bool const has_gpus = hardware != NULL && hardware->multiprocessors > 0;
    if (!wants_cuda && !has_gpus && ra_backend_may_be_cpu(config))
        return RA_OK;
    const char *why = wants_cuda                    ? why_not_kernels(config, ranks, text)
                      : ra_config_wants_cpu(config) ? "the CPU was asked for"
                      : has_gpus                    ? why_not_there(config, ranks, hardware, text)
                                                    : "no hardware with GPUs is described";
    if (why == NULL) {
        *backend_out = RA_BACKEND_CUDA;
        return RA_OK;
    }
    if (!ra_backend_may_be_cpu(config))
        return ra_backend_refuse(config, why);
    snprintf(note_out, RA_BACKEND_NOTE_MAX, "%s", why);
    return RA_OK;
}

const char *ra_backend_describe(const ra_backend_gpu *gpu, const char *note,
                                char text[RA_BACKEND_TEXT_MAX])
{
    char shared[64] = "";
    if (gpu->sharers > 1)
        snprintf(shared, sizeof(shared), ", shared by %d ranks", gpu->sharers);
    else if (gpu->sharers_max > 1)
        snprintf(shared, sizeof(shared), "; %d ranks share another", gpu->sharers_max);
    if (gpu->device != NULL)
        snprintf(text, RA_BACKEND_TEXT_MAX, "GPU %d: %s%s", gpu->index, gpu->device->name, shared);
    else if (note != NULL && note[0] != '\0')
        snprintf(text, RA_BACKEND_TEXT_MAX, "the CPU: %s", note);
    else
        snprintf(text, RA_BACKEND_TEXT_MAX, "the CPU");
    return text;
}
