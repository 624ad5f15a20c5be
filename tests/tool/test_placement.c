/* Placement: what is found in tables of ranks, and said for all ranks; advice for machines. */
#include "comm/local_ranks.h"
#include "support/captured_log.h"
#include "support/failing_calloc.h"
#include "tool/console.h"
#include "tool/placement.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 16 };

static ra_place places[RANKS_MAX];
static ra_placement_finding findings[RA_PLACEMENT_FAULTS];

/* A rank of a host with `allowed` cores that may run on cores [first, first + count). */
static ra_place place_of(int host, int allowed, int first, int count, int threads)
{
    ra_place place = {.known = 1,
                      .host = 100 + host,
                      .threads = threads,
                      .allowed_cores = allowed,
                      .domains = 1,
                      .yields_when_idle = RA_ANSWER_YES,
                      .copies_once = RA_ANSWER_YES,
                      .ptrace_scope = -1};
    snprintf((char *)place.host_name, sizeof(place.host_name), "h%d", host);
    for (int core = first; core < first + count; core++)
        place.cores[core / 64] |= (int64_t)(UINT64_C(1) << (core % 64));
    return place;
}

/* Exactly the faults of `expected` (bits) are found, each on one host. */
static void expect_faults(int ranks, bool sends, unsigned expected)
{
    ra_placement_judge(places, ranks, sends, findings);
    for (int i = 0; i < RA_PLACEMENT_FAULTS; i++)
        cr_expect_eq(findings[i].hosts, expected >> i & 1, "fault %d: %d hosts, '%s'", i,
                     findings[i].hosts, findings[i].line);
}

static void expect_line(ra_placement_fault fault, const char *part)
{
    cr_expect_not_null(strstr(findings[fault].line, part), "'%s' is not in '%s'", part,
                       findings[fault].line);
}

#define BIT(fault) (1u << (fault))

Test(placement, finds_nothing_where_all_is_well)
{
    for (int r = 0; r < 4; r++)
        places[r] = place_of(0, 8, 2 * r, 2, 2); /* two cores each */
    expect_faults(4, true, 0);
    for (int r = 0; r < 4; r++)
        places[r] = place_of(0, 8, 0, 8, 2); /* unbound, one cache */
    expect_faults(4, true, 0);
    for (int r = 0; r < 4; r++)
        places[r] = place_of(0, 2, 2 * r, 2, 2); /* a cpuset for each rank */
    expect_faults(4, true, 0);
    places[0] = place_of(0, 96, 0, 96, 96);
    expect_faults(1, true, 0);
}

Test(placement, finds_more_threads_than_cores)
{
    for (int r = 0; r < 3; r++)
        places[r] = place_of(0, 8, 0, 8, 3);
    expect_faults(3, false, BIT(RA_PLACEMENT_CROWDED));
    expect_line(RA_PLACEMENT_CROWDED, "3 ranks with 9 threads in all share 8 cores of host h0");
    expect_line(RA_PLACEMENT_CROWDED, "OMP_WAIT_POLICY=passive");
    for (int r = 0; r < 3; r++)
        places[r].omp_is_passive = 1;
    expect_faults(3, false, BIT(RA_PLACEMENT_CROWDED));
    cr_expect_null(strstr(findings[RA_PLACEMENT_CROWDED].line, "OMP_WAIT_POLICY"));
    for (int r = 0; r < 3; r++)
        places[r] = place_of(0, 2, 0, 2, 1);
    expect_faults(3, false, BIT(RA_PLACEMENT_CROWDED));
    cr_expect_null(strstr(findings[RA_PLACEMENT_CROWDED].line, "OMP_WAIT_POLICY"));
    for (int r = 0; r < 3; r++)
        places[r] = place_of(0, 8, 0, 8, 2);
    expect_faults(3, false, 0);
    for (int r = 0; r < 3; r++)
        places[r].quota_cpus = 5; /* fewer CPUs' time than cores */
    expect_faults(3, false, BIT(RA_PLACEMENT_CROWDED));
    expect_line(RA_PLACEMENT_CROWDED, "share 5 cores");
}

