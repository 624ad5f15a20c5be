/* Which GPU a rank gets, on recorded machines, and what is said where there is none. */
#include "comm/device_place.h"
#include "comm/local_ranks.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define TWO_NODES MACHINES "/two_nodes_gpu_on_second.xml"

Test(device_place, is_near_where_a_core_of_the_gpus_node_may_be_used)
{
    static const char gpu[] = "0000:3b:00.0";
    cr_expect_not(ra_device_is_far(TWO_NODES, "2-3", gpu));
    cr_expect_not(ra_device_is_far(TWO_NODES, "1,3", gpu));
    cr_expect(ra_device_is_far(TWO_NODES, "0-1", gpu));
    cr_expect(ra_device_is_far(TWO_NODES, "0", gpu));
}

Test(device_place, is_not_judged_where_nothing_is_known)
{
    cr_expect_not(ra_device_is_far(TWO_NODES, "0", "0000:5e:00.0"));
    cr_expect_not(ra_device_is_far(TWO_NODES, "0", "no bus"));
    cr_expect_not(ra_device_is_far(MACHINES "/vm_2_cores.xml", "0", "0000:3b:00.0"));
    cr_expect_not(ra_device_is_far(MACHINES "/truncated.xml", "0", "0000:3b:00.0"));
    cr_expect_not(ra_device_is_far(NULL, NULL, "ffff:ff:1f.7"));
}

/* ---- dealing out ----------------------------------------------------------------------------- */

/* What a rank sees, where a test says so: GPUs by the last digits of their address. */
static _Thread_local const char *seen;

void __real_ra_devices_read(ra_devices *devices_out);
void __wrap_ra_devices_read(ra_devices *devices_out);
void __wrap_ra_devices_read(ra_devices *devices_out)
{
    if (seen == NULL) {
        __real_ra_devices_read(devices_out);
        return;
    }
    *devices_out = (ra_devices){.why_not = "this rank sees none"};
    for (const char *c = seen; *c != '\0'; c++) {
        ra_device *gpu = &devices_out->list[devices_out->count++];
        snprintf(gpu->bus_id, sizeof(gpu->bus_id), "0000:%c%c:00.0", *c, *c);
        gpu->usable = true;
    }
    devices_out->usable_count = devices_out->count;
}

/* CUDA_VISIBLE_DEVICES of a rank that sees what a test says. */
static _Thread_local char *visible;

char *__real_getenv(const char *name);
char *__wrap_getenv(const char *name);
char *__wrap_getenv(const char *name)
{
    return seen != NULL && strcmp(name, "CUDA_VISIBLE_DEVICES") == 0 ? visible
                                                                     : __real_getenv(name);
}

typedef struct dealing {
    const char *seen[6];
    int indices[6], sharers[6];
    ra_status status;
    char *visible[6];
} dealing;

static int expect_dealt(ra_comm *comm, void *context)
{
    const dealing *d = context;
    int const rank = ra_comm_rank(comm);
    int index = -1, sharers = -1, most = -1, expected = -1;
    seen = d->seen[rank];
    visible = d->visible[rank];
    for (int i = 0; i < 6; i++)
        expected = d->sharers[i] > expected ? d->sharers[i] : expected;
    return ra_comm_pick_device(comm, &index, &sharers, &most) != d->status ||
           index != d->indices[rank] || sharers != d->sharers[rank] || most != expected;
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
    int index = -1, sharers = -1, most = -1;
    (void)context;
    ra_devices_read(&devices);
    ra_status const status = ra_comm_pick_device(comm, &index, &sharers, &most);
    if (devices.usable_count == 0)
        return status != RA_ERR_UNSUPPORTED || index != -1 || sharers != -1 || most != -1;
    return status != RA_OK || index < 0 || !devices.list[index].usable || sharers < 1 ||
           most < sharers;
}

Test(device_place, every_rank_learns_whether_there_is_a_gpu)
{
    ra_devices devices;
    ra_devices_read(&devices);
    ra_log_set_handler(count_lines, NULL);
    cr_expect_eq(local_ranks_run(3, 60000, pick, NULL), 0);
    cr_expect_eq(lines, devices.usable_count == 0 ? 3 : 0);
}

