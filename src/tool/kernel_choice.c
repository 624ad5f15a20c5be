#include "kernel_choice.h"

#include "config_table.h"
#include "internal.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>

static void list_add(ra_kernel_list *list, const ra_kernel_ops *ops)
{
    for (int i = 0; i < list->count; i++)
        if (list->tables[i] == ops)
            return;
    if (ops != NULL)
        list->tables[list->count++] = ops;
}

/* The best one first, then from the widest vectors down; all of them but standard. */
static void list_add_all(ra_kernel_list *list)
{
    static const ra_isa isas[] = {RA_ISA_AUTO, RA_ISA_AVX512BF16, RA_ISA_AVX512,
                                  RA_ISA_AVX2, RA_ISA_NEON,       RA_ISA_PORTABLE};
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        list_add(list, ra_kernel_cpu(isas[i]));
}

/* Names the sets that there are as the configuration does: "portable, avx2". */
static void isa_refuse(ra_isa isa)
{
    const ra_config_key *key = &ra_config_keys[ra_config_key_find("compute.isa")];
    char there[128] = "";
    size_t used = 0;
    for (const ra_choice *c = key->choices; c->name != NULL && used < sizeof(there); c++) {
        if (c->value != RA_ISA_AUTO && ra_kernel_cpu((ra_isa)c->value) != NULL)
            used += (size_t)snprintf(there + used, sizeof(there) - used, "%s%s",
                                     used > 0 ? ", " : "", c->name);
    }
    ra_log(RA_LOG_ERROR,
           "compute.isa: %s: this machine, or this build, lacks it: there is %s; auto takes the "
           "best of these",
           ra_config_choice_name(key, isa), there);
}

ra_status ra_kernel_list_make(const ra_config *config, ra_backend backend, ra_kernel_list *list_out)
{
    bool const standard = config->attention_kind == RA_ATTENTION_STANDARD;
    *list_out = (ra_kernel_list){.may_end = backend == RA_BACKEND_CUDA &&
                                            config->backend == RA_BACKEND_AUTO};
    if (backend == RA_BACKEND_CUDA)
        list_add(list_out, standard ? ra_kernel_cuda_standard() : ra_kernel_cuda());
    else if (standard)
        list_add(list_out, ra_kernel_standard());
    else if (config->isa == RA_ISA_AUTO)
        list_add_all(list_out);
    else
        list_add(list_out, ra_kernel_cpu(config->isa));
    if (list_out->count > 0)
        return RA_OK;
    if (backend == RA_BACKEND_CUDA)
        ra_log(RA_LOG_ERROR, "compute.backend: cuda: this build lacks what computes there");
    else if (standard)
        ra_log(RA_LOG_ERROR, "attention.kind: standard computes with OpenBLAS, which is not "
                             "installed here: install libopenblas0, or take flash");
    else
        isa_refuse(config->isa);
    return RA_ERR_UNSUPPORTED;
}

/* ---- comparing once -------------------------------------------------------------------------- */

/* Results of this process's checks; in a series each job asks for the same again. */
enum { KNOWN_MAX = 32 };
static ra_kernel_finding known[KNOWN_MAX];
static int known_count;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_same(const ra_kernel_finding *finding, const ra_kernel_ops *ops,
                    const ra_kernel_use *use)
{
    return finding->ops == ops && finding->use.dtype == use->dtype &&
           finding->use.dim == use->dim && finding->use.backward == use->backward &&
           finding->use.deterministic == use->deterministic && finding->use.linear == use->linear &&
           finding->use.method == use->method;
}

static ra_status check_once(const ra_kernel_ops *ops, const ra_kernel_use *use,
                            ra_kernel_verdict *verdict_out)
{
    bool found = false;
    ra_status status = RA_OK;
    pthread_mutex_lock(&known_lock);
    for (int i = 0; i < known_count && !found; i++) {
        found = is_same(&known[i], ops, use);
        if (found)
            *verdict_out = known[i].verdict;
    }
    if (!found)
        status = ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), use, verdict_out);
    if (!found && status == RA_OK && known_count < KNOWN_MAX)
        known[known_count++] =
            (ra_kernel_finding){.ops = ops, .use = *use, .verdict = *verdict_out};
    pthread_mutex_unlock(&known_lock);
    return status;
}

ra_status ra_kernel_list_check(const ra_kernel_list *list, const ra_kernel_use *use,
                               const ra_kernel_ops **ops_out, char note_out[RA_KERNEL_NOTE_MAX])
{
    size_t used = 0;
    note_out[0] = '\0';
    RA_ASSERT(list->count >= 1);
    for (int i = 0; i < list->count; i++) {
        const ra_kernel_ops *ops = list->tables[i];
        ra_kernel_verdict verdict;
        ra_status const status = check_once(ops, use, &verdict);
        if (status != RA_OK)
            return status;
        if (verdict.agrees) {
            *ops_out = ops;
            if (used > 0)
                snprintf(note_out + used, RA_KERNEL_NOTE_MAX - used,
                         "%s computes instead; see ringattn info --check", ops->name);
            return RA_OK;
        }
        used += (size_t)snprintf(note_out + used, RA_KERNEL_NOTE_MAX - used,
                                 "kernel %s computes wrong results here (%s, head_dim %d: %s is "
                                 "off by %.2g, allowed is %.2g): ",
                                 ops->name, ra_dtype_name(use->dtype), use->dim, verdict.tensor,
                                 verdict.error, verdict.allowed);
        used = used < RA_KERNEL_NOTE_MAX ? used : RA_KERNEL_NOTE_MAX - 1;
    }
    if (list->may_end) {
        snprintf(note_out + used, RA_KERNEL_NOTE_MAX - used,
                 "the CPU computes instead; see ringattn info --check");
        *ops_out = NULL;
        return RA_OK;
    }
    ra_log(RA_LOG_ERROR, "%sno other one is left; see ringattn info --check", note_out);
    note_out[0] = '\0'; /* it has been said */
    return RA_ERR_INTERNAL;
}