Test(placement, finds_a_rank_bound_to_fewer_cores_than_threads)
{
    places[0] = place_of(0, 8, 0, 1, 4);
    places[1] = place_of(0, 8, 4, 4, 4);
    expect_faults(2, false, BIT(RA_PLACEMENT_NARROW));
    expect_line(RA_PLACEMENT_NARROW, "rank 0 on host h0 is bound to 1 of 8 cores, and runs 4");
}

Test(placement, finds_a_rank_whose_binding_leaves_cores_idle)
{
    places[0] = place_of(0, 8, 0, 1, 1);
    places[1] = place_of(0, 8, 1, 1, 1);
    expect_faults(2, false, 0); /* one thread was asked for */
    places[0].threads_are_auto = places[1].threads_are_auto = 1;
    expect_faults(2, false, BIT(RA_PLACEMENT_NARROW));
    expect_line(RA_PLACEMENT_NARROW, "(and 1 more like it)");
    expect_line(RA_PLACEMENT_NARROW, "room for 4 threads");
    places[0] = place_of(0, 8, 0, 5, 5); /* uneven domains, no core idle */
    places[1] = place_of(0, 8, 5, 3, 3);
    places[0].threads_are_auto = places[1].threads_are_auto = 1;
    expect_faults(2, false, 0);
}

Test(placement, finds_ranks_bound_to_the_same_cores)
{
    places[0] = place_of(0, 4, 2, 1, 1);
    places[1] = place_of(0, 4, 0, 1, 1);
    places[2] = place_of(0, 4, 2, 1, 1);
    expect_faults(3, false, BIT(RA_PLACEMENT_TOGETHER));
    expect_line(RA_PLACEMENT_TOGETHER, "rank 0 and rank 2 on host h0 are bound to the same core ");
    /* Two ranks in one cache of four cores, two threads each: meant so. */
    for (int r = 0; r < 4; r++)
        places[r] = place_of(0, 8, r / 2 * 4, 4, 2);
    expect_faults(4, false, 0);
}

Test(placement, finds_unbound_ranks_where_binding_would_help)
{
    for (int r = 0; r < 2; r++) {
        places[r] = place_of(0, 128, 0, 128, 64);
        places[r].domains = 16;
        places[r].domain_type = RA_DOMAIN_L3;
    }
    expect_faults(2, false, BIT(RA_PLACEMENT_UNBOUND));
    expect_line(RA_PLACEMENT_UNBOUND, "16 L3 caches");
    expect_line(RA_PLACEMENT_UNBOUND, "--map-by l3cache --bind-to l3cache");
    expect_faults(1, false, 0);
    for (int r = 0; r < 2; r++)
        places[r] = place_of(0, 128, 64 * r, 64, 64);
    expect_faults(2, false, 0);
}

Test(placement, finds_copies_only_where_messages_are_sent)
{
    for (int r = 0; r < 2; r++)
        places[r] = place_of(0, 8, 4 * r, 4, 4);
    places[1].attach = EPERM;
    places[1].ptrace_scope = 2;
    expect_faults(2, false, 0);
    expect_faults(2, true, BIT(RA_PLACEMENT_COPIED));
    expect_line(RA_PLACEMENT_COPIED, "rank 1 on host h0");
    expect_line(RA_PLACEMENT_COPIED, "kernel.yama.ptrace_scope");
    places[1].attach = 0;
    places[0].copies_once = RA_ANSWER_NO;
    expect_faults(2, true, BIT(RA_PLACEMENT_COPIED));
    expect_line(RA_PLACEMENT_COPIED, "btl_vader_single_copy_mechanism");
    places[0].copies_once = RA_ANSWER_UNKNOWN;
    expect_faults(2, true, 0);
    /* A rank that is alone on its host sends over the network. */
    places[0] = place_of(0, 8, 0, 8, 8);
    places[1] = place_of(1, 8, 0, 8, 8);
    places[0].copies_once = places[1].copies_once = RA_ANSWER_NO;
    places[0].attach = places[1].attach = RA_PLACE_ATTACH_UNTRIED;
    expect_faults(2, true, 0);
}

