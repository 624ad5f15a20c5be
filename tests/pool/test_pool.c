#include "ringattn/pool.h"
#include "support/captured_log.h"
#include "support/refusing_memory.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

static ra_ledger *ledger;
static ra_pool *pool;

static ra_pool_mode mode; /* of the test at hand */

static void open_pool(int64_t limit_bytes, ra_memory memory)
{
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {.mode = mode, .memory = memory, .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
}

static void close_pool(void)
{
    ra_ledger_snapshot now;
    (void)ra_pool_trim(pool, 0);
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.reserved_bytes, 0);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

static int64_t allocated_bytes(void)
{
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    return now.reserved_bytes - now.current_bytes[RA_MEM_POOL_IDLE];
}

/* The contract, held by every mode. */
#define CONTRACT(name)                                                                             \
    static void name(void);                                                                        \
    Test(pool_off, name)                                                                           \
    {                                                                                              \
        mode = RA_POOL_OFF;                                                                        \
        name();                                                                                    \
    }                                                                                              \
    Test(pool_size_class, name)                                                                    \
    {                                                                                              \
        mode = RA_POOL_SIZE_CLASS;                                                                 \
        name();                                                                                    \
    }                                                                                              \
    static void name(void)

CONTRACT(gives_aligned_blocks_of_any_size)
{
    static const size_t sizes[] = {1,     63,    64,    65,    4095,    4096,         65472,
                                   65473, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1};
    open_pool(INT64_MAX, ra_memory_host());
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            ra_block block;
            cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, sizes[i], NULL, &block), RA_OK);
            cr_assert_eq(block.bytes, sizes[i]);
            cr_assert_geq(block.reserved_bytes, sizes[i]);
            cr_assert_eq(ra_pool_round(pool, sizes[i]), block.reserved_bytes);
            cr_assert_eq(block.category, RA_MEM_IO);
            cr_assert_eq((uintptr_t)block.data % 64, 0);
            cr_assert_eq(allocated_bytes(), (int64_t)block.reserved_bytes);
            memset(block.data, 0xA5, block.bytes);
            ra_pool_free(pool, NULL, &block);
            cr_assert_null(block.data);
            cr_assert_eq(allocated_bytes(), 0);
        }
    }
    close_pool();
}

CONTRACT(takes_nothing_for_an_empty_block)
{
    ra_block block = {.bytes = 7};
    ra_ledger_snapshot now;
    refusing_memory memory = {.inner = ra_memory_host(), .countdown = 0};
    open_pool(1, ra_memory_refusing(&memory));
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_LSE, 0, NULL, &block), RA_OK);
    cr_assert_null(block.data);
    cr_assert_eq(block.bytes, 0);
    cr_assert_eq(ra_pool_round(pool, 0), 0);
    ra_pool_free(pool, NULL, &block);
    ra_pool_free(pool, NULL, &block); /* empty by now */
    ra_ledger_read(ledger, &now);
    cr_assert_not(memory.refused);
    cr_assert_eq(now.alloc_count[RA_MEM_LSE], 0);
    close_pool();
}

/* Three blocks, or none: what a failed request leaves behind is nothing. */
static ra_status take_three(ra_block *blocks)
{
    static const size_t sizes[3] = {1000, 100000, 300000};
    static const ra_category categories[3] = {RA_MEM_QKV, RA_MEM_OUTPUT, RA_MEM_WORKSPACE};
    for (int i = 0; i < 3; i++) {
        ra_status const status = ra_pool_alloc(pool, categories[i], sizes[i], NULL, &blocks[i]);
        if (status != RA_OK) {
            cr_assert_null(blocks[i].data);
            cr_assert_eq(blocks[i].bytes, 0);
            for (int j = 0; j < i; j++)
                ra_pool_free(pool, NULL, &blocks[j]);
            return status;
        }
    }
    return RA_OK;
}

CONTRACT(counts_nothing_for_a_request_that_the_machine_refuses)
{
    ra_status status = RA_ERR_NO_MEMORY;
    for (int fail_at = 0; status != RA_OK; fail_at++) {
        refusing_memory memory = {.inner = ra_memory_host(), .countdown = fail_at};
        captured_log log;
        ra_block blocks[3];
        ra_ledger_snapshot now;
        cr_assert_leq(fail_at, 3);
        captured_log_begin(&log);
        open_pool(INT64_MAX, ra_memory_refusing(&memory));
        status = take_three(blocks);
        ra_ledger_read(ledger, &now);
        cr_assert_eq(now.reserved_bytes, memory.out_bytes);
        cr_assert_eq(now.alloc_count[RA_MEM_WORKSPACE], status == RA_OK);
        cr_assert_eq(now.peak_bytes[RA_MEM_WORKSPACE] > 0, status == RA_OK);
        cr_assert_eq(log.count, status != RA_OK);
        if (status == RA_OK)
            for (int i = 0; i < 3; i++)
                ra_pool_free(pool, NULL, &blocks[i]);
        else
            cr_assert(strstr(log.line, "the machine refused") != NULL, "%s", log.line);
        close_pool();
        cr_assert_eq(memory.out_bytes, 0);
    }
}

