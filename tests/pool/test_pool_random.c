/*
 * Random operations from several threads, against a model: what each thread holds by category, and
 * canaries in every unit of every block, so that no two blocks ever share one.
 * RA_TEST_OPS says how many operations in all, RA_TEST_SEED draws others. Ten million are the
 * default where no sanitizer is at work.
 */
#include "pool/pool_internal.h"
#include "support/captured_log.h"
#include "support/driver_memory.h"
#include "support/test_rng.h"

#include <criterion/criterion.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 4, SLOTS = 48, ROUNDS = 8, OPERATIONS = RA_TEST_SANITIZED ? 400000 : 10000000 };
enum { LIMIT_BYTES = 4 << 20, LARGE_BYTES = 2 << 20 };

typedef struct held {
    ra_block block;
    uint64_t canary;
} held;

/* One thread's view. `bytes` is the model of the ledger. */
typedef struct worker {
    pthread_t thread;
    test_rng rng;
    int64_t operations;
    held slots[SLOTS];
    int64_t bytes[RA_MEM_CATEGORY_COUNT];
    int64_t charged[RA_MEM_CATEGORY_COUNT];
    int64_t taken, refused, charge_refused;
    const char *wrong;
} worker;

static ra_ledger *ledger;
static ra_pool *pool;
static worker workers[THREADS];
static pthread_barrier_t barrier;
static captured_log said;

/* ---- memory that costs little: mappings would spend the time in page faults ------------------ */

static size_t heap_round(const ra_memory *memory, size_t bytes)
{
    (void)memory;
    return (bytes + 63) / 64 * 64;
}

static ra_status heap_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    (void)memory;
    *ptr_out = aligned_alloc(64, bytes);
    return *ptr_out != NULL ? RA_OK : RA_ERR_NO_MEMORY;
}

static void heap_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    (void)memory, (void)bytes;
    free(ptr);
}

static ra_status heap_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    *bytes_out = INT64_MAX;
    return RA_OK;
}

/* The C library keeps what is freed, whatever its size, and gives nothing back to the system. */
static ra_memory heap_memory_make(void)
{
    static const ra_memory_ops ops = {.name = "heap",
                                      .round = heap_round,
                                      .alloc = heap_alloc,
                                      .free = heap_free,
                                      .available = heap_available};
    (void)mallopt(M_MMAP_THRESHOLD, 16 << 20);
    (void)mallopt(M_TRIM_THRESHOLD, INT32_MAX);
    return (ra_memory){.ops = &ops};
}

/* ---- what threads do ------------------------------------------------------------------------- */

/* As many of each power of two, seldom large, now and then exactly one that was seen before. */
static size_t draw_bytes(worker *w)
{
    uint64_t const kind = test_rng_next(&w->rng) % 256;
    if (kind == 0)
        return LARGE_BYTES / 2 + test_rng_next(&w->rng) % LARGE_BYTES;
    if (kind < 64)
        return (size_t)64 << (test_rng_next(&w->rng) % 12);
    return 1 + (size_t)(test_rng_next(&w->rng) % ((uint64_t)64 << (test_rng_next(&w->rng) % 12)));
}

static ra_category draw_category(worker *w)
{
    ra_category const category = (ra_category)(test_rng_next(&w->rng) % RA_MEM_CATEGORY_COUNT);
    return category == RA_MEM_POOL_IDLE ? RA_MEM_QKV : category;
}

/* A block begins at a unit, so wherever two meet both have written to the start of one. */
static void canary_write(const held *h)
{
    char *const data = h->block.data;
    for (size_t at = 0; at + sizeof(h->canary) <= h->block.bytes; at += RA_POOL_UNIT_BYTES)
        memcpy(data + at, &h->canary, sizeof(h->canary));
    data[h->block.bytes - 1] = (char)h->canary;
}

static bool canary_stands(const held *h)
{
    const char *const data = h->block.data;
    if (data[h->block.bytes - 1] != (char)h->canary)
        return false;
    for (size_t at = 0; at + sizeof(h->canary) < h->block.bytes; at += RA_POOL_UNIT_BYTES)
        if (memcmp(data + at, &h->canary, sizeof(h->canary)) != 0)
            return false;
    return true;
}