Test(placement, finds_ranks_that_do_not_yield)
{
    for (int r = 0; r < 3; r++) {
        places[r] = place_of(0, 2, 0, 2, 1);
        places[r].yields_when_idle = RA_ANSWER_NO;
    }
    expect_faults(3, false, BIT(RA_PLACEMENT_SPINNING) | BIT(RA_PLACEMENT_CROWDED));
    expect_line(RA_PLACEMENT_SPINNING, "3 ranks wait for each other on 2 cores of host h0");
    expect_faults(2, false, 0);
    places[0].yields_when_idle = RA_ANSWER_UNKNOWN;
    expect_faults(3, false, BIT(RA_PLACEMENT_CROWDED));
}

Test(placement, judges_each_host_by_its_own_ranks)
{
    for (int r = 0; r < 8; r++)
        places[r] = place_of(r % 4, 2, 0, 2, 1);
    expect_faults(8, true, 0);
    places[5].threads = 9;
    places[6].threads = 9;
    ra_placement_judge(places, 8, true, findings);
    cr_expect_eq(findings[RA_PLACEMENT_CROWDED].hosts, 2);
    expect_line(RA_PLACEMENT_CROWDED, "host h1");
    places[1].known = 0; /* of h1: nothing is said where something is not known */
    ra_placement_judge(places, 8, true, findings);
    cr_expect_eq(findings[RA_PLACEMENT_CROWDED].hosts, 1);
    expect_line(RA_PLACEMENT_CROWDED, "host h2");
}

/* ---- looking --------------------------------------------------------------------------------- */

Test(placement, reads_another_process_and_says_why_not)
{
    ra_place place;
    int status, ready[2];
    ra_place_read(&place);
    cr_assert_eq(place.known, 1);
    cr_expect_eq(ra_place_attach(&place), 0); /* itself */
    place.pid = 1;                            /* of another process, or not to be read */
    cr_expect_neq(ra_place_attach(&place), 0);
    cr_assert_eq(pipe(ready), 0);
    pid_t const child = fork();
    if (child == 0) { /* the copy of a probe that holds the parent's pid */
        ra_place_read(&place);
        if (write(ready[1], &place, sizeof(place)) != sizeof(place))
            _exit(1);
        pause();
        _exit(0);
    }
    cr_assert_gt(child, 0);
    cr_assert_eq(read(ready[0], &place, sizeof(place)), (ssize_t)sizeof(place));
    int const attached = ra_place_attach(&place);
    cr_expect(attached == 0 || attached == EPERM, "%s", strerror(attached));
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect_eq(ra_place_attach(&place), ESRCH);
}

typedef struct check_case {
    int threads;
    bool spent; /* no memory for the table on one rank */
} check_case;

static int check_on_rank(ra_comm *comm, void *context)
{
    const check_case *c = context;
    ra_place own;
    ra_place_read(&own);
    own.threads = c->threads;
    own.domains = 1; /* whatever the machine of the test has */
    cr_assert_eq(ra_comm_barrier(comm, "reading places"), RA_OK);
    if (c->spent && ra_comm_rank(comm) == 0)
        callocs_left = ra_comm_size(comm) - 1;
    cr_assert_eq(ra_comm_barrier(comm, "taking the memory away"), RA_OK);
    ra_status const status = ra_placement_check(&own, comm, true);
    return status == (c->spent ? RA_ERR_NO_MEMORY : RA_OK);
}

Test(placement, one_line_is_said_for_all_ranks)
{
    captured_log log;
    check_case crowded = {.threads = 5000};
    check_case fine = {.threads = 0};
    captured_log_begin(&log);
    cr_expect_eq(local_ranks_run(5, 20000, check_on_rank, &fine), 5);
    cr_expect_eq(log.count, 0, "%s", log.line);
    cr_expect_eq(local_ranks_run(5, 20000, check_on_rank, &crowded), 5);
    cr_expect_geq(log.count, 1);
    cr_expect_leq(log.count, 2); /* where the test is bound: narrow, too */
    int const said = log.count;
    ra_console_set_quiet(true);
    cr_expect_eq(local_ranks_run(5, 20000, check_on_rank, &crowded), 5);
    cr_expect_eq(log.count, said);
    ra_console_set_quiet(false);
    ra_log_set_handler(NULL, NULL);
}

