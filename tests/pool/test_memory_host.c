#include "pool/host_available.h"
#include "ringattn/pool.h"
#include "support/captured_log.h"
#include "support/recorded_root.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static const int64_t mib = 1 << 20;

/* A line of a file of this process's, which is in KiB; -1: there is no such file. */
static int64_t line_bytes(const char *path, const char *name)
{
    char line[256];
    long long kib = -1;
    size_t const length = strlen(name);
    FILE *const file = fopen(path, "r");
    if (file == NULL)
        return -1;
    while (kib < 0 && fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, name, length) == 0)
            cr_assert_eq(sscanf(line + length, ": %lld kB", &kib), 1);
    fclose(file);
    cr_assert_geq(kib, 0);
    return kib * 1024;
}

/* Counted page by page. What /proc/self/status says is off by what each core has still to add, and
   threads move between cores. */
static int64_t resident_bytes(void)
{
    int64_t const bytes = line_bytes("/proc/self/smaps_rollup", "Rss");
    return bytes >= 0 ? bytes : line_bytes("/proc/self/status", "VmRSS");
}

/* Of a block. */
static int64_t resident_of(void *block, size_t bytes)
{
    size_t const page = (size_t)sysconf(_SC_PAGESIZE), pages = bytes / page;
    unsigned char *const seen = calloc(pages, 1);
    int64_t count = 0;
    cr_assert_not_null(seen);
    cr_assert_eq(mincore(block, bytes, seen), 0);
    for (size_t i = 0; i < pages; i++)
        count += seen[i] & 1;
    free(seen);
    return count * (int64_t)page;
}

Test(memory_host, resident_set_follows_large_blocks_up_and_down)
{
    enum { BLOCKS = 8 };
    ra_memory const memory = ra_memory_host();
    size_t const bytes = memory.ops->round(&memory, 16 << 20);
    void *blocks[BLOCKS];
    int64_t const begin = resident_bytes();
    for (int i = 0; i < BLOCKS; i++) {
        cr_assert_eq(memory.ops->alloc(&memory, bytes, &blocks[i]), RA_OK);
        cr_assert_eq(resident_of(blocks[i], bytes), (int64_t)bytes, "untouched by us");
        cr_assert_leq(resident_bytes() - begin, (i + 1) * (int64_t)bytes + 2 * mib);
    }
    for (int i = BLOCKS; i-- > 0;) {
        memory.ops->free(&memory, blocks[i], bytes);
        cr_assert_leq(resident_bytes() - begin, i * (int64_t)bytes + 2 * mib);
    }
}

Test(memory_host, reports_what_the_system_refuses)
{
    ra_memory const memory = ra_memory_host();
    void *data = NULL;
    int64_t available = -1;
    struct rlimit before, limit;
    cr_assert_eq(getrlimit(RLIMIT_DATA, &before), 0);
    limit = before;
    /* A sanitizer may have taken more than that already. */
    limit.rlim_cur = (rlim_t)(line_bytes("/proc/self/status", "VmData") + 64 * mib);
    cr_assert_eq(setrlimit(RLIMIT_DATA, &limit), 0);
    ra_status const available_status = memory.ops->available(&memory, &available);
    ra_status const alloc_status = memory.ops->alloc(&memory, (size_t)128 << 20, &data);
    cr_assert_eq(setrlimit(RLIMIT_DATA, &before), 0); /* the test's own tools need memory too */
    cr_assert_eq(available_status, RA_OK);
    cr_assert_leq(available, 64 * mib);
    cr_assert_eq(alloc_status, RA_ERR_NO_MEMORY);
    cr_assert_null(data);
}

