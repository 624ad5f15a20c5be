/* What `info` says about GPUs. */
#include "bytes_text.h"
#include "json_build.h"
#include "ringattn/kernel.h"
#include "tool_info.h"

#include <stdio.h>

/* Null if there is none. */
static json_t *version_json(int version)
{
    char text[16];
    return version > 0 ? json_string(ra_cuda_version_text(version, text)) : json_null();
}

/* For `device`, or any if NULL: those of this build, in the order in which auto prefers them, and
   what is taken by name alone. */
enum { TABLES = 3 };
static int tables_for(const ra_device *device, const ra_kernel_ops *tables[TABLES])
{
    const ra_kernel_ops *const all[TABLES] = {ra_kernel_cuda_sm90a(), ra_kernel_cuda(),
                                              ra_kernel_cuda_sm90a_backward()};
    int count = 0;
    for (int i = 0; i < TABLES; i++)
        if (all[i] != NULL && (device == NULL || all[i]->runs_on == NULL ||
                               all[i]->runs_on(device->major, device->minor)))
            tables[count++] = all[i];
    return count;
}

static json_t *kernels_json(const ra_device *device)
{
    const ra_kernel_ops *tables[TABLES];
    int const count = tables_for(device, tables);
    json_t *names = json_array();
    for (int i = 0; i < count; i++)
        names = ra_json_append(names, json_string(tables[i]->name));
    return names;
}

static json_t *device_json(const ra_device *device)
{
    char capability[24];
    snprintf(capability, sizeof(capability), "%d.%d", device->major, device->minor);
    return json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:b, s:o}", "name", device->name, "bus_id",
                     device->bus_id, "compute_capability", capability, "multiprocessors",
                     device->multiprocessors, "memory_bytes", (json_int_t)device->memory_bytes,
                     "shared_memory_bytes", (json_int_t)device->shared_bytes, "usable",
                     device->usable, "kernels",
                     device->usable ? kernels_json(device) : json_array());
}

json_t *ra_machine_cuda_json(void)
{
    ra_devices devices;
    ra_devices_read(&devices);
    json_t *list = json_array();
    for (int i = 0; list != NULL && i < devices.count; ++i)
        list = ra_json_append(list, device_json(&devices.list[i]));
    bool const available = devices.usable_count > 0;
    return json_pack("{s:b, s:s?, s:o, s:o, s:o, s:o}", "available", available, "why_not",
                     available ? NULL : devices.why_not, "driver_cuda",
                     version_json(devices.driver_version), "runtime_cuda",
                     version_json(devices.runtime_version), "kernels", kernels_json(NULL),
                     "devices", list);
}

const char *ra_devices_text(const ra_devices *devices, char *text, size_t bytes)
{
    char driver[16], build[16];
    if (devices->usable_count == 0)
        snprintf(text, bytes, "no: %s", devices->why_not);
    else
        snprintf(text, bytes, "%d GPU%s; CUDA of the driver %s, of this build %s",
                 devices->usable_count, ra_plural(devices->usable_count),
                 ra_cuda_version_text(devices->driver_version, driver),
                 ra_cuda_version_text(devices->runtime_version, build));
    return text;
}

const char *ra_device_text(const ra_devices *devices, int index, char *text, size_t bytes)
{
    char memory[32];
    const ra_device *device = &devices->list[index];
    const ra_kernel_ops *tables[TABLES];
    int const count = tables_for(device, tables);
    snprintf(text, bytes, "GPU %d: %s (%d.%d, %s, %d multiprocessors)", index, device->name,
             device->major, device->minor, ra_bytes_text(device->memory_bytes, memory),
             device->multiprocessors);
    for (int i = 0; i < count; i++)
        ra_text_append(text, bytes, i > 0 ? " " : ", kernels ", "%s", tables[i]->name);
    return text;
}