Test(placement, no_memory_is_every_ranks_status)
{
    captured_log log;
    check_case spent = {.threads = 1, .spent = true};
    captured_log_begin(&log);
    cr_expect_eq(local_ranks_run(3, 20000, check_on_rank, &spent), 3);
    cr_expect_eq(callocs_left, 0);
    cr_expect_eq(log.count, 1, "%s", log.line);
    ra_log_set_handler(NULL, NULL);
}

/* ---- advice ---------------------------------------------------------------------------------- */

static void expect_advice_with(int gpus, const char *machine, const char *cpus, double quota,
                               const char *words, const char *command)
{
    char text[256];
    ra_topology topology;
    cr_assert_eq(ra_topology_read_recorded(machine, cpus, &topology), RA_OK);
    topology.quota_cpus = quota;
    ra_advice const advice = ra_placement_advise(&topology, gpus);
    cr_expect_str_eq(ra_advice_describe(&advice, text, sizeof(text)), words, "%s: %s", machine,
                     text);
    cr_expect_str_eq(ra_advice_command(&advice, text, sizeof(text)), command, "%s: %s", machine,
                     text);
}

static void expect_advice(const char *machine, const char *cpus, double quota, const char *words,
                          const char *command)
{
    expect_advice_with(0, machine, cpus, quota, words, command);
}

#define L3_LINE(n)                                                                                 \
    "mpirun -n " n " --map-by ppr:1:l3cache --bind-to l3cache ringattn run --config FILE"
#define NONE_LINE "mpirun -n 1 --bind-to none ringattn run --config FILE"

Test(advice, gives_each_rank_a_cache_or_a_memory)
{
    static const char epyc[] = "package:2 numa:1 l3:8 core:8 pu:2";
    expect_advice(epyc, NULL, 0, "16 ranks of 8 threads, each with an L3 cache to itself",
                  L3_LINE("16"));
    expect_advice("package:1 numa:1 l3:1 core:6 pu:2", NULL, 0, "1 rank of 6 threads", NONE_LINE);
    expect_advice("package:2 l3:1 numa:2 core:4 pu:1", NULL, 0,
                  "4 ranks of 4 threads, each with a NUMA node to itself",
                  "mpirun -n 4 --map-by ppr:1:numa --bind-to numa ringattn run --config FILE");
    expect_advice("package:1 pu:1", NULL, 0, "1 rank of 1 thread", NONE_LINE);
}

Test(advice, counts_only_what_may_be_used)
{
    static const char epyc[] = "package:2 numa:1 l3:8 core:8 pu:2";
    expect_advice(epyc, "0-15", 0, "1 rank of 8 threads", NONE_LINE);
    expect_advice(epyc, "0-15,20-25", 0,
                  "2 ranks of 3 to 8 threads, each with an L3 cache to "
                  "itself",
                  L3_LINE("2"));
    expect_advice(epyc, NULL, 12.5, "1 rank of 12 threads", NONE_LINE);
    expect_advice(epyc, NULL, 128, "16 ranks of 8 threads, each with an L3 cache to itself",
                  L3_LINE("16"));
}

/* Whatever the cores are. */
Test(advice, gives_each_gpu_a_rank_bound_to_nothing)
{
    static const char epyc[] = "package:2 numa:1 l3:8 core:8 pu:2";
    expect_advice_with(8, epyc, NULL, 0, "8 ranks, each with a GPU to itself",
                       "mpirun -n 8 --bind-to none ringattn run --config FILE");
    expect_advice_with(1, epyc, NULL, 12.5, "1 rank, with a GPU to itself", NONE_LINE);
}
