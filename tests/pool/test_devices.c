/* GPUs as this machine and this build have them: the real runtime, or none. */
#include "ringattn/device.h"
#include "support/captured_log.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static captured_log said;

Test(devices, without_a_gpu_there_is_one_reason_and_every_memory_gives_it)
{
    ra_devices devices;
    ra_memory memory;
    captured_log_begin(&said);
    ra_devices_read(&devices);
    cr_assert_eq(said.count, 0);
    if (devices.usable_count > 0)
        cr_skip_test("this machine has a GPU");
    cr_assert_gt(strlen(devices.why_not), 10);
    cr_assert_eq(ra_memory_device(0, &memory), RA_ERR_UNSUPPORTED);
    cr_assert_eq(said.count, 1);
    cr_assert_not_null(strstr(said.line, devices.why_not), "%s", said.line);
    cr_assert_eq(ra_memory_pinned(&memory), RA_ERR_UNSUPPORTED);
    cr_assert_eq(said.count, 2);
    cr_assert_not_null(strstr(said.line, devices.why_not), "%s", said.line);
    cr_assert_eq(ra_device_use(0), RA_ERR_UNSUPPORTED);
    cr_assert_eq(said.count, 3);
    cr_assert_not_null(strstr(said.line, devices.why_not), "%s", said.line);
    cr_assert_eq(ra_device_used(), 0);
}

/* Only where there is one: the stand-in cannot tell what a driver really does. */
Test(devices, memory_of_a_gpu_is_what_the_driver_says_is_taken)
{
    ra_devices devices;
    ra_memory memory;
    void *data;
    int64_t before, after;
    ra_devices_read(&devices);
    if (devices.usable_count == 0)
        cr_skip_test("%s", devices.why_not);
    cr_assert_eq(ra_memory_device(0, &memory), RA_OK);
    cr_assert_eq(memory.ops->available(&memory, &before), RA_OK);
    cr_assert_eq(memory.ops->alloc(&memory, 64 << 20, &data), RA_OK);
    cr_assert_eq(memory.ops->available(&memory, &after), RA_OK);
    cr_assert_geq(before - after, 64 << 20);
    memory.ops->free(&memory, data, 64 << 20);
}

/* That it grows by units, holds what it says, and gives it back is the driver's word elsewhere. */
Test(devices, the_pool_of_a_gpus_driver_is_what_the_device_lacks)
{
    ra_devices devices;
    ra_memory memory;
    ra_ledger *ledger;
    ra_ledger_snapshot now;
    ra_pool *pool;
    ra_block block;
    void *other;
    size_t bytes;
    int64_t before, held, after;
    ra_devices_read(&devices);
    if (devices.usable_count == 0)
        cr_skip_test("%s", devices.why_not);
    cr_assert_eq(ra_memory_device(0, &memory), RA_OK);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    cr_assert_eq(
        ra_pool_create(
            &(ra_pool_config){.mode = RA_POOL_DRIVER, .memory = memory, .ledger = ledger}, &pool),
        RA_OK);
    bytes = memory.ops->round(&memory, 1);
    cr_assert_eq(memory.ops->alloc(&memory, bytes, &other), RA_OK);
    cr_assert_eq(memory.ops->available(&memory, &before), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 100 << 20, NULL, &block), RA_OK);
    cr_assert_eq(memory.ops->available(&memory, &held), RA_OK);
    ra_ledger_read(ledger, &now);
    cr_expect_geq(now.reserved_bytes, 100 << 20);
    cr_expect_geq(before - held, now.reserved_bytes);
    /* Nothing waits but a copy, which comes after all that was enqueued. It is to memory that is
       not the pool's: how large the units are that a driver gives back is its own affair, but of a
       pool without blocks none is in use. */
    char byte = 0;
    ra_pool_free(pool, NULL, &block);
    cr_assert_eq(ra_memory_write(&memory, NULL, other, &byte, 1), RA_OK);
    cr_expect_gt(ra_pool_trim(pool, 0), 0);
    cr_assert_eq(memory.ops->available(&memory, &after), RA_OK);
    cr_expect_gt(after, held);
    memory.ops->free(&memory, other, bytes);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}
