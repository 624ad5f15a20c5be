/* `ringattn info`: what is here, what this build can do with it, and why not. */
#include "tool_info.h"

#include "backend.h"
#include "bytes_text.h"
#include "console.h"
#include "internal.h"
#include "job.h"
#include "job_source.h"
#include "json_build.h"
#include "kernel_findings.h"
#include "options.h"
#include "output_file.h"
#include "placement.h"
#include "ranks.h"
#include "ringattn/blas.h"

#include <stdio.h>

static void print_line(const char *label, const char *text)
{
    printf("%-16s %s\n", label, text);
}

static const char *text_at(const json_t *tree, const char *section, const char *key)
{
    const char *text = json_string_value(json_object_get(json_object_get(tree, section), key));
    return text != NULL ? text : "unknown";
}

/* A number of bytes, or `otherwise` where it is null. */
static void print_bytes(const json_t *tree, const char *label, const char *key,
                        const char *otherwise)
{
    char text[32];
    const json_t *bytes = json_object_get(json_object_get(tree, "memory"), key);
    print_line(label,
               json_is_integer(bytes) ? ra_bytes_text(json_integer_value(bytes), text) : otherwise);
}

/* Add a list's texts, " a b". */
static void append_list(char *line, size_t bytes, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); ++i)
        ra_text_append(line, bytes, " ", "%s", json_string_value(json_array_get(list, i)));
}

static void print_kernels(const json_t *tree)
{
    char line[256];
    const json_t *for_gpus = json_object_get(json_object_get(tree, "cuda"), "kernels");
    snprintf(line, sizeof(line), "%s, of", text_at(tree, "isa", "chosen"));
    append_list(line, sizeof(line), json_object_get(json_object_get(tree, "isa"), "available"));
    if (json_array_size(for_gpus) > 0)
        ra_text_append(line, sizeof(line), "; ", "for GPUs");
    append_list(line, sizeof(line), for_gpus);
    print_line("kernels", line);
}

/* "yes", or why not. */
static void print_backend(const json_t *tree, const char *label, const char *section,
                          const char *detail)
{
    bool const there = json_is_true(json_object_get(json_object_get(tree, section), "available"));
    char line[256];
    snprintf(line, sizeof(line), "no: %s", text_at(tree, section, "why_not"));
    print_line(label, there ? detail : line);
}

static void print_topology(const ra_topology *topology)
{
    char text[512];
    ra_topology_render(topology, text, sizeof(text));
    printf("%s\n\n", text);
}

/* Whether there is CUDA, and the GPUs that a job may get, under the numbers that reports use. */
static void print_devices(const ra_devices *devices)
{
    char text[512];
    print_line("CUDA", ra_devices_text(devices, text, sizeof(text)));
    for (int i = 0; i < devices->count; i++)
        if (devices->list[i].usable)
            print_line("", ra_device_text(devices, i, text, sizeof(text)));
}

/* Ranks and threads for this host, and the line that starts them. */
static void print_advice(const ra_topology *topology, int gpus, bool bound_by_launcher)
{
    char text[256];
    ra_advice const advice = ra_placement_advise(topology, gpus);
    print_line("advice", ra_advice_describe(&advice, text, sizeof(text)));
    print_line("", ra_advice_command(&advice, text, sizeof(text)));
    if (gpus == 0 && bound_by_launcher && topology->usable_cores < topology->allowed_cores) {
        snprintf(text, sizeof(text), "(for the %d of %d cores that this process is bound to)",
                 topology->usable_cores, topology->allowed_cores);
        print_line("", text);
    }
}

/* topology NULL: it is not known. */
static void print_machine(const json_t *tree, const ra_topology *topology, bool bound_by_launcher)
{
    char line[256];
    ra_devices devices;
    printf("ringattn %s on %s\n", ra_version(), json_string_value(json_object_get(tree, "host")));
    if (topology != NULL)
        print_topology(topology);
    print_kernels(tree);
    print_bytes(tree, "memory", "total_bytes", "unknown");
    print_bytes(tree, "available", "available_bytes", "unknown");
    print_bytes(tree, "cgroup limit", "cgroup_limit_bytes", "none");
    print_bytes(tree, "/dev/shm free", "shared_memory_free_bytes", "there is none");
    const char *level =
        json_string_value(json_object_get(json_object_get(tree, "mpi"), "thread_level"));
    snprintf(line, sizeof(line), "%s, %s%s", text_at(tree, "mpi", "library"),
             level != NULL ? "thread level " : "not started: run this under mpirun to see more",
             level != NULL ? level : "");
    print_backend(tree, "MPI", "mpi", line);
    print_backend(tree, "OpenMP", "openmp", "yes");
    ra_devices_read(&devices);
    print_devices(&devices);
    print_backend(tree, "NCCL", "nccl", text_at(tree, "nccl", "library"));
    print_backend(tree, "cuBLAS", "cublas", text_at(tree, "cublas", "library"));
    snprintf(line, sizeof(line), "libfyaml %s, jansson %s, hwloc API %s",
             text_at(tree, "build", "libfyaml"), text_at(tree, "build", "jansson"),
             text_at(tree, "build", "hwloc"));
    print_line("libraries", line);
    print_line("compiler", text_at(tree, "build", "compiler"));
    const char *blas = json_string_value(json_object_get(tree, "openblas"));
    snprintf(line, sizeof(line), "%s: bench cannot measure its sgemm",
             ra_blas_is_refused() ? "refused address space to be loaded" : "not installed");
    print_line("OpenBLAS", blas != NULL ? blas : line);
    if (topology != NULL)
        print_advice(topology, devices.usable_count, bound_by_launcher);
}

