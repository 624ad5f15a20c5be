/* The pool of a device's driver, over a driver made here that grows by units, keeps what its stream
   still uses, and fails when told to: what is counted is what it holds. */
#include "pool/pool_internal.h"
#include "support/captured_log.h"
#include "support/driver_memory.h"

#include <criterion/criterion.h>
#include <string.h>

enum { UNIT = DRIVER_MEMORY_UNIT_BYTES };

static driver_memory driver;
static ra_memory memory;
static ra_ledger *ledger;
static ra_pool *pool;
static captured_log said;

static void open_pool(int64_t limit_bytes, int64_t trim_bytes)
{
    captured_log_begin(&said);
    memory = driver_memory_make(&driver);
    cr_assert_eq(ra_ledger_create(limit_bytes, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_DRIVER, .memory = memory, .ledger = ledger, .trim_bytes = trim_bytes};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
}

static void close_pool(void)
{
    ra_ledger_snapshot now;
    driver.stream_is_over = true;
    ra_pool_destroy(pool);
    ra_ledger_read(ledger, &now);
    cr_expect_eq(now.reserved_bytes, 0);
    ra_ledger_destroy(ledger);
    cr_expect_eq(driver.pools, 0);
    cr_expect_eq(driver.used_bytes, 0);
}

/* What must hold at any time: categories add up to what the driver holds. */
static void expect_counted(int64_t in_use)
{
    ra_ledger_snapshot now;
    ra_pool_stats stats;
    int64_t sum = 0;
    ra_ledger_read(ledger, &now);
    ra_pool_read_stats(pool, &stats);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        sum += now.current_bytes[i];
    cr_expect_eq(sum, now.reserved_bytes);
    cr_expect_eq(now.reserved_bytes, driver.held_bytes);
    cr_expect_eq(now.reserved_bytes - now.current_bytes[RA_MEM_POOL_IDLE], in_use);
    cr_expect_eq(stats.bytes[RA_POOL_RESERVED].current, driver.held_bytes);
    cr_expect_eq(stats.bytes[RA_POOL_ALLOCATED].current, in_use);
}

static ra_block take(ra_category category, size_t bytes)
{
    ra_block block;
    cr_assert_eq(ra_pool_alloc(pool, category, bytes, NULL, &block), RA_OK, "%s", said.line);
    return block;
}

static void refuse(size_t bytes, const char *who)
{
    ra_block block;
    int const before = said.errors;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, bytes, NULL, &block), RA_ERR_NO_MEMORY);
    cr_expect_eq(block.reserved_bytes, 0);
    cr_expect_eq(said.errors, before + 1);
    cr_expect_not_null(strstr(said.line, who), "%s", said.line);
}

Test(pool_driver, counts_what_the_driver_holds_and_says_what_is_idle)
{
    open_pool(INT64_MAX, 0);
    ra_block a = take(RA_MEM_QKV, 1000), b = take(RA_MEM_GRADS, UNIT);
    cr_expect_eq(a.reserved_bytes, 1024);
    cr_expect_eq(ra_pool_round(pool, 1000), 1024);
    cr_expect_eq(driver.held_bytes, 2 * UNIT);
    expect_counted(1024 + UNIT);
    ra_pool_free(pool, NULL, &a);
    expect_counted(UNIT);
    ra_pool_free(pool, NULL, &b);
    expect_counted(0);
    cr_expect_eq(driver.held_bytes, 2 * UNIT, "what is freed is kept");
    close_pool();
}

Test(pool_driver, serves_from_what_is_idle_and_counts_hits)
{
    ra_pool_stats stats;
    open_pool(INT64_MAX, 0);
    for (int i = 0; i < 5; i++) {
        ra_block block = take(RA_MEM_WORKSPACE, 3 * UNIT);
        ra_pool_free(pool, NULL, &block);
    }
    ra_pool_read_stats(pool, &stats);
    cr_expect_eq(stats.misses, 1);
    cr_expect_eq(stats.hits, 4);
    cr_expect_eq(stats.count[RA_POOL_ALLOCATED].allocated, 5);
    cr_expect_eq(stats.bytes[RA_POOL_RESERVED].peak, 3 * UNIT);
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++)
        cr_expect_eq(now.alloc_count[i], i == RA_MEM_WORKSPACE ? 5 : 0, "%s: %lld",
                     ra_category_name((ra_category)i), (long long)now.alloc_count[i]);
    close_pool();
}

