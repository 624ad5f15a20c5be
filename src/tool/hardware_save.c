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
    const char *section; /* "": at the top */
    ra_work work;
} works[] = {
    {"", RA_WORK_FLASH},          {"standard", RA_WORK_STANDARD},   {"linear", RA_WORK_LINEAR},
    {"chunked", RA_WORK_CHUNKED}, {"recurrent", RA_WORK_RECURRENT}, {"cumsum", RA_WORK_CUMSUM}};

static bool has_speed(const ra_pass_speed *speeds)
{
    return speeds[0].efficiency > 0 || speeds[1].efficiency > 0 || speeds[2].efficiency > 0;
}

static void write_speeds(ra_output *out, int indent, const char *pass, const ra_pass_speed *speeds)
{
    if (!has_speed(speeds))
        return;
    ra_output_put(out, "%*s%s:\n", indent, "", pass);
    for (int i = 0; i < 3; i++)
        if (speeds[i].efficiency > 0)
            ra_output_put(
                out,
                "%*s%s: {efficiency: %.4g, start_us: %.4g, pair_ns: %.4g, row_element_ns: "
                "%.4g, key_element_ns: %.4g}\n",
                indent + 2, "", dtypes[i], speeds[i].efficiency, speeds[i].start_us,
                speeds[i].pair_ns, speeds[i].row_element_ns, speeds[i].key_element_ns);
}

/* What is not known is not written. */
static void write_works(ra_output *out, const ra_hardware *h)
{
    for (size_t i = 0; i < sizeof(works) / sizeof(works[0]); i++) {
        const ra_pass_speed(*speeds)[3] = h->speeds[works[i].work];
        int const indent = works[i].section[0] != '\0' ? 2 : 0;
        if (indent > 0 && (has_speed(speeds[0]) || has_speed(speeds[1])))
            ra_output_put(out, "%s:\n", works[i].section);
        write_speeds(out, indent, "forward", speeds[0]);
        write_speeds(out, indent, "backward", speeds[1]);
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
    if (h->multiprocessors > 0)
        ra_output_put(out, "multiprocessors: %d\n", h->multiprocessors);
    if (h->context_bytes > 0)
        ra_output_put(out, "context: %lld\n", (long long)h->context_bytes);
    ra_output_put(out, "peak_tflops: {f32: %.4g, f16: %.4g, bf16: %.4g}\n", h->peak_tflops[0],
                  h->peak_tflops[1], h->peak_tflops[2]);
    write_works(out, h);
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
