/* OpenBLAS, loaded when it is first wanted. */
#include "ringattn/blas.h"

#include "internal.h"
#include "library.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* of the CBLAS interface */

typedef void sgemm_function(int order, int transpose_a, int transpose_b, int m, int n, int k,
                            float alpha, const float *a, int lda, const float *b, int ldb,
                            float beta, float *c, int ldc);
typedef void set_threads_function(int threads);
typedef char *get_text_function(void);

typedef struct blas {
    sgemm_function *sgemm;
    set_threads_function *set_threads;
    char name[192]; /* empty: not found */
} blas;

static blas the_blas;
static pthread_once_t looked_for = PTHREAD_ONCE_INIT;

/*
 * OpenBLAS takes processors newer than itself for the oldest of their kind, at a fifth of the
 * speed: name the core that the instruction set allows, unless the user has named one.
 */
static void core_set(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        setenv("OPENBLAS_CORETYPE", "Haswell", 0);
#endif
}

/*
 * Open it with one thread, whatever the user has asked for: else loading it starts a thread per
 * core, and each asks for a buffer of its own at once, again and again for ever where there is no
 * address space for it. Even the end of the process waits then.
 */
static void *open_single(const char *const *names, size_t count)
{
    static const char variable[] = "OPENBLAS_NUM_THREADS";
    const char *asked = getenv(variable);
    char *const kept = asked != NULL ? strdup(asked) : NULL;
    if (asked != NULL && kept == NULL)
        return NULL;
    setenv(variable, "1", 1);
    void *const library = ra_library_open(names, count);
    if (kept != NULL)
        setenv(variable, kept, 1);
    else
        unsetenv(variable);
    free(kept);
    return library;
}

static void blas_find(void)
{
    static const char *const names[] = {"libopenblas.so.0", "libopenblas.so"};
    get_text_function *config = NULL, *core = NULL;
    core_set();
    void *const library = open_single(names, sizeof(names) / sizeof(names[0]));
    if (library == NULL)
        return;
    if (!ra_library_find(library, "cblas_sgemm", &the_blas.sgemm) ||
        !ra_library_find(library, "openblas_set_num_threads", &the_blas.set_threads) ||
        !ra_library_find(library, "openblas_get_config", &config) ||
        !ra_library_find(library, "openblas_get_corename", &core))
        return;
    /* With threads of its own it would serve one caller at a time. */
    the_blas.set_threads(1);
    /* "OpenBLAS 0.3.21 NO_LAPACKE ...": the first two words say enough. */
    const char *text = config(), *space = strchr(text, ' ');
    size_t const length =
        space != NULL ? (size_t)(space - text) + 1 + strcspn(space + 1, " ") : strlen(text);
    snprintf(the_blas.name, sizeof(the_blas.name), "%.*s, kernels for %s", (int)length, text,
             core());
}

const char *ra_blas_name(void)
{
    RA_ASSERT(pthread_once(&looked_for, blas_find) == 0);
    return the_blas.name[0] != '\0' ? the_blas.name : NULL;
}

void ra_blas_multiply(const ra_blas_product *p)
{
    RA_ASSERT(the_blas.name[0] != '\0');
    the_blas.sgemm(ROW_MAJOR, p->a_transposed ? TRANSPOSE : NO_TRANSPOSE,
                   p->b_transposed ? TRANSPOSE : NO_TRANSPOSE, p->m, p->n, p->k, p->factor, p->a,
                   p->a_stride, p->b, p->b_stride, p->keep, p->c, p->c_stride);
}

void ra_blas_multiply_square(int threads, int32_t n, const float *a, const float *b, float *c)
{
    RA_ASSERT(the_blas.name[0] != '\0');
    the_blas.set_threads(threads);
    ra_blas_multiply(&(ra_blas_product){.m = n,
                                        .n = n,
                                        .k = n,
                                        .factor = 1,
                                        .a = a,
                                        .b = b,
                                        .c = c,
                                        .a_stride = n,
                                        .b_stride = n,
                                        .c_stride = n});
    the_blas.set_threads(1);
}