/* What --check has found; no findings without it. */
typedef struct findings {
    int count;
    ra_kernel_finding list[RA_KERNEL_FINDINGS_MAX];
} findings;

static json_t *members_json(json_t *machine, const findings *found, bool checked)
{
    json_t *members = json_pack("{s:o}", "machine", machine);
    if (!checked)
        return members;
    return ra_json_extend(
        members, json_pack("{s:o}", "checks", ra_kernel_findings_json(found->list, found->count)));
}

static ra_status report(const ra_options *options, const ra_comm *comm, const findings *found)
{
    ra_topology topology;
    bool const is_known = ra_topology_read(&topology) == RA_OK; /* else it has been said why */
    json_t *machine = ra_machine_json_of(is_known ? &topology : NULL);
    if (machine != NULL &&
        (json_object_set_new(machine, "ranks", json_integer(ra_ranks_count(comm))) != 0 ||
         json_object_set_new(machine, "openblas", json_pack("s?", ra_blas_name())) != 0)) {
        json_decref(machine);
        machine = NULL;
    }
    if (machine == NULL)
        return ra_refuse_memory("the report");
    ra_status shown = RA_OK, written = RA_OK;
    if (ra_options_shows_text(options)) {
        print_machine(machine, is_known ? &topology : NULL, comm != NULL);
        if (options->check)
            ra_kernel_findings_print(found->list, found->count);
        shown = ra_stdout_check("");
    }
    json_t *members = members_json(machine, found, options->check);
    if (options->json)
        written = ra_json_report("info", members, options->json_path);
    else
        json_decref(members);
    return shown != RA_OK ? shown : written;
}

/* Collective. Refuse what `run` would refuse; with an input, its file decides on the shape. */
static ra_status config_look(const ra_options *options, ra_comm *comm)
{
    ra_config config;
    ra_status status = ra_job_load_config(options, comm, &config);
    if (status != RA_OK)
        return status;
    ra_console_hold();
    int const ranks = ra_ranks_count(comm);
    ra_backend backend;
    char note[RA_BACKEND_NOTE_MAX];
    if (config.input == NULL)
        status = ra_config_check(&config, ranks);
    if (status == RA_OK)
        status = ra_backend_choose(&config, ranks, &backend, note);
    if (status == RA_OK && config.input == NULL && backend == RA_BACKEND_CUDA &&
        !ra_backend_may_be_cpu(&config) && !ra_backend_gpu_serves(&config, note))
        status = ra_backend_refuse(&config, note);
    if (status == RA_OK)
        status = ra_job_check_outputs(options, &config, comm, false);
    status = ra_console_agree(comm, "agreeing on the configuration", status);
    ra_config_fini(&config);
    return status;
}

/* Beside a GPU, as many as a rank of a job computes with; else one. */
static ra_status threads_choose(ra_comm *comm, int *threads_out)
{
    ra_devices devices;
    ra_topology topology;
    *threads_out = 1;
    ra_devices_read(&devices);
    if (devices.usable_count == 0)
        return RA_OK;
    ra_status const status = ra_topology_read(&topology);
    if (status == RA_OK)
        *threads_out = ra_topology_divide(&topology, comm != NULL ? ra_comm_local_size(comm) : 1);
    return status;
}

int ra_command_info(const ra_options *options, ra_comm *comm)
{
    findings found = {0};
    int threads = 1;
    bool const first = ra_ranks_is_first(comm);
    ra_status status = config_look(options, comm);
    if (status == RA_OK && first && options->check)
        status = threads_choose(comm, &threads);
    if (status == RA_OK && first && options->check)
        status = ra_kernel_findings_make(comm, threads, found.list, &found.count);
    if (status == RA_OK && first)
        status = report(options, comm, &found);
    else if (found.count > 0 && ra_options_shows_text(options)) { /* up to a GPU that is lost */
        ra_kernel_findings_print(found.list, found.count);
        ra_stdout_flush();
    }
    ra_ranks_leave(comm);
    if (status != RA_OK || ra_kernel_findings_agree(found.list, found.count))
        return ra_exit_code(status);
    ra_log(RA_LOG_ERROR, "kernels compute wrong results on this machine: see the lines above, or "
                         "\"checks\" of --json; take another compute.isa");
    return RA_EXIT_VERIFY;
}
