/* GPUs as this machine and this build have them: the real runtime, or none. */
#include "ringattn/device.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static int lines;
static char last_line[1024];

static void note_line(void *context, ra_log_level level, const char *line)
{
    (void)context, (void)level;
    lines++;
    snprintf(last_line, sizeof(last_line), "%s", line);
}

Test(devices, without_a_gpu_there_is_one_reason_and_every_memory_gives_it)
{
    ra_devices devices;
    ra_memory memory;
    ra_log_set_handler(note_line, NULL);
    ra_devices_read(&devices);
    cr_assert_eq(lines, 0);
    if (devices.usable_count > 0)
        cr_skip_test("this machine has a GPU");
    cr_assert_gt(strlen(devices.why_not), 10);
    cr_assert_eq(ra_memory_device(0, &memory), RA_ERR_UNSUPPORTED);
    cr_assert_eq(lines, 1);
    cr_assert_not_null(strstr(last_line, devices.why_not), "%s", last_line);
    cr_assert_eq(ra_memory_pinned(&memory), RA_ERR_UNSUPPORTED);
    cr_assert_eq(lines, 2);
    cr_assert_not_null(strstr(last_line, devices.why_not), "%s", last_line);
    cr_assert_eq(ra_device_use(0), RA_ERR_UNSUPPORTED);
    cr_assert_eq(lines, 3);
    cr_assert_not_null(strstr(last_line, devices.why_not), "%s", last_line);
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
