/* OpenBLAS, loaded when it is first wanted. */
#include "ringattn/blas.h"

#include "internal.h"
#include "library.h"
#include "sparse/host_device.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 }; /* of the CBLAS interface */

typedef void sgemm_function(int order, int transpose_a, int transpose_b, int m, int n, int k,
                            float alpha, const float *a, int lda, const float *b, int ldb,
                            float beta, float *c, int ldc);
typedef void set_threads_function(int threads);
typedef void *take_buffer_function(int unused);
typedef void return_buffer_function(void *buffer);
typedef char *get_text_function(void);

typedef struct blas {
    sgemm_function *sgemm;
    set_threads_function *set_threads;
    take_buffer_function *take_buffer;
    return_buffer_function *return_buffer;
    char name[192]; /* empty: not found */
    bool is_refused;
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

/* As free address space, which newer ones (0.3.29) need as they are loaded, too. */
static bool has_room(int64_t mib)
{
    return ra_library_has_room(mib, mib);
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
    the_blas.is_refused = !has_room(RA_BLAS_ROOM_MIB); /* for a buffer, and itself */
    if (the_blas.is_refused)
        return;
    core_set();
    void *const library = open_single(names, sizeof(names) / sizeof(names[0]));
    if (library == NULL)
        return;
    if (!ra_library_find(library, "cblas_sgemm", &the_blas.sgemm) ||
        !ra_library_find(library, "openblas_set_num_threads", &the_blas.set_threads) ||
        !ra_library_find(library, "blas_memory_alloc", &the_blas.take_buffer) ||
        !ra_library_find(library, "blas_memory_free", &the_blas.return_buffer) ||
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

bool ra_blas_is_refused(void)
{
    return ra_blas_name() == NULL && the_blas.is_refused;
}

/* ---- its buffers ----------------------------------------------------------------------------- */

/*
 * OpenBLAS keeps a buffer for each thread that multiplies while others do, its own included, and
 * maps one where all that it has are in use, which depends on timing. Refused one, versions before
 * 0.3.30 ask for ever, and later ones end the process. So they are all made here beforehand, by the
 * functions with which it takes and returns them itself: no documented interface, but in every
 * build for Linux. (Built with USE_TLS, which is not the default, it has others for each thread.)
 */
enum {
    BUFFER_MIB = 128, /* on x86-64, in 0.3.21 */
    HELPER_MIB = 144, /* stack and heap of a thread of its own */
    SPARE_MIB = 128   /* for the heap that another thread may begin before a buffer is mapped */
};

static struct {
    pthread_mutex_t mutex;
    int callers, helpers; /* that have theirs */
} ready = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* Only as many as are taken at the same time are different ones: each holds the address of the last
   until all are there. */
static bool buffers_make(int count)
{
    void **last = NULL;
    int made = 0;
    for (void **buffer; made < count && (buffer = the_blas.take_buffer(0)) != NULL; made++) {
        *buffer = last;
        last = buffer;
    }
    while (last != NULL) {
        void **const buffer = last;
        last = *buffer;
        the_blas.return_buffer(buffer);
    }
    return made == count;
}

bool ra_blas_reserve(int callers, int helpers)
{
    RA_ASSERT(the_blas.name[0] != '\0');
    pthread_mutex_lock(&ready.mutex);
    int const all_callers = ra_hd_max(callers, ready.callers);
    int const more_helpers = ra_hd_max(helpers - ready.helpers, 0);
    bool found = true;
    if (all_callers > ready.callers || more_helpers > 0) {
        int const buffers = all_callers + ready.helpers + more_helpers;
        int const new_buffers = buffers - ready.callers; /* helpers that there are hold theirs */
        found = has_room((int64_t)new_buffers * BUFFER_MIB + (int64_t)more_helpers * HELPER_MIB +
                         SPARE_MIB) &&
                buffers_make(buffers);
    }
    if (found) {
        ready.callers = all_callers;
        ready.helpers += more_helpers;
    }
    if (found && more_helpers > 0) { /* they begin now, while there is room */
        the_blas.set_threads(1 + ready.helpers);
        the_blas.set_threads(1);
    }
    pthread_mutex_unlock(&ready.mutex);
    return found;
}

/* ---- products -------------------------------------------------------------------------------- */

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