CONTRACT(asks_the_machine_for_nothing_beyond_the_limit)
{
    refusing_memory memory = {.inner = ra_memory_host(), .countdown = 0};
    captured_log log;
    ra_block block;
    captured_log_begin(&log);
    open_pool(4096, ra_memory_refusing(&memory));
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 4097, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_not(memory.refused);
    cr_assert_eq(log.count, 1);
    memory.countdown = -1;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 4096, NULL, &block), RA_OK);
    ra_pool_free(pool, NULL, &block);
    close_pool();
}

CONTRACT(counts_memory_from_elsewhere_towards_the_same_limit)
{
    captured_log log;
    ra_ledger_snapshot now;
    ra_block block;
    captured_log_begin(&log);
    open_pool(8192, ra_memory_host());
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_QKV, 4097), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 4096, NULL, &block), RA_ERR_NO_MEMORY);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_QKV, 4096), RA_ERR_NO_MEMORY);
    cr_assert_eq(log.count, 2);
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.current_bytes[RA_MEM_QKV], 4097);
    ra_pool_release(pool, RA_MEM_QKV, 4097);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 8192, NULL, &block), RA_OK);
    ra_pool_free(pool, NULL, &block);
    close_pool();
}

CONTRACT(refuses_sizes_that_no_machine_has)
{
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2, SIZE_MAX / 4 + 2, (size_t)1 << 62};
    captured_log log;
    captured_log_begin(&log);
    open_pool(INT64_MAX, ra_memory_host());
    for (int i = 0; i < 4; i++) {
        ra_block block;
        cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, sizes[i], NULL, &block), RA_ERR_NO_MEMORY);
        cr_assert_null(block.data);
        cr_assert_eq(log.count, i + 1);
    }
    cr_expect_not_null(strstr(log.line, "(4611686018427387904 bytes)"), "%s", log.line);
    close_pool();
}

CONTRACT(has_available_what_limit_and_machine_both_leave)
{
    refusing_memory memory = {.inner = ra_memory_host(), .countdown = -1, .room_bytes = 5000};
    int64_t bytes;
    ra_block block;
    open_pool(8192, ra_memory_refusing(&memory));
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 5000);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 4096, NULL, &block), RA_OK);
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_assert_eq(bytes, 4096);
    ra_pool_free(pool, NULL, &block);
    cr_assert_eq(ra_pool_ledger(pool), ledger);
    close_pool();
}

static void *take_and_give(void *context)
{
    atomic_int *const failures = context;
    for (int i = 0; i < 500; i++) {
        ra_block small, large;
        if (ra_pool_alloc(pool, RA_MEM_IO, 100 + (size_t)i, NULL, &small) != RA_OK ||
            ra_pool_alloc(pool, RA_MEM_STATE, 70000, NULL, &large) != RA_OK) {
            atomic_fetch_add(failures, 1);
            return NULL;
        }
        ((char *)large.data)[0] = 1;
        ra_pool_free(pool, NULL, &large);
        ra_pool_free(pool, NULL, &small);
    }
    return NULL;
}

CONTRACT(serves_several_threads_at_once)
{
    pthread_t threads[4];
    atomic_int failures = 0;
    ra_ledger_snapshot now;
    open_pool(INT64_MAX, ra_memory_host());
    for (int t = 0; t < 4; t++)
        cr_assert_eq(pthread_create(&threads[t], NULL, take_and_give, &failures), 0);
    for (int t = 0; t < 4; t++)
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
    cr_assert_eq(atomic_load(&failures), 0);
    ra_ledger_read(ledger, &now);
    cr_assert_eq(now.alloc_count[RA_MEM_IO], 2000);
    cr_assert_eq(now.alloc_count[RA_MEM_STATE], 2000);
    close_pool();
}

Test(pool, stops_a_caller_who_destroys_it_under_a_block, .signal = SIGABRT)
{
    ra_block block;
    open_pool(INT64_MAX, ra_memory_host());
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_IO, 100000, NULL, &block), RA_OK);
    ra_pool_destroy(pool);
}

Test(pool_driver, is_refused_where_memory_has_no_driver)
{
    captured_log log;
    pool = NULL;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_DRIVER, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_ERR_UNSUPPORTED);
    cr_assert_null(pool);
    cr_assert_eq(log.count, 1);
    cr_assert(strstr(log.line, "host memory has none") != NULL, "%s", log.line);
    ra_ledger_destroy(ledger);
}