/* ---- `info --check` -------------------------------------------------------------------------- */

static double share(const ra_kernel_verdict *verdict)
{
    return verdict->error / verdict->allowed;
}

/* Keep the worst result over all head_dims that the device supports. A finding without a tensor has
   nothing to compare with yet. `use`: but for the dtype. */
static ra_status finding_widen(const ra_kernel_use *use, ra_comm *comm, ra_kernel_finding *finding)
{
    static const int32_t dims[] = {32, 64, 96, 128, 192, 256};
    for (size_t i = 0; i < sizeof(dims) / sizeof(dims[0]); i++) {
        ra_kernel_finding one = *finding;
        one.use = *use;
        one.use.dim = dims[i];
        one.use.dtype = finding->use.dtype;
        char why_not[240];
        if (one.ops->serves != NULL && !one.ops->serves(&one.use, why_not, sizeof(why_not)))
            continue;
        ra_comm_beat(comm);
        int64_t const begin_ns = ra_clock_ns();
        ra_status const status =
            ra_kernel_check(one.ops, ra_kernel_cpu(RA_ISA_PORTABLE), &one.use, &one.verdict);
        if (status != RA_OK)
            return status;
        double const ms = 1e-6 * (double)(ra_clock_ns() - begin_ns);
        one.longest_ms = finding->longest_ms = fmax(finding->longest_ms, ms);
        if (finding->verdict.tensor == NULL || share(&one.verdict) > share(&finding->verdict))
            *finding = one;
    }
    return RA_OK;
}

/* Drop the last finding if nothing was compared for it. */
static void findings_trim(const ra_kernel_finding *last, int *count)
{
    *count -= last->verdict.tensor == NULL;
}

/* Add a finding for softmax attention (on a GPU in bfloat16: for both kinds of backward), and one
   for linear attention of every kind, if the table is ever used for it, which `standard` is not. */
static ra_status findings_add(const ra_kernel_ops *ops, ra_dtype dtype, ra_comm *comm,
                              ra_kernel_finding *findings, int *count)
{
    static const ra_kernel_use softmax = {.backward = true, .threads = 1};
    static const ra_kernel_use repeatable = {.backward = true, .deterministic = true, .threads = 1};
    static const ra_kernel_use linear[] = {
        {.linear = RA_LINEAR_BIDIRECTIONAL, .backward = true, .threads = 1},
        {.linear = RA_LINEAR_CAUSAL, .backward = true, .threads = 1},
        {.linear = RA_LINEAR_CAUSAL, .method = RA_LINEAR_RECURRENT, .threads = 1},
        {.linear = RA_LINEAR_CAUSAL, .method = RA_LINEAR_CUMSUM, .threads = 1}};
    ra_kernel_finding const none = {.ops = ops, .use = {.dtype = dtype}};
    ra_kernel_finding *finding = &findings[(*count)++];
    *finding = none;
    ra_status status = finding_widen(&softmax, comm, finding);
    if (status == RA_OK && ops == ra_kernel_cuda() && dtype == RA_BF16)
        status = finding_widen(&repeatable, comm, finding);
    findings_trim(finding, count);
    if (status != RA_OK || ops->linear == NULL || ops == ra_kernel_standard())
        return status;
    finding = &findings[(*count)++];
    *finding = none;
    for (size_t i = 0; i < sizeof(linear) / sizeof(linear[0]) && status == RA_OK; i++)
        status = finding_widen(&linear[i], comm, finding);
    findings_trim(finding, count);
    return status;
}

static bool has_gpu(void)
{
    ra_devices devices;
    ra_devices_read(&devices);
    return devices.usable_count > 0;
}

ra_status ra_kernel_findings_make(ra_comm *comm, ra_kernel_finding findings[RA_KERNEL_FINDINGS_MAX],
                                  int *count_out)
{
    ra_kernel_list list = {0};
    int count = 0;
    list_add_all(&list);
    list_add(&list, ra_kernel_standard());
    if (has_gpu()) {
        char text[240];
        int64_t taken_bytes;
        /* A job has its context before it compares: so that is no part of how long one takes. */
        ra_status const status = ra_device_taken(&taken_bytes);
        if (status != RA_OK)
            return status;
        list_add(&list, ra_kernel_cuda());
        list_add(&list, ra_cublas_describe(text, sizeof(text)) ? ra_kernel_cuda_standard() : NULL);
    }
    for (int i = 0; i < list.count; i++)
        for (int dtype = RA_F32; dtype <= RA_BF16; dtype++) {
            ra_status const status =
                findings_add(list.tables[i], (ra_dtype)dtype, comm, findings, &count);
            if (status != RA_OK)
                return status;
        }
    *count_out = count;
    return RA_OK;
}

bool ra_kernel_findings_agree(const ra_kernel_finding *findings, int count)
{
    bool agree = true;
    for (int i = 0; i < count; i++)
        agree = agree && findings[i].verdict.agrees;
    return agree;
}
