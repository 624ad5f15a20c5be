/* Which GPU a rank gets, on recorded machines, and what is said where there is none. */
#include "comm/device_place.h"
#include "comm/local_ranks.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

#define TWO_NODES MACHINES "/two_nodes_gpu_on_second.xml"

Test(device_place, is_near_where_a_core_of_the_gpus_node_may_be_used)
{
    static const char gpu[] = "0000:3b:00.0";
    cr_expect_eq(ra_device_nearness(TWO_NODES, "2-3", gpu), RA_NEARNESS_NEAR);
    cr_expect_eq(ra_device_nearness(TWO_NODES, "1,3", gpu), RA_NEARNESS_NEAR);
    cr_expect_eq(ra_device_nearness(TWO_NODES, "0-1", gpu), RA_NEARNESS_FAR);
    cr_expect_eq(ra_device_nearness(TWO_NODES, "0", gpu), RA_NEARNESS_FAR);
}

Test(device_place, is_not_judged_where_nothing_is_known)
{
    cr_expect_eq(ra_device_nearness(TWO_NODES, "0", "0000:5e:00.0"), RA_NEARNESS_UNKNOWN);
    cr_expect_eq(ra_device_nearness(TWO_NODES, "0", "no bus"), RA_NEARNESS_UNKNOWN);
    cr_expect_eq(ra_device_nearness(MACHINES "/vm_2_cores.xml", "0", "0000:3b:00.0"),
                 RA_NEARNESS_UNKNOWN);
    cr_expect_eq(ra_device_nearness(MACHINES "/truncated.xml", "0", "0000:3b:00.0"),
                 RA_NEARNESS_UNKNOWN);
    cr_expect_eq(ra_device_nearness(NULL, NULL, "ffff:ff:1f.7"), RA_NEARNESS_UNKNOWN);
}

static atomic_int lines;

static void count_lines(void *context, ra_log_level level, const char *line)
{
    (void)context;
    lines += level == RA_LOG_ERROR && strstr(line, "no GPU for rank ") != NULL;
}

static int pick(ra_comm *comm, void *context)
{
    ra_devices devices;
    int index = -1, sharers = -1;
    (void)context;
    ra_devices_read(&devices);
    ra_status const status = ra_comm_pick_device(comm, &index, &sharers);
    if (devices.usable_count == 0)
        return status != RA_ERR_UNSUPPORTED || index != -1 || sharers != -1;
    return status != RA_OK || index < 0 || !devices.list[index].usable || sharers < 1;
}

Test(device_place, every_rank_learns_whether_there_is_a_gpu)
{
    ra_devices devices;
    ra_devices_read(&devices);
    ra_log_set_handler(count_lines, NULL);
    cr_expect_eq(local_ranks_run(3, 60000, pick, NULL), 0);
    cr_expect_eq(lines, devices.usable_count == 0 ? 3 : 0);
}

Test(device_place, nccl_says_which_it_is_or_why_there_is_none)
{
    char text[240] = "";
    bool const there = ra_nccl_describe(text, sizeof(text));
    cr_expect_eq(there, strncmp(text, "version 2.", 10) == 0, "%s", text);
    cr_expect(there || strstr(text, "NCCL") != NULL, "%s", text);
}
