/* Machines that were recorded, and the one at hand. */
#include "comm/contract.h"
#include "comm/local_ranks.h"
#include "comm/topology_places.h"
#include "ringattn/topology.h"
#include "support/recorded_root.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char two_packages[] = "package:2 numa:1 l3:2 l2:4 l1:1 core:1 pu:2";

static ra_topology read_recorded(const char *machine, const char *cpus)
{
    ra_topology topology;
    cr_assert_eq(ra_topology_read_recorded(machine, cpus, &topology), RA_OK);
    return topology;
}

Test(topology, counts_a_machine)
{
    ra_topology const t = read_recorded(two_packages, NULL);
    cr_expect_eq(t.packages, 2);
    cr_expect_eq(t.numa_nodes, 2);
    cr_expect_eq(t.cores, 16);
    cr_expect_eq(t.hardware_threads, 32);
    cr_expect_eq(t.usable_cores, 16);
    cr_expect_eq(t.usable_hardware_threads, 32);
    cr_expect_eq(t.usable_mask[0], 0xFFFF);
    cr_expect_gt(t.l1_bytes, 0);
    cr_expect_gt(t.l2_bytes, t.l1_bytes);
    cr_expect_gt(t.l3_bytes, t.l2_bytes);
    cr_expect_gt(t.memory_bytes, 0);
}

Test(topology, counts_a_core_as_usable_by_one_of_its_hardware_threads)
{
    ra_topology const t = read_recorded(two_packages, "1,4-7,30");
    cr_expect_eq(t.cores, 16);
    cr_expect_eq(t.usable_cores, 4);
    cr_expect_eq(t.usable_hardware_threads, 6);
    cr_expect_eq(t.usable_mask[0], 1 << 0 | 1 << 2 | 1 << 3 | 1 << 15);
}

Test(topology, counts_parts_that_share_a_cache_or_memory)
{
    ra_topology t = read_recorded(two_packages, NULL);
    cr_expect_eq(t.l3.count, 4);
    cr_expect_eq(t.l3.usable, 4);
    cr_expect_eq(t.l3.cores_least, 4);
    cr_expect_eq(t.l3.cores_most, 4);
    cr_expect_eq(t.numa.usable, 2);
    cr_expect_eq(t.numa.cores_most, 8);
    cr_expect_eq(t.allowed_cores, 16);
    t = read_recorded(two_packages, "1,4-7,30");
    cr_expect_eq(t.l3.count, 4);
    cr_expect_eq(t.l3.usable, 2);
    cr_expect_eq(t.l3.cores_least, 1);
    cr_expect_eq(t.l3.cores_most, 3);
    cr_expect_eq(t.numa.usable, 2);
    cr_expect_eq(t.allowed_cores, 16);
    t = read_recorded(two_packages, "9,16-23");
    cr_expect_eq(t.l3.usable, 2, "the first has none");
    cr_expect_eq(t.l3.cores_least, 1);
    cr_expect_eq(t.l3.cores_most, 4);
    t = read_recorded(MACHINES "/vm_1_of_2_cores.xml", NULL);
    cr_expect_eq(t.allowed_cores, 1);
    t = read_recorded("package:1 pu:6", NULL);
    cr_expect_eq(t.l3.count, 0);
    cr_expect_eq(t.numa.count, 1);
}

/* Memory of a second kind lies beside the same cores, or beside none. */
Test(topology, counts_memory_without_cores_of_its_own_as_no_part)
{
    ra_topology t = read_recorded("package:2 [numa] [numa] core:3 pu:1", NULL);
    cr_expect_eq(t.numa_nodes, 4);
    cr_expect_eq(t.numa.count, 2);
    cr_expect_eq(t.numa.usable, 2);
    cr_expect_eq(t.numa.cores_least, 3);
    t = read_recorded(MACHINES "/memory_without_cpus.xml", NULL);
    cr_expect_eq(t.numa_nodes, 2);
    cr_expect_eq(t.numa.count, 1);
    cr_expect_eq(t.numa.usable, 1);
    cr_expect_eq(t.numa.cores_most, 2);
}