static void give(worker *w, held *h)
{
    if (!canary_stands(h))
        w->wrong = "somebody else wrote to a block";
    w->bytes[h->block.category] -= (int64_t)h->block.reserved_bytes;
    ra_pool_free(pool, NULL, &h->block);
    if (h->block.data != NULL || h->block.reserved_bytes != 0)
        w->wrong = "a block that was given back is not empty";
}

static void take(worker *w, held *h)
{
    size_t const bytes = draw_bytes(w);
    ra_category const category = draw_category(w);
    if (ra_pool_alloc(pool, category, bytes, NULL, &h->block) != RA_OK) {
        w->refused++;
        if (h->block.data != NULL)
            w->wrong = "a refused block is not empty";
        return;
    }
    w->taken++;
    if (h->block.bytes != bytes || h->block.reserved_bytes < bytes ||
        h->block.category != category || (uintptr_t)h->block.data % 64 != 0)
        w->wrong = "a block is not what was asked for";
    w->bytes[category] += (int64_t)h->block.reserved_bytes;
    h->canary = test_rng_next(&w->rng);
    canary_write(h);
}

static void charge_or_release(worker *w)
{
    ra_category const category = draw_category(w);
    int64_t *const charged = &w->charged[category];
    if (*charged > 0) {
        ra_pool_release(pool, category, *charged);
        *charged = 0;
        return;
    }
    int64_t const bytes = (int64_t)draw_bytes(w);
    if (ra_pool_charge(pool, category, bytes) == RA_OK)
        *charged = bytes;
    else
        w->charge_refused++;
}

static void look(worker *w)
{
    ra_ledger_snapshot now;
    int64_t sum = 0, available;
    ra_ledger_read(ledger, &now);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        sum += now.current_bytes[i];
    if (sum != now.reserved_bytes || now.reserved_bytes > now.reserved_peak_bytes)
        w->wrong = "categories do not sum to what is reserved";
    if (now.reserved_peak_bytes > LIMIT_BYTES)
        w->wrong = "the limit was passed";
    if (ra_pool_available(pool, &available) != RA_OK || available < 0)
        w->wrong = "less than nothing is available";
}

static void operate(worker *w)
{
    held *const h = &w->slots[test_rng_next(&w->rng) % SLOTS];
    uint64_t const kind = test_rng_next(&w->rng) % 256;
    if (kind == 0)
        (void)ra_pool_trim(pool, (int64_t)(test_rng_next(&w->rng) % LARGE_BYTES));
    else if (kind == 1)
        charge_or_release(w);
    else if (kind == 2)
        look(w);
    else if (h->block.data != NULL)
        give(w, h);
    else
        take(w, h);
}

/* Everything stands still: the ledger must hold exactly what the threads do. */
static const char *compare(void)
{
    ra_ledger_snapshot now;
    ra_pool_stats stats;
    int64_t blocks = 0, out = 0, taken = 0, refused = 0, refusals = 0;
    ra_ledger_read(ledger, &now);
    ra_pool_read_stats(pool, &stats);
    for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++) {
        int64_t bytes = 0;
        for (int t = 0; t < THREADS; t++) {
            bytes += workers[t].bytes[c] + workers[t].charged[c];
            blocks += workers[t].bytes[c];
        }
        if (c != RA_MEM_POOL_IDLE && now.current_bytes[c] != bytes)
            return "the ledger and the model differ";
    }
    for (int t = 0; t < THREADS; t++) {
        taken += workers[t].taken;
        refused += workers[t].refused;
        refusals += workers[t].refused + workers[t].charge_refused;
        for (int i = 0; i < SLOTS; i++)
            out += workers[t].slots[i].block.data != NULL;
    }
    if (stats.bytes[RA_POOL_ALLOCATED].current != blocks ||
        stats.count[RA_POOL_ALLOCATED].current != out ||
        stats.count[RA_POOL_ALLOCATED].allocated != taken)
        return "the statistics and the model differ";
    if (stats.hits + stats.misses != taken || stats.ooms != refused)
        return "hits, misses and refusals do not sum to requests";
    if (said.count != refusals)
        return "not one line for each refusal";
    if (stats.bytes[RA_POOL_RESERVED].current - blocks != now.current_bytes[RA_MEM_POOL_IDLE])
        return "idle bytes are not what is reserved and not allocated";
    return NULL;
}

