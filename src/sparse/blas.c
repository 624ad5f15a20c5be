/* OpenBLAS, loaded when it is first wanted. */
#include "ringattn/blas.h"

#include "internal.h"
#include "library.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

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

/* Address space that costs no memory, or MAP_FAILED. */
static void *map(int mib)
{
    return mmap(NULL, (size_t)mib << 20, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

/* Newer ones (0.3.29) ask for a buffer as they are loaded, too, and likewise without end. */
static bool has_room(void)
{
    void *const room = map(RA_BLAS_ROOM_MIB); /* for a buffer of 128 MiB, and itself */
    return room != MAP_FAILED && munmap(room, (size_t)RA_BLAS_ROOM_MIB << 20) == 0;
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
    the_blas.is_refused = !has_room();
    if (the_blas.is_refused)
        return;
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

bool ra_blas_is_refused(void)
{
    return ra_blas_name() == NULL && the_blas.is_refused;
}

/* ---- room for its buffers -------------------------------------------------------------------- */

/*
 * OpenBLAS maps a buffer for each caller that it has at the same time, and one for each thread of
 * its own, and keeps it: 128 MiB on x86-64, in 0.3.21. Where it is refused one, versions before
 * 0.3.30 ask for ever, and later ones end the process. So address space for them is mapped here
 * beforehand, and given back bit by bit, just before OpenBLAS maps as much. Its threads take a
 * stack and a heap of their own as well.
 */
typedef struct room {
    int mib;          /* for each of them */
    int wanted;       /* so many had room, */
    atomic_int given; /* of which so many have taken it */
} room;

static room of_callers = {.mib = 128}, of_helpers = {.mib = 128 + 144};
static char *room_begin;
static int room_mib; /* still mapped, from there on */
static pthread_mutex_t room_mutex = PTHREAD_MUTEX_INITIALIZER;

static atomic_int caller_count; /* that multiply now */

static void room_unmap(int mib)
{
    room_mib -= mib;
    if (mib > 0)
        munmap(room_begin + ((size_t)room_mib << 20), (size_t)mib << 20);
}

/* Now there will be so many. */
static void room_give(room *of, int count)
{
    if (count <= atomic_load(&of->given))
        return;
    pthread_mutex_lock(&room_mutex);
    int const more = count - atomic_load(&of->given);
    if (more > 0) {
        room_unmap(more * of->mib < room_mib ? more * of->mib : room_mib);
        atomic_store(&of->given, count);
    }
    pthread_mutex_unlock(&room_mutex);
}

/* Make the room larger; the smaller one stays where that is refused. */
static bool room_grow(int mib)
{
    void *const begin =
        room_mib > 0 ? mremap(room_begin, (size_t)room_mib << 20, (size_t)mib << 20, MREMAP_MAYMOVE)
                     : map(mib);
    if (begin == MAP_FAILED)
        return false;
    room_begin = begin;
    room_mib = mib;
    return true;
}

static int more_than(const room *of, int count)
{
    return count > of->wanted ? count - of->wanted : 0;
}

bool ra_blas_reserve(int callers, int helpers)
{
    pthread_mutex_lock(&room_mutex);
    int const more_callers = more_than(&of_callers, callers);
    int const more_helpers = more_than(&of_helpers, helpers);
    int const mib = room_mib + more_callers * of_callers.mib + more_helpers * of_helpers.mib;
    bool const found = mib == room_mib || room_grow(mib);
    if (found) {
        of_callers.wanted += more_callers;
        of_helpers.wanted += more_helpers;
    }
    pthread_mutex_unlock(&room_mutex);
    return found;
}

void ra_blas_release(void)
{
    pthread_mutex_lock(&room_mutex);
    room_unmap(room_mib);
    of_callers.wanted = atomic_load(&of_callers.given);
    of_helpers.wanted = atomic_load(&of_helpers.given);
    pthread_mutex_unlock(&room_mutex);
}

/* ---- products -------------------------------------------------------------------------------- */

void ra_blas_multiply(const ra_blas_product *p)
{
    RA_ASSERT(the_blas.name[0] != '\0');
    room_give(&of_callers, atomic_fetch_add(&caller_count, 1) + 1);
    the_blas.sgemm(ROW_MAJOR, p->a_transposed ? TRANSPOSE : NO_TRANSPOSE,
                   p->b_transposed ? TRANSPOSE : NO_TRANSPOSE, p->m, p->n, p->k, p->factor, p->a,
                   p->a_stride, p->b, p->b_stride, p->keep, p->c, p->c_stride);
    atomic_fetch_sub(&caller_count, 1);
}

void ra_blas_multiply_square(int threads, int32_t n, const float *a, const float *b, float *c)
{
    RA_ASSERT(the_blas.name[0] != '\0');
    room_give(&of_helpers, threads - 1);
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