Test(topology, takes_hardware_threads_for_cores_where_there_are_none)
{
    ra_topology const t = read_recorded("package:1 pu:6", "0-2");
    cr_expect_eq(t.cores, 6);
    cr_expect_eq(t.usable_cores, 3);
}

Test(topology, reads_a_recorded_file)
{
    ra_topology const t = read_recorded(MACHINES "/vm_2_cores.xml", NULL);
    cr_expect_str_eq(t.cpu, "Intel(R) Xeon(R) Processor");
    cr_expect_eq(t.packages, 1);
    cr_expect_eq(t.numa_nodes, 1);
    cr_expect_eq(t.cores, 2);
    cr_expect_eq(t.usable_cores, 2);
    cr_expect_eq(t.l1_bytes, 49152);
    cr_expect_eq(t.l2_bytes, 2097152);
    cr_expect_eq(t.l3_bytes, 272629760);
    cr_expect_eq(t.memory_bytes, 7342346240);
}

Test(topology, leaves_out_cores_that_the_cpuset_forbids)
{
    ra_topology const t = read_recorded(MACHINES "/vm_1_of_2_cores.xml", NULL);
    cr_expect_eq(t.cores, 2);
    cr_expect_eq(t.usable_cores, 1);
    cr_expect_eq(t.usable_mask[0], 2);
    ra_topology const asked = read_recorded(MACHINES "/vm_1_of_2_cores.xml", "0-1");
    cr_expect_eq(asked.usable_cores, 1);
    cr_expect_eq(asked.usable_mask[0], 2);
}

static void expect_refusal(const char *machine, const char *cpus, ra_status status)
{
    ra_topology t;
    contract_clear_log();
    cr_expect_eq(ra_topology_read_recorded(machine, cpus, &t), status, "%s %s", machine, cpus);
    cr_expect_eq(contract_count_lines("", ""), 1, "%s %s", machine, cpus);
    cr_expect_eq(contract_count_lines(machine, ""), 1, "%s %s", machine, cpus);
}

Test(topology, says_in_one_line_what_it_cannot_read)
{
    contract_capture_log();
    expect_refusal(MACHINES "/missing.xml", NULL, RA_ERR_IO);
    expect_refusal(MACHINES "/truncated.xml", NULL, RA_ERR_IO);
    expect_refusal("a dozen cores", NULL, RA_ERR_IO);
    expect_refusal("package:1 core:2 pu:1", "7", RA_ERR_INVALID);
    expect_refusal("package:1 core:2 pu:1", "", RA_ERR_INVALID);
    expect_refusal(MACHINES "/vm_1_of_2_cores.xml", "0", RA_ERR_INVALID);
}

Test(topology, renders_two_lines)
{
    ra_topology t = read_recorded(MACHINES "/vm_2_cores.xml", "1");
    static const char expected[] =
        "Intel(R) Xeon(R) Processor: 1 package, 1 NUMA node, 2 cores (2 hardware threads), "
        "1 usable by this process\n"
        "L1d 48.0 KiB, L2 2.0 MiB, L3 260.0 MiB, memory 6.8 GiB";
    char text[512], cut[20];
    int const length = ra_topology_render(&t, text, sizeof(text));
    cr_expect_str_eq(text, expected);
    cr_expect_eq(length, (int)strlen(expected));
    cr_expect_eq(ra_topology_render(&t, cut, sizeof(cut)), length);
    cr_expect_eq(strlen(cut), sizeof(cut) - 1);
    cr_expect_eq(memcmp(cut, expected, sizeof(cut) - 1), 0);
    t.quota_cpus = 1.5;
    ra_topology_render(&t, text, sizeof(text));
    cr_expect_not_null(strstr(text, "1 usable by this process for 1.5 CPUs' time\n"));
    t.memory_bytes = 0;
    ra_topology_render(&t, text, sizeof(text));
    cr_expect_not_null(strstr(text, "\nL1d 48.0 KiB, L2 2.0 MiB, L3 260.0 MiB"), "%s", text);
    cr_expect_null(strstr(text, "L3 260.0 MiB,"), "%s", text);
    t = read_recorded("numa:2 core:2 pu:1", NULL);
    ra_topology_render(&t, text, sizeof(text));
    cr_expect_not_null(strstr(text, ": 2 NUMA nodes, 4 cores ("), "%s", text);
}