static void *work(void *context)
{
    worker *const w = context;
    for (int round = 0; round < ROUNDS; round++) {
        for (int64_t i = 0; i < w->operations / ROUNDS && w->wrong == NULL; i++)
            operate(w);
        int const first = pthread_barrier_wait(&barrier);
        if (first == PTHREAD_BARRIER_SERIAL_THREAD && w->wrong == NULL)
            w->wrong = compare();
        pthread_barrier_wait(&barrier);
    }
    for (int i = 0; i < SLOTS; i++)
        if (w->slots[i].block.data != NULL)
            give(w, &w->slots[i]);
    for (int c = 0; c < RA_MEM_CATEGORY_COUNT; c++)
        if (w->charged[c] > 0)
            ra_pool_release(pool, (ra_category)c, w->charged[c]);
    return NULL;
}

static int64_t given(const char *name, int64_t usual)
{
    const char *text = getenv(name);
    return text != NULL ? strtoll(text, NULL, 10) : usual;
}

/* `share` of a hundred operations. */
static void run_all(ra_pool_mode mode, ra_memory memory, int64_t trim_bytes, int64_t share)
{
    int64_t const operations = given("RA_TEST_OPS", OPERATIONS);
    ra_pool_config config = {.mode = mode, .memory = memory, .trim_bytes = trim_bytes};
    captured_log_begin(&said);
    cr_assert_eq(ra_ledger_create(LIMIT_BYTES, &ledger), RA_OK);
    config.ledger = ledger;
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_assert_eq(pthread_barrier_init(&barrier, NULL, THREADS), 0);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.rng = {(uint64_t)given("RA_TEST_SEED", 1) * 1000 + (uint64_t)t},
                              .operations = operations * share / 100 / THREADS};
        cr_assert_eq(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        cr_assert_eq(pthread_join(workers[t].thread, NULL), 0);
    int64_t refused = 0;
    for (int t = 0; t < THREADS; t++) {
        cr_assert_null(workers[t].wrong, "thread %d: %s", t, workers[t].wrong);
        refused += workers[t].refused;
    }
    cr_assert_gt(refused, 0, "the limit was never met: it should be");
    ra_ledger_snapshot last;
    ra_ledger_read(ledger, &last);
    if (mode == RA_POOL_SIZE_CLASS && trim_bytes > 0)
        cr_assert_leq(last.peak_bytes[RA_MEM_POOL_IDLE], trim_bytes, "the bound was passed");
    (void)ra_pool_trim(pool, 0);
    ra_ledger_read(ledger, &last);
    cr_assert_eq(last.reserved_bytes, 0);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    pthread_barrier_destroy(&barrier);
}

/* Large blocks of the host are mappings of their own: what was returned faults when it is used. */
Test(pool_random, off_agrees_with_a_model)
{
    run_all(RA_POOL_OFF, ra_memory_host(), 0, 4);
}

Test(pool_random, size_class_of_the_host_agrees_with_a_model)
{
    run_all(RA_POOL_SIZE_CLASS, ra_memory_host(), 0, 4);
}

Test(pool_random, size_class_agrees_with_a_model)
{
    run_all(RA_POOL_SIZE_CLASS, heap_memory_make(), 0, 48);
}

Test(pool_random, size_class_that_keeps_more_agrees_with_a_model)
{
    run_all(RA_POOL_SIZE_CLASS, heap_memory_make(), 3 << 20, 24);
}

Test(pool_random, size_class_that_keeps_little_agrees_with_a_model)
{
    run_all(RA_POOL_SIZE_CLASS, heap_memory_make(), 100000, 10);
}

Test(pool_random, driver_agrees_with_a_model)
{
    driver_memory driver;
    run_all(RA_POOL_DRIVER, driver_memory_make(&driver), 0, 5);
}

Test(pool_random, driver_that_keeps_more_agrees_with_a_model)
{
    driver_memory driver;
    run_all(RA_POOL_DRIVER, driver_memory_make(&driver), 3 << 20, 5);
}
