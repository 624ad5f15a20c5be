/* Hardware files as ra_hardware_load reads them. */
#include "hardware.h"
#include "output_file.h"

static const char *const dtypes[] = {"f32", "f16", "bf16"};

/* A name may hold anything: in double quotes, with what would end them escaped. */
static void write_name(ra_output *out, const char *name)
{
    ra_output_put(out, "name: \"");
    for (const char *c = name; *c != '\0'; c++) {
        ra_output_put(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "",
                      (unsigned char)*c < ' ' ? ' ' : *c);
    }
    ra_output_put(out, "\"\n");
}

static const struct {
    const char *path;
    ra_work work;
    bool backward;
} passes[] = {{"forward", RA_WORK_FLASH, false},
              {"backward", RA_WORK_FLASH, true},
              {"standard.forward", RA_WORK_STANDARD, false},
              {"standard.backward", RA_WORK_STANDARD, true},
              {"linear.forward", RA_WORK_LINEAR, false},
              {"linear.backward", RA_WORK_LINEAR, true},
              {"chunked.forward", RA_WORK_CHUNKED, false},
              {"chunked.backward", RA_WORK_CHUNKED, true},
              {"recurrent.forward", RA_WORK_RECURRENT, false},
              {"cumsum.forward", RA_WORK_CUMSUM, false}};

/* What is not known is not written. */
static void write_speeds(ra_output *out, const ra_hardware *h)
{
    for (size_t i = 0; i < sizeof(passes) / sizeof(passes[0]); i++) {
        for (int dtype = 0; dtype < 3; dtype++) {
            const ra_pass_speed *s = &h->speeds[passes[i].work][passes[i].backward][dtype];
            if (s->efficiency > 0)
                ra_output_put(out,
                              "%s.%s: {efficiency: %.4g, start_us: %.4g, pair_ns: %.4g, "
                              "row_element_ns: %.4g, key_element_ns: %.4g}\n",
                              passes[i].path, dtypes[dtype], s->efficiency, s->start_us, s->pair_ns,
                              s->row_element_ns, s->key_element_ns);
        }
    }
}

static void write_link(ra_output *out, const char *name, const ra_link *link)
{
    if (link->gb_per_s > 0)
        ra_output_put(out, "%s: {gb_per_s: %.4g, latency_us: %.4g}\n", name, link->gb_per_s,
                      link->latency_us);
}

static void write_all(ra_output *out, const char *comment, const ra_hardware *h)
{
    ra_output_put(out, "# %s\n", comment);
    if (h->name[0] != '\0')
        write_name(out, h->name);
    ra_output_put(out, "ranks: %d\nranks_per_node: %d\nshares_memory: %s\n", h->ranks,
                  h->ranks_per_node, h->shares_memory ? "true" : "false");
    if (h->memory_bytes > 0)
        ra_output_put(out, "memory: %lld\n", (long long)h->memory_bytes);
    if (h->memory_gb_per_s > 0)
        ra_output_put(out, "memory_gb_per_s: %.4g\n", h->memory_gb_per_s);
    if (h->cache_bytes > 0)
        ra_output_put(out, "cache: %lld\n", (long long)h->cache_bytes);
    if (h->workspace_bytes >= 0)
        ra_output_put(out, "workspace: %lld\n", (long long)h->workspace_bytes);
    if (h->threads > 0)
        ra_output_put(out, "threads: %d\n", h->threads);
    if (h->multiprocessors > 0)
        ra_output_put(out, "multiprocessors: %d\n", h->multiprocessors);
    if (h->compute_capability > 0)
        ra_output_put(out, "compute_capability: %.1f\n", h->compute_capability);
    if (h->context_bytes > 0)
        ra_output_put(out, "context: %lld\n", (long long)h->context_bytes);
    ra_output_put(out, "peak_tflops: {f32: %.4g, f16: %.4g, bf16: %.4g}\n", h->peak_tflops[0],
                  h->peak_tflops[1], h->peak_tflops[2]);
    write_speeds(out, h);
    write_link(out, "node", &h->node);
    write_link(out, "network", &h->network);
}

ra_status ra_hardware_save(const char *path, const char *comment, const ra_hardware *hardware)
{
    ra_output output;
    ra_status const status = ra_output_open(&output, path, "--save: ", "cannot be written");
    if (status != RA_OK)
        return status;
    write_all(&output, comment, hardware);
    return ra_output_close(&output, true);
}