Test(pool_driver, trims_to_what_it_is_told_and_no_further_than_streams_permit)
{
    open_pool(INT64_MAX, INT64_MAX);
    ra_block a = take(RA_MEM_QKV, 4 * UNIT), b = take(RA_MEM_QKV, 2 * UNIT);
    driver.stream_is_over = false;
    ra_pool_free(pool, NULL, &a);
    cr_expect_eq(ra_pool_trim(pool, 0), 0, "its stream still works on it");
    expect_counted(2 * UNIT);
    driver.stream_is_over = true;
    cr_expect_eq(ra_pool_trim(pool, 3 * UNIT), UNIT);
    cr_expect_eq(ra_pool_trim(pool, 0), 3 * UNIT);
    cr_expect_eq(ra_pool_trim(pool, 0), 0);
    expect_counted(2 * UNIT);
    ra_pool_free(pool, NULL, &b);
    close_pool();
}

/* As with size classes: keeping costs no length. */
Test(pool_driver, automatic_trim_never_holds_more_than_was_in_use_at_the_most)
{
    open_pool(INT64_MAX, 0);
    ra_block a = take(RA_MEM_QKV, 4 * UNIT), b;
    driver.fragmented = true; /* idle bytes serve nothing, as where they lie in pieces */
    ra_pool_free(pool, NULL, &a);
    b = take(RA_MEM_GRADS, 6 * UNIT);
    expect_counted(6 * UNIT);
    ra_ledger_snapshot now;
    ra_ledger_read(ledger, &now);
    cr_expect_eq(now.reserved_peak_bytes, 6 * UNIT);
    ra_pool_free(pool, NULL, &b);
    close_pool();
}

/* Idle bytes give way as if these had been taken here. */
Test(pool_driver, automatic_trim_counts_what_is_charged_from_elsewhere)
{
    open_pool(INT64_MAX, 0);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 4 * UNIT), RA_OK);
    ra_block a = take(RA_MEM_QKV, 4 * UNIT), b;
    driver.fragmented = true;
    ra_pool_free(pool, NULL, &a);
    b = take(RA_MEM_GRADS, 5 * UNIT);
    cr_expect_eq(driver.held_bytes, 5 * UNIT, "nothing idle beside the highest use");
    ra_pool_free(pool, NULL, &b);
    b = take(RA_MEM_GRADS, 2 * UNIT);
    cr_expect_eq(driver.held_bytes, 5 * UNIT, "as much as the highest use was");
    ra_pool_free(pool, NULL, &b);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 2 * UNIT), RA_OK);
    cr_expect_eq(driver.held_bytes, 3 * UNIT, "it has given way");
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 6 * UNIT);
    close_pool();
}

/* Idle bytes beyond the highest use, which a stream held on to, go with the next request. */
Test(pool_driver, a_request_that_leaves_the_driver_smaller_is_counted)
{
    open_pool(16 * UNIT, 0);
    ra_block a = take(RA_MEM_QKV, 6 * UNIT);
    driver.stream_is_over = false;
    ra_pool_free(pool, NULL, &a);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 4 * UNIT), RA_OK);
    cr_expect_eq(driver.held_bytes, 6 * UNIT);
    driver.stream_is_over = true;
    a = take(RA_MEM_QKV, UNIT);
    cr_expect_eq(driver.held_bytes, 2 * UNIT);
    cr_expect_eq(ra_ledger_headroom(ledger), 10 * UNIT);
    ra_pool_free(pool, NULL, &a);
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 4 * UNIT);
    expect_counted(0);
    close_pool();
}

/* What is in use it must have. */
Test(pool_driver, a_driver_that_says_too_little_is_not_believed)
{
    ra_ledger_snapshot now;
    open_pool(INT64_MAX, INT64_MAX);
    ra_block a = take(RA_MEM_QKV, 2 * UNIT), b = take(RA_MEM_QKV, UNIT);
    ra_pool_free(pool, NULL, &b);
    driver.held_bytes = UNIT;
    (void)ra_pool_trim(pool, 0);
    ra_ledger_read(ledger, &now);
    cr_expect_eq(now.reserved_bytes, 2 * UNIT);
    cr_expect_eq(now.current_bytes[RA_MEM_POOL_IDLE], 0);
    driver.held_bytes = 2 * UNIT;
    ra_pool_free(pool, NULL, &a);
    close_pool();
}

Test(pool_driver, a_bound_on_idle_bytes_is_kept)
{
    open_pool(INT64_MAX, 2 * UNIT);
    ra_block a = take(RA_MEM_QKV, 3 * UNIT), b = take(RA_MEM_QKV, UNIT);
    ra_pool_free(pool, NULL, &a);
    expect_counted(UNIT);
    cr_expect_eq(driver.held_bytes, 3 * UNIT);
    ra_pool_free(pool, NULL, &b);
    close_pool();
}

