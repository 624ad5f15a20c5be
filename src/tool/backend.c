#include "backend.h"

#include "bytes_text.h"
#include "config_table.h"
#include "internal.h"
#include "json_build.h"

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

ra_status ra_backend_refuse(const ra_config *config, const char *why)
{
    if (config->backend != RA_BACKEND_CUDA) {
        ra_log(RA_LOG_ERROR,
               "comm.backend: nccl is for GPUs, and none computes: %s: use auto or mpi", why);
        return RA_ERR_CONFIG;
    }
    const char *place = config->places[ra_config_key_find("compute.backend")];
    ra_log(RA_LOG_ERROR, "%s%scompute.backend: cuda: %s: use auto or cpu",
           place != NULL ? place : "", place != NULL ? ": " : "", why);
    return RA_ERR_CONFIG;
}

ra_status ra_backend_check(const ra_config *config, int ranks)
{
    char text[RA_BACKEND_NOTE_MAX];
    const char *why =
        config->backend == RA_BACKEND_CUDA ? why_not_kernels(config, ranks, text) : NULL;
    return why == NULL ? RA_OK : ra_backend_refuse(config, why);
}

ra_kernel_use ra_backend_use(const ra_config *config, int threads)
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
    ra_kernel_use use = ra_backend_use(config, threads);
    use.shares_rows = ra_pattern_shares_rows(&config->pattern, ranks, masked);
    use.shares_keys = ra_pattern_shares_keys(&config->pattern, config->heads, config->kv_heads);
    return use;
}

bool ra_backend_gpu_serves(const ra_config *config, char why_not[RA_BACKEND_NOTE_MAX])
{
    const ra_kernel_ops *const ops = config->attention_kind == RA_ATTENTION_STANDARD
                                         ? ra_kernel_cuda_standard()
                                         : ra_kernel_cuda();
    ra_kernel_use const use = ra_backend_use(config, 1);
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

/* ---- what `info` says ------------------------------------------------------------------------ */

/* "13.0" of 13000; null if there is none. */
static json_t *version_json(int version)
{
    char text[16];
    if (version <= 0)
        return json_null();
    snprintf(text, sizeof(text), "%d.%d", version / 1000, version % 1000 / 10);
    return json_string(text);
}

static json_t *device_json(const ra_device *device)
{
    char capability[24];
    snprintf(capability, sizeof(capability), "%d.%d", device->major, device->minor);
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:b}", "name", device->name, "bus_id",
                     device->bus_id, "compute_capability", capability, "multiprocessors",
                     device->multiprocessors, "memory_bytes", (json_int_t)device->memory_bytes,
                     "shared_memory_bytes", (json_int_t)device->shared_bytes, "usable",
                     device->usable);
}

json_t *ra_machine_cuda_json(void)
{
    ra_devices devices;
    ra_devices_read(&devices);
    json_t *list = json_array();
    for (int i = 0; list != NULL && i < devices.count; ++i)
        list = ra_json_append(list, device_json(&devices.list[i]));
    bool const available = devices.usable_count > 0;
    return json_pack("{s:b, s:s?, s:o, s:o, s:o}", "available", available, "why_not",
                     available ? NULL : devices.why_not, "driver_cuda",
                     version_json(devices.driver_version), "runtime_cuda",
                     version_json(devices.runtime_version), "devices", list);
}

const char *ra_devices_text(const ra_devices *devices, char *text, size_t bytes)
{
    char memory[32];
    const ra_device *first = &devices->list[0];
    if (devices->usable_count == 0)
        snprintf(text, bytes, "no: %s", devices->why_not);
    else
        snprintf(text, bytes,
                 "%d GPU%s, the first %s (%d.%d, %s, %d multiprocessors); CUDA of the driver "
                 "%d.%d, of this build %d.%d; kernels have not yet been run on a device",
                 devices->usable_count, ra_plural(devices->usable_count), first->name, first->major,
                 first->minor, ra_bytes_text(first->memory_bytes, memory), first->multiprocessors,
                 devices->driver_version / 1000, devices->driver_version % 1000 / 10,
                 devices->runtime_version / 1000, devices->runtime_version % 1000 / 10);
    return text;
}