Test(topology, sees_the_binding_of_this_thread)
{
    ra_topology all, bound;
    cpu_set_t before, one;
    int cpu = 0;
    cr_assert_eq(sched_getaffinity(0, sizeof(before), &before), 0);
    cr_assert_eq(ra_topology_read(&all), RA_OK);
    cr_expect_geq(all.usable_cores, 1);
    cr_expect_leq(all.usable_cores, all.cores);
    cr_expect_eq(all.usable_hardware_threads, CPU_COUNT(&before));
    while (!CPU_ISSET(cpu, &before))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    cr_assert_eq(sched_setaffinity(0, sizeof(one), &one), 0);
    cr_assert_eq(ra_topology_read(&bound), RA_OK);
    cr_expect_eq(bound.cores, all.cores);
    cr_expect_eq(bound.usable_cores, 1);
    cr_expect_eq(bound.usable_hardware_threads, 1);
}

/* As if this process, on the first core, were on a machine whose cpuset leaves the second alone. */
Test(topology, of_which_nothing_may_be_used_is_one_line_and_writes_nothing)
{
    ra_topology t = {.cores = 77};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(0, &one);
    if (sched_setaffinity(0, sizeof(one), &one) != 0)
        cr_skip_test("CPU 0 is not this process's");
    cr_assert_eq(setenv("HWLOC_XMLFILE", MACHINES "/vm_1_of_2_cores.xml", 1), 0);
    cr_assert_eq(setenv("HWLOC_THISSYSTEM", "1", 1), 0);
    contract_capture_log();
    cr_expect_eq(ra_topology_read(&t), RA_ERR_UNSUPPORTED);
    cr_expect_eq(contract_count_lines("none of this machine's 2 cores", ""), 1);
    cr_expect_eq(contract_count_lines("", ""), 1);
    cr_expect_eq(t.cores, 77);
}

Test(topology, divides_cores_and_time)
{
    ra_topology t = read_recorded("package:1 core:6 pu:2", NULL);
    cr_expect_eq(ra_topology_divide(&t, 1), 6);
    cr_expect_eq(ra_topology_divide(&t, 2), 3);
    cr_expect_eq(ra_topology_divide(&t, 4), 1);
    cr_expect_eq(ra_topology_divide(&t, 100), 1);
    t.quota_cpus = 4;
    cr_expect_eq(ra_topology_divide(&t, 1), 4);
    cr_expect_eq(ra_topology_divide(&t, 2), 2);
    t.quota_cpus = 0.5;
    cr_expect_eq(ra_topology_divide(&t, 1), 1);
}

TestSuite(quota, .init = recorded_root_make, .fini = recorded_root_remove);

Test(quota, is_the_tightest_of_version_2_groups)
{
    static const char job[] = "/sys/fs/cgroup/user.slice/job 1.scope/cpu.max";
    static const char *const limits_nothing[] = {
        "max 100000\n", "100000", "100000 0", "-1 100000", "", "9223372036854775807 1\n"};
    cr_expect_eq(ra_quota_read(recorded_root), 0);
    record("/proc/self/cgroup", "0::/user.slice/job 1.scope\n");
    for (size_t i = 0; i < sizeof(limits_nothing) / sizeof(limits_nothing[0]); i++) {
        record(job, limits_nothing[i]);
        cr_expect_eq(ra_quota_read(recorded_root), 0, "%s", limits_nothing[i]);
    }
    record(job, "200000 100000\n");
    cr_expect_eq(ra_quota_read(recorded_root), 2);
    record("/sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n");
    cr_expect_eq(ra_quota_read(recorded_root), 0.5, "the group above is tighter");
}