Test(pool_driver, the_limit_refuses_and_idle_bytes_give_way_to_it)
{
    open_pool(8 * UNIT, INT64_MAX);
    ra_block a = take(RA_MEM_QKV, 5 * UNIT);
    refuse(4 * UNIT, "the memory limit");
    expect_counted(5 * UNIT);
    driver.fragmented = true;
    ra_pool_free(pool, NULL, &a);
    a = take(RA_MEM_QKV, 6 * UNIT);
    expect_counted(6 * UNIT);
    ra_pool_stats stats;
    ra_pool_read_stats(pool, &stats);
    cr_expect_eq(stats.retries, 1);
    cr_expect_eq(stats.ooms, 1);
    cr_expect_eq(ra_pool_charge(pool, RA_MEM_CONTEXT, UNIT), RA_OK);
    cr_expect_eq(ra_pool_charge(pool, RA_MEM_CONTEXT, 2 * UNIT), RA_ERR_NO_MEMORY);
    ra_pool_release(pool, RA_MEM_CONTEXT, UNIT);
    ra_pool_free(pool, NULL, &a);
    close_pool();
}

Test(pool_driver, what_is_charged_from_elsewhere_has_idle_bytes_returned)
{
    open_pool(8 * UNIT, INT64_MAX);
    ra_block a = take(RA_MEM_QKV, 6 * UNIT);
    ra_pool_free(pool, NULL, &a);
    cr_assert_eq(ra_pool_charge(pool, RA_MEM_COMM_BUFFER, 5 * UNIT), RA_OK);
    cr_expect_eq(driver.held_bytes, 3 * UNIT, "no more than that had to go");
    int64_t bytes;
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_expect_eq(bytes, 3 * UNIT, "idle bytes can be asked for");
    ra_pool_release(pool, RA_MEM_COMM_BUFFER, 5 * UNIT);
    close_pool();
}

/* Nobody knows by how much a driver grows before it has: what passes the limit then is counted as
   long as it is there, and the request is refused. */
Test(pool_driver, growth_past_the_limit_is_given_back_and_counted_until_it_is)
{
    open_pool(UNIT + UNIT / 2, 0);
    ra_block a = take(RA_MEM_QKV, UNIT), b;
    refuse(UNIT / 4, "the memory limit");
    expect_counted(UNIT);
    cr_expect_eq(driver.held_bytes, UNIT);
    driver.stream_is_over = false;
    refuse(UNIT / 4, "the memory limit");
    expect_counted(UNIT);
    cr_expect_eq(driver.held_bytes, 2 * UNIT, "its stream holds it");
    refuse(UNIT / 8, "the memory limit");
    int64_t bytes;
    cr_assert_eq(ra_pool_available(pool, &bytes), RA_OK);
    cr_expect_eq(bytes, UNIT, "the idle unit, and no negative number of bytes");
    driver.stream_is_over = true;
    ra_pool_free(pool, NULL, &a);
    b = take(RA_MEM_QKV, UNIT);
    expect_counted(UNIT);
    ra_pool_free(pool, NULL, &b);
    close_pool();
}

/* Whatever fails, blocks are either the holder's or back, and the ledger agrees afterwards. */
Test(pool_driver, a_failure_of_any_call_leaves_blocks_and_counts_whole)
{
    static const ra_status causes[] = {RA_ERR_NO_MEMORY, RA_ERR_CUDA};
    for (size_t c = 0; c < 2; c++) {
        bool done = false;
        for (int64_t call = 1; !done; call++) {
            ra_block blocks[4] = {{0}};
            bool fine = true;
            cr_assert_lt(call, 100);
            open_pool(5 * UNIT, UNIT);
            driver.fail_call = driver.calls + call;
            driver.fail_status = causes[c];
            for (int i = 0; i < 4 && fine; i++) {
                ra_status const status =
                    ra_pool_alloc(pool, RA_MEM_QKV, (size_t)(i + 1) * UNIT / 2, NULL, &blocks[i]);
                fine = status == RA_OK;
                cr_expect(fine || status == causes[c] || status == RA_ERR_CUDA);
                cr_expect(fine == (blocks[i].data != NULL));
            }
            done = driver.calls < driver.fail_call;
            driver.fail_call = 0;
            for (int i = 0; i < 4; i++)
                ra_pool_free(pool, NULL, &blocks[i]);
            (void)ra_pool_trim(pool, 0);
            expect_counted(0);
            close_pool();
        }
    }
}

Test(pool_driver, that_cannot_be_made_says_why_once)
{
    ra_pool_config config = {.mode = RA_POOL_DRIVER};
    open_pool(INT64_MAX, 0);
    config.ledger = ledger;
    config.memory = memory;
    driver.fail_call = driver.calls + 1;
    driver.fail_status = RA_ERR_CUDA;
    ra_pool *other = NULL;
    cr_assert_eq(ra_pool_create(&config, &other), RA_ERR_CUDA);
    cr_assert_null(other);
    close_pool();
}