/* Four ranks on a host, two on another. */
static int deal(dealing *d)
{
    static const int hosts[] = {0, 0, 0, 0, 1, 1};
    ra_comm *comms[6];
    cr_assert_eq(ra_comm_create_local(6, hosts, 60000, comms), RA_OK);
    return local_ranks_run_on(6, comms, expect_dealt, d);
}

Test(device_place, gpus_are_shared_by_whom_they_are_dealt_to_whatever_ranks_see)
{
    dealing all = {{"abc", "abc", "abc", "abc", "ab", "ab"},
                   {0, 1, 2, 0, 0, 1},
                   {2, 1, 1, 2, 1, 1},
                   RA_OK,
                   {0}};
    dealing own = {{"a", "b", "c", "d", "a", "b"}, {0}, {1, 1, 1, 1, 1, 1}, RA_OK, {0}};
    dealing one = {{"a", "a", "c", "a", "a", "c"}, {0}, {3, 3, 1, 3, 1, 1}, RA_OK, {0}};
    dealing pairs = {
        {"ab", "ab", "cd", "cd", "ab", "ab"}, {0, 1, 0, 1, 0, 1}, {1, 1, 1, 1, 1, 1}, RA_OK, {0}};
    cr_expect_eq(deal(&all), 0);
    cr_expect_eq(deal(&own), 0);
    cr_expect_eq(deal(&one), 0);
    cr_expect_eq(deal(&pairs), 0);
}

/* As a launcher's binding to the nearest GPUs does, or a list that begins with the rank's own. */
Test(device_place, ranks_that_see_different_gpus_share_none_while_there_are_enough)
{
    dealing in_turn = {
        {"ab", "cd", "ab", "cd", "ab", "ab"}, {0, 0, 1, 1, 0, 1}, {1, 1, 1, 1, 1, 1}, RA_OK, {0}};
    dealing own_first = {{"abcd", "bcda", "cdab", "dabc", "ab", "ba"},
                         {0, 0, 0, 0, 0, 0},
                         {1, 1, 1, 1, 1, 1},
                         RA_OK,
                         {0}};
    dealing more = {
        {"a", "ab", "abc", "abc", "b", "ab"}, {0, 1, 2, 0, 0, 0}, {2, 1, 1, 2, 1, 1}, RA_OK, {0}};
    cr_expect_eq(deal(&in_turn), 0);
    cr_expect_eq(deal(&own_first), 0);
    cr_expect_eq(deal(&more), 0);
}

/* All slices of a GPU have its address. Only the first that a rank is given is its own. */
Test(device_place, a_slice_is_shared_by_those_who_are_given_it)
{
    static char one[] = "MIG-1", other[] = "MIG-2", two[] = "MIG-1,MIG-2", plain[] = "0";
    dealing slices = {{"a", "a", "a", "a", "a", "a"},
                      {0},
                      {2, 1, 2, 1, 2, 2},
                      RA_OK,
                      {one, other, two, NULL, one, one}};
    dealing gpus = {{"a", "a", "b", "b", "a", "b"},
                    {0},
                    {2, 2, 2, 2, 1, 1},
                    RA_OK,
                    {plain, NULL, plain, NULL, plain, NULL}};
    cr_expect_eq(deal(&slices), 0);
    cr_expect_eq(deal(&gpus), 0);
}

Test(device_place, a_rank_that_sees_no_gpu_is_the_failure_of_all)
{
    dealing d = {{"a", "b", "", "d", "a", "b"},
                 {-1, -1, -1, -1, -1, -1},
                 {-1, -1, -1, -1, -1, -1},
                 RA_ERR_UNSUPPORTED,
                 {0}};
    lines = 0;
    ra_log_set_handler(count_lines, NULL);
    cr_expect_eq(deal(&d), 0);
    cr_expect_eq(lines, 1);
}

Test(device_place, nccl_says_which_it_is_or_why_there_is_none)
{
    char text[240] = "";
    bool const there = ra_nccl_describe(text, sizeof(text));
    cr_expect_eq(there, strncmp(text, "version 2.", 10) == 0, "%s", text);
    cr_expect_eq(there, ra_nccl_version() >= 21800, "%d", ra_nccl_version());
    cr_expect(there || strstr(text, "NCCL") != NULL, "%s", text);
}