Test(memory_host, has_no_more_available_than_the_machine)
{
    ra_memory const memory = ra_memory_host();
    int64_t available;
    cr_assert_eq(memory.ops->available(&memory, &available), RA_OK);
    cr_assert_gt(available, 0);
    cr_assert_lt(available, sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
}

/* ---- recorded machines ------------------------------------------------------------------------
 */

static void record_machine(void)
{
    recorded_root_make();
    record("/proc/meminfo", "MemTotal:       32000000 kB\nMemFree:         1000000 kB\n"
                            "MemAvailable:   20000000 kB\n");
    record("/proc/self/status", "Name:\ttest\nVmSize:\t  1000 kB\nVmData:\t   500 kB\n");
}

static int64_t available(void)
{
    int64_t bytes = -1;
    cr_assert_eq(ra_host_available(recorded_root, &bytes), RA_OK);
    return bytes;
}

static int64_t const machine_bytes = 20000000LL * 1024;

TestSuite(available, .init = record_machine, .fini = recorded_root_remove);

Test(available, is_the_machine_s_where_no_group_limits)
{
    cr_assert_eq(available(), machine_bytes);
    cr_assert_eq(ra_host_limit(recorded_root), -1);
    record("/proc/self/cgroup", "0::/\n");
    cr_assert_eq(available(), machine_bytes);
    record("/sys/fs/cgroup/memory.max", "max\n");
    record("/sys/fs/cgroup/memory.current", "12345\n");
    cr_assert_eq(available(), machine_bytes);
    cr_assert_eq(ra_host_limit(recorded_root), -1);
}

Test(available, is_what_a_version_2_group_leaves)
{
    record("/proc/self/cgroup", "0::/user.slice/job 1.scope\n");
    record("/sys/fs/cgroup/user.slice/job 1.scope/memory.max", "1000000\n");
    record("/sys/fs/cgroup/user.slice/job 1.scope/memory.current", "400000\n");
    cr_assert_eq(available(), 600000);
    cr_assert_eq(ra_host_limit(recorded_root), 1000000);
    record("/sys/fs/cgroup/user.slice/job 1.scope/memory.stat",
           "anon 100000\nactive_file 7\ninactive_file 50000\n");
    cr_assert_eq(available(), 650000, "idle file pages are given up");
    record("/sys/fs/cgroup/user.slice/memory.max", "500000\n");
    record("/sys/fs/cgroup/user.slice/memory.current", "450000\n");
    cr_assert_eq(available(), 50000, "the group above is tighter");
    cr_assert_eq(ra_host_limit(recorded_root), 500000);
    record("/sys/fs/cgroup/user.slice/memory.current", "600000\n");
    cr_assert_eq(available(), 0, "never negative");
}

/* A container sees its own group at the top of the tree, whatever the path says. */
Test(available, is_found_at_the_top_where_the_path_is_the_host_s)
{
    record("/proc/self/cgroup", "0::/docker/0123abcd\n");
    record("/sys/fs/cgroup/memory.max", "2000000\n");
    record("/sys/fs/cgroup/memory.current", "500000\n");
    cr_assert_eq(available(), 1500000);
    cr_assert_eq(ra_host_limit(recorded_root), 2000000);
}

Test(available, is_what_a_version_1_group_leaves)
{
    record("/proc/self/cgroup", "11:cpuset:/a\n9:cpu,memory:/slurm/job\n1:name=systemd:/x\n");
    record("/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "3000000\n");
    record("/sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "1000000\n");
    record("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    record("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000000\n");
    cr_assert_eq(available(), 2000000);
    cr_assert_eq(ra_host_limit(recorded_root), 3000000,
                 "the root of version 1 says that it has none");
    record("/sys/fs/cgroup/memory/slurm/job/memory.stat",
           "inactive_file 1\ntotal_inactive_file 300000\n");
    cr_assert_eq(available(), 2300000);
    record("/sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "9223372036854771712\n");
    cr_assert_eq(ra_host_limit(recorded_root), -1);
}

Test(available, is_what_a_resource_limit_leaves)
{
    record("/proc/self/status", "VmSize:\t  100 kB\nVmData:\t   800 kB\n");
    struct rlimit before, limit;
    cr_assert_eq(getrlimit(RLIMIT_DATA, &before), 0);
    limit = before;
    limit.rlim_cur = 900 << 10;
    cr_assert_eq(setrlimit(RLIMIT_DATA, &limit), 0);
    int64_t bytes = -1;
    ra_status const status = ra_host_available(recorded_root, &bytes);
    cr_assert_eq(setrlimit(RLIMIT_DATA, &before), 0);
    cr_assert_eq(status, RA_OK);
    cr_assert_eq(bytes, 100 << 10);
}

Test(available, is_an_error_where_the_machine_does_not_say)
{
    int64_t bytes = -1;
    captured_log log;
    captured_log_begin(&log);
    record("/proc/meminfo", "MemTotal: 5 kB\nMemAvailable: much\n");
    cr_assert_eq(ra_host_available(recorded_root, &bytes), RA_ERR_IO);
    cr_assert_eq(ra_host_available("/nonexistent", &bytes), RA_ERR_IO);
    cr_assert_eq(bytes, -1);
    cr_assert_eq(log.count, 2);
}
