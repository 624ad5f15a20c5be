/* Which kernels a job computes with: those that it requests, once they have passed a check. */
#ifndef RINGATTN_TOOL_KERNEL_CHOICE_H
#define RINGATTN_TOOL_KERNEL_CHOICE_H

#include "backend.h"

#include "ringattn/kernel_check.h"

enum { RA_KERNEL_LIST_MAX = 10, RA_KERNEL_NOTE_MAX = 512 };

/* Tables in order of preference; later ones replace one that fails. */
typedef struct ra_kernel_list {
    int count;
    bool may_end; /* none of them may agree: then another backend takes over */
    const ra_kernel_ops *tables[RA_KERNEL_LIST_MAX];
} ra_kernel_list;

/** Add a table behind the others, unless it is NULL or among them. */
void ra_kernel_list_add(ra_kernel_list *list, const ra_kernel_ops *ops);

/**
 * What a configuration asks for: on the CPU with compute.isa auto, all instruction sets that this
 * machine runs, the fastest first; on a GPU that of this attention.kind and compute.isa, with auto
 * behind those that suit job and GPU better, after which a list that compute.backend auto has made
 * may end.
 *
 * @param backend   RA_BACKEND_CPU or RA_BACKEND_CUDA
 * @param hardware  describes the GPU, if it says multiprocessors; else it is the one in use. May be
 *                  NULL
 * @return RA_ERR_UNSUPPORTED  there is none here, one logged line
 */
RA_CHECKED ra_status ra_kernel_list_make(const ra_config *config, ra_backend backend,
                                         const ra_hardware *hardware, ra_kernel_list *list_out);

/**
 * ra_kernel_check with the plain kernel, while the other ranks of `comm`, which may be NULL, wait
 * for this one: it gives them signs of work. So a GPU that hangs is found by its own rank, before
 * the others give that one up.
 */
RA_CHECKED ra_status ra_kernel_compare(const ra_kernel_ops *ops, const ra_kernel_use *use,
                                       ra_comm *comm, ra_kernel_verdict *verdict_out);

/**
 * The first of `list` that agrees with the plain kernel (kernel_check.h); NULL if none does and the
 * list may end. note_out says, for a warning, what is wrong with those before it; "" if nothing is.
 * A table and a use are compared once per process (ra_kernel_compare).
 *
 * @return RA_ERR_INTERNAL   none of them agrees, one logged line
 *         RA_ERR_NO_MEMORY  or what a kernel returned, likewise
 */
RA_CHECKED ra_status ra_kernel_list_check(const ra_kernel_list *list, const ra_kernel_use *use,
                                          ra_comm *comm, const ra_kernel_ops **ops_out,
                                          char note_out[RA_KERNEL_NOTE_MAX]);

#endif
