/* In place of Criterion's beginning, for a suite that runs over the table for GPUs, on a GPU. Where
   there is none nothing passes: CTest is told that all was skipped, and a person why. */
#include "ringattn/device.h"
#include "sparse/kernel_case.h"

#include <criterion/criterion.h>
#include <stdio.h>

enum { SKIPPED = 77 };

int main(int argc, char **argv)
{
    ra_devices devices;
    ra_devices_read(&devices);
    const char *lacks = devices.usable_count == 0 ? devices.why_not : kernel_table_lacks();
    if (lacks != NULL) {
        printf("skipped: %s\n", lacks);
        return SKIPPED;
    }
    struct criterion_test_set *const tests = criterion_initialize();
    int const code = criterion_handle_args(argc, argv, true) && !criterion_run_all_tests(tests);
    criterion_finalize(tests);
    return code;
}
