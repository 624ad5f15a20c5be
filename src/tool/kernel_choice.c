#include "kernel_choice.h"

#include "bytes_text.h"
#include "config_table.h"
#include "internal.h"
#include "ringattn/blas.h"

#include <pthread.h>

void ra_kernel_list_add(ra_kernel_list *list, const ra_kernel_ops *ops)
{
    for (int i = 0; i < list->count; i++)
        if (list->tables[i] == ops)
            return;
    if (ops == NULL)
        return;
    RA_ASSERT(list->count < RA_KERNEL_LIST_MAX);
    list->tables[list->count++] = ops;
}

/* The best one first, then from the widest vectors down; all of them but standard. */
static void list_add_all(ra_kernel_list *list)
{
    static const ra_isa isas[] = {RA_ISA_AUTO, RA_ISA_AMX,  RA_ISA_AVX512BF16, RA_ISA_AVX512,
                                  RA_ISA_AVX2, RA_ISA_NEON, RA_ISA_PORTABLE};
    for (size_t i = 0; i < sizeof(isas) / sizeof(isas[0]); i++)
        ra_kernel_list_add(list, ra_kernel_cpu(isas[i]));
}

/* The one that auto prefers on GPUs where it suits, to the one that serves the rest. */
static void list_add_preferred(const ra_config *config, const ra_hardware *hardware,
                               ra_kernel_list *list)
{
    const ra_kernel_ops *const preferred = ra_kernel_cuda_sm90a();
    if (preferred != NULL && ra_backend_gpu_suits(config, preferred, hardware))
        ra_kernel_list_add(list, preferred);
}

/* Names the sets that there are as the configuration does: "portable, avx2". */
static void isa_refuse(ra_isa isa)
{
    const ra_config_key *key = &ra_config_keys[ra_config_key_find("compute.isa")];
    char there[128] = "";
    for (const ra_choice *c = key->choices; c->name != NULL; c++) {
        if (c->value != RA_ISA_AUTO && ra_kernel_cpu((ra_isa)c->value) != NULL)
            ra_text_append(there, sizeof(there), ", ", "%s", c->name);
    }
    ra_log(RA_LOG_ERROR,
           "compute.isa: %s: this machine, or this build, lacks it: there is %s; auto takes the "
           "best of these",
           ra_config_choice_name(key, isa), there);
}

static ra_status room_refuse(void)
{
    ra_log(RA_LOG_ERROR,
           "memory: attention.kind: standard computes with OpenBLAS, which the system refuses %d "
           "MiB of address space: raise that limit (ulimit -v), or take flash",
           RA_BLAS_ROOM_MIB);
    return RA_ERR_NO_MEMORY;
}

ra_status ra_kernel_list_make(const ra_config *config, ra_backend backend,
                              const ra_hardware *hardware, ra_kernel_list *list_out)
{
    bool const standard = config->attention_kind == RA_ATTENTION_STANDARD;
    *list_out =
        (ra_kernel_list){.may_end = backend == RA_BACKEND_CUDA && ra_backend_may_be_cpu(config)};
    if (backend == RA_BACKEND_CUDA && config->isa == RA_ISA_AUTO && !standard)
        list_add_preferred(config, hardware, list_out);
    if (backend == RA_BACKEND_CUDA)
        ra_kernel_list_add(list_out, ra_backend_gpu_table(config));
    else if (standard)
        ra_kernel_list_add(list_out, ra_kernel_standard());
    else if (config->isa == RA_ISA_AUTO)
        list_add_all(list_out);
    else
        ra_kernel_list_add(list_out, ra_kernel_cpu(config->isa));
    if (list_out->count > 0)
        return RA_OK;
    if (backend == RA_BACKEND_CUDA)
        ra_log(RA_LOG_ERROR, "compute.backend: cuda: this build lacks what computes there");
    else if (standard && ra_blas_is_refused())
        return room_refuse();
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
typedef struct known_check {
    const ra_kernel_ops *ops;
    ra_kernel_use use;
    ra_kernel_verdict verdict;
} known_check;
static known_check known[KNOWN_MAX];
static int known_count;
static pthread_mutex_t known_lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_same(const known_check *check, const ra_kernel_ops *ops, const ra_kernel_use *use)
{
    return check->ops == ops && check->use.dtype == use->dtype && check->use.dim == use->dim &&
           check->use.backward == use->backward && check->use.deterministic == use->deterministic &&
           check->use.shares_rows == use->shares_rows &&
           check->use.shares_keys == use->shares_keys && check->use.long_rows == use->long_rows &&
           check->use.dilated == use->dilated && check->use.linear == use->linear &&
           check->use.method == use->method;
}

static void beat(void *comm)
{
    ra_comm_beat(comm);
}

ra_status ra_kernel_compare(const ra_kernel_ops *ops, const ra_kernel_use *use, ra_comm *comm,
                            ra_kernel_verdict *verdict_out)
{
    return ra_kernel_check(ops, ra_kernel_cpu(RA_ISA_PORTABLE), use, beat, comm, verdict_out);
}

static ra_status check_once(const ra_kernel_ops *ops, const ra_kernel_use *use, ra_comm *comm,
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
        status = ra_kernel_compare(ops, use, comm, verdict_out);
    if (!found && status == RA_OK && known_count < KNOWN_MAX)
        known[known_count++] = (known_check){.ops = ops, .use = *use, .verdict = *verdict_out};
    pthread_mutex_unlock(&known_lock);
    return status;
}

ra_status ra_kernel_list_check(const ra_kernel_list *list, const ra_kernel_use *use, ra_comm *comm,
                               const ra_kernel_ops **ops_out, char note_out[RA_KERNEL_NOTE_MAX])
{
    note_out[0] = '\0';
    RA_ASSERT(list->count >= 1);
    for (int i = 0; i < list->count; i++) {
        const ra_kernel_ops *ops = list->tables[i];
        ra_kernel_verdict verdict;
        ra_status const status = check_once(ops, use, comm, &verdict);
        if (status != RA_OK)
            return status;
        if (verdict.agrees) {
            *ops_out = ops;
            if (note_out[0] != '\0')
                ra_text_append(note_out, RA_KERNEL_NOTE_MAX, "",
                               "%s computes instead; see ringattn info --check", ops->name);
            return RA_OK;
        }
        ra_text_append(note_out, RA_KERNEL_NOTE_MAX, "",
                       "kernel %s computes wrong results here (%s, head_dim %d: %s is "
                       "off by %.2g, allowed is %.2g): ",
                       ops->name, ra_dtype_name(use->dtype), use->dim, verdict.tensor,
                       verdict.error, verdict.allowed);
    }
    if (list->may_end) {
        ra_text_append(note_out, RA_KERNEL_NOTE_MAX, "",
                       "the CPU computes instead; see ringattn info --check");
        *ops_out = NULL;
        return RA_OK;
    }
    ra_log(RA_LOG_ERROR, "%sno other one is left; see ringattn info --check", note_out);
    note_out[0] = '\0'; /* it has been said */
    return RA_ERR_INTERNAL;
}