Test(quota, is_read_of_version_1_groups_too)
{
    record("/proc/self/cgroup", "9:memory:/a\n4:cpu,cpuacct:/docker/0123\n0::/\n");
    record("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    record("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    cr_expect_eq(ra_quota_read(recorded_root), 0);
    record("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n");
    cr_expect_eq(ra_quota_read(recorded_root), 1.5, "a container sees its own group at the top");
}

/* Which hardware threads each rank may use, and how many threads it should run. */
typedef struct sharing {
    const char *machine, *cpus[8];
    int threads[8];
    double quota_cpus; /* of each host; 0: none */
} sharing;

static int share(ra_comm *comm, void *context)
{
    const sharing *const s = context;
    int const rank = ra_comm_rank(comm);
    ra_topology t;
    int threads = -1;
    if (ra_topology_read_recorded(s->machine, s->cpus[rank], &t) != RA_OK)
        return 1;
    t.quota_cpus = s->quota_cpus;
    if (ra_topology_threads(&t, comm, &threads) != RA_OK)
        return 1;
    if (threads != s->threads[rank])
        fprintf(stderr, "rank %d: %d threads, not %d\n", rank, threads, s->threads[rank]);
    return threads != s->threads[rank];
}

static void expect_shares(int ranks, const int *hosts, sharing s)
{
    ra_comm *comms[8];
    cr_assert_eq(ra_comm_create_local(ranks, hosts, 60000, comms), RA_OK);
    cr_expect_eq(local_ranks_run_on(ranks, comms, share, &s), 0);
}

Test(topology, shares_cores_among_the_ranks_that_may_use_them)
{
    static const char eight[] = "package:1 core:8 pu:1";
    expect_shares(3, NULL,
                  (sharing){.machine = eight, .cpus = {"0-7", "0-7", "0-7"}, .threads = {2, 2, 2}});
    expect_shares(
        4, NULL,
        (sharing){.machine = eight, .cpus = {"0-3", "4-5", "6", "7"}, .threads = {4, 2, 1, 1}});
    expect_shares(3, NULL,
                  (sharing){.machine = eight, .cpus = {"0-7", "0-3", "0-3"}, .threads = {5, 1, 1}});
    expect_shares(
        4, NULL,
        (sharing){.machine = eight, .cpus = {"0", "0", "0", "0-1"}, .threads = {1, 1, 1, 1}});
}

/* Six thirds, as they are added up, are a little less than two. */
Test(topology, loses_no_core_to_rounding)
{
    expect_shares(3, NULL,
                  (sharing){.machine = "package:1 core:6 pu:1",
                            .cpus = {"0-5", "0-5", "0-5"},
                            .threads = {2, 2, 2}});
}

Test(topology, shares_more_cores_than_a_word_has_bits)
{
    expect_shares(2, NULL,
                  (sharing){.machine = "package:1 core:80 pu:1",
                            .cpus = {"0-63,70-79", "64-79"},
                            .threads = {69, 11}});
    expect_shares(2, NULL,
                  (sharing){.machine = "package:1 core:80 pu:1",
                            .cpus = {"0-63", "64-79"},
                            .threads = {64, 16}});
}

Test(topology, ranks_of_other_hosts_have_cores_of_their_own)
{
    static const int hosts[] = {0, 1, 0};
    expect_shares(3, hosts,
                  (sharing){.machine = "package:1 core:8 pu:1",
                            .cpus = {"0-7", "0-7", "0-7"},
                            .threads = {4, 8, 4}});
    expect_shares(3, hosts,
                  (sharing){.machine = "package:1 core:8 pu:1",
                            .cpus = {"0-7", "0-7", "0-7"},
                            .threads = {2, 5, 2},
                            .quota_cpus = 5});
}
