/* The check of kernels, for linear attention: its passes over segments, as a ring calls them. */
#include "ringattn/linear.h"
#include "sparse/check_side.h"

/* A pass's memory beside its tensors; see ra_linear_pass. */
typedef struct kept {
    ra_block states, grads, prefixes, lines;
} kept;

static ra_status kept_take(const ra_check_side *s, kept *k)
{
    const ra_check_problem *p = s->p;
    size_t const state = (size_t)ra_linear_state_floats(p->dim) * (size_t)p->kv_heads;
    size_t const rows = (size_t)p->rows, states = state * (size_t)s->steps;
    struct {
        size_t floats;
        ra_block *block;
    } const wanted[] = {{states, &k->states},
                        {p->backward ? states : 0, &k->grads},
                        {p->method == RA_LINEAR_CUMSUM ? state * rows : 0, &k->prefixes},
                        {p->backward ? 2 * rows * (size_t)p->heads : 0, &k->lines}};
    ra_status status = RA_OK;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && status == RA_OK; ++i)
        status = ra_pool_alloc(s->where->pool, RA_MEM_WORKSPACE, wanted[i].floats * sizeof(float),
                               s->kernel->stream, wanted[i].block);
    return status;
}

static void kept_give(const ra_check_side *s, kept *k)
{
    ra_block *const blocks[] = {&k->states, &k->grads, &k->prefixes, &k->lines};
    for (size_t i = 0; i < sizeof(blocks) / sizeof(blocks[0]); ++i)
        ra_pool_free(s->where->pool, s->kernel->stream, blocks[i]);
}

static ra_linear_pass pass_of(const ra_check_side *s, const kept *k)
{
    const ra_check_problem *p = s->p;
    return (ra_linear_pass){
        .shape = {.batch = 1, .q_heads = p->heads, .kv_heads = p->kv_heads, .dim = p->dim},
        .rows = p->rows,
        .segments = s->steps,
        .causal = p->linear == RA_LINEAR_CAUSAL,
        .method = p->method,
        .q = ra_check_view(s, CHECK_Q, 0),
        .k = ra_check_view(s, CHECK_K, 0),
        .v = ra_check_view(s, CHECK_V, 0),
        .out = ra_check_view(s, CHECK_OUT, 0),
        .dout = ra_check_view(s, CHECK_DOUT, 0),
        .dq = ra_check_view(s, CHECK_DQ, 0),
        .dk = ra_check_view(s, CHECK_DK, 0),
        .dv = ra_check_view(s, CHECK_DV, 0),
        .states = k->states.data,
        .grads = k->grads.data,
        .prefixes = k->prefixes.data,
        .lines = k->lines.data};
}

static ra_status compute(ra_check_side *s, const ra_linear_pass *pass)
{
    ra_kernel *const kernel = s->kernel;
    const ra_linear_ops *const ops = kernel->ops->linear;
    bool const all = !pass->causal, backward = s->p->backward;
    ra_status status = ops->sum(kernel, pass);
    if (status == RA_OK)
        status = ops->spread(kernel, pass, all ? RA_LINEAR_ALL : RA_LINEAR_BEFORE, NULL, NULL,
                             pass->states);
    if (status == RA_OK)
        status = ops->forward(kernel, pass);
    if (status == RA_OK && backward)
        status = ops->backward_queries(kernel, pass);
    if (status == RA_OK && backward)
        status = ops->spread(kernel, pass, all ? RA_LINEAR_ALL : RA_LINEAR_AFTER, NULL, NULL,
                             pass->grads);
    if (status == RA_OK && backward)
        status = ops->backward_keys(kernel, pass);
    return status;
}

ra_status ra_check_linear_run(ra_check_side *s)
{
    kept k = {0};
    ra_status status = kept_take(s, &k);
    if (status == RA_OK) {
        ra_linear_pass const pass = pass_of(s, &k);
        status = compute(s, &pass);
        if (status == RA_OK) /* first, because returning blocks waits without a deadline */
            status = ra_kernel_finish(s->kernel);
    }
    kept_give(s, &k);
    return status;
}
