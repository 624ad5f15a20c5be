/* The keys of the pool as users meet them: figures, the record of blocks, and what is refused. */
#include "support/pool_replay.h"
#include "tool/command_runner.h"
#include "tool/json_reader.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(pool_keys, .init = command_folder_make, .fini = command_folder_remove, .timeout = 100);

static command_result result;

#define JOB "--set shape.seq=600 --set pattern.causal=true --backward "

static void run(int ranks, const char *arguments)
{
    command_run(&result, ranks, arguments);
    cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", arguments, result.code, result.err);
}

/* The pool of the only point of a run; the caller drops *root_out. */
static json_t *pool_of(const char *arguments, json_t **root_out, json_t **point_out)
{
    run(0, arguments);
    *root_out = parse_json(result.out);
    *point_out = first_point(*root_out);
    return member(*point_out, "pool");
}

static void expect_mode(const char *arguments, const char *mode)
{
    json_t *root, *point, *pool = pool_of(arguments, &root, &point);
    cr_assert_str_eq(text(pool, "mode"), mode);
    json_t *allocated = member(pool, "allocated"), *reserved = member(pool, "reserved");
    cr_assert_leq(integer(allocated, "peak_bytes"), integer(reserved, "peak_bytes"));
    cr_assert_leq(integer(reserved, "peak_bytes"), integer(point, "peak_bytes"));
    cr_assert_geq(real(pool, "utilisation"), 0.95);
    cr_assert_gt(integer(pool, "misses"), 0);
    cr_assert_geq(integer(pool, "alloc_p99_ns"), integer(pool, "alloc_p50_ns"));
    cr_assert_eq(integer(allocated, "allocated_count"),
                 integer(pool, "hits") + integer(pool, "misses"));
    if (strcmp(mode, "off") == 0)
        cr_assert_eq(integer(pool, "hits"), 0);
    json_decref(root);
}

Test(pool_keys, json_has_the_pool_s_figures)
{
    expect_mode("run --json " JOB, "size_class");
    expect_mode("run --json " JOB "--set memory.pool.mode=off", "off");
    expect_mode("run --json " JOB "--set ring.variant=base", "off");
}

Test(pool_keys, a_pool_that_is_on_has_a_row)
{
    run(0, "run " JOB);
    cr_assert_eq(command_count_lines(result.out, "requests came from idle memory"), 1);
    run(0, "run --set memory.pool.mode=off " JOB);
    cr_assert_eq(command_count_lines(result.out, "requests came from idle memory"), 0);
}

/* A record is whole, and replayed it keeps a pool at least as full as 95 %. */
static pool_replay expect_full(const char *name)
{
    char path[128];
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pool_stats stats;
    ra_ledger_snapshot last;
    pool_replay replayed;
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    FILE *const file = fopen(path, "r");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_SIZE_CLASS, .memory = ra_memory_host(), .ledger = ledger};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_assert_eq(pool_replay_run(file, pool, &replayed), RA_OK, "%s: line %lld", name,
                 (long long)replayed.lines + 1);
    fclose(file);
    cr_assert_eq(replayed.lost, 0);
    ra_pool_read_stats(pool, &stats);
    cr_assert_eq(stats.hits + stats.misses, replayed.blocks);
    cr_assert_geq(ra_pool_utilisation(&stats), 0.95, "%s", name);
    (void)ra_pool_trim(pool, 0);
    ra_ledger_read(ledger, &last);
    cr_assert_eq(last.reserved_bytes, 0);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    return replayed;
}

/* The same requests, whatever serves them. */
Test(pool_keys, a_record_holds_every_block_of_the_job)
{
    pool_replay replays[2];
    static const char *const modes[2] = {"off", "size_class"};
    for (int i = 0; i < 2; i++) {
        char arguments[256];
        snprintf(arguments, sizeof(arguments),
                 "run --quiet " JOB "--set memory.pool.mode=%s --set memory.pool.log=blocks.log",
                 modes[i]);
        run(0, arguments);
        replays[i] = expect_full("blocks.log");
        cr_assert_gt(replays[i].blocks, 10);
    }
    cr_assert_eq(replays[0].lines, replays[1].lines);
}

Test(pool_keys, every_rank_has_a_record_of_its_own)
{
    if (!command_has_mpi())
        cr_skip_test("no MPI in this build");
    run(2, "run --quiet " JOB "--set memory.pool.log=blocks.log");
    expect_full("blocks.log.0");
    expect_full("blocks.log.1");
    cr_assert(!command_file_exists("blocks.log"));
}

/* No more than 512 bytes may be written to a file. */
Test(pool_keys, a_record_that_cannot_be_written_is_an_error)
{
    command_shell(&result, "ulimit -f 1\n"
                           "exec \"$RINGATTN\" run --quiet " JOB "--set memory.pool.log=b.log "
                           ">/dev/null");
    cr_expect_eq(result.code, 3, "%d", result.code);
    cr_expect_eq(command_count_lines(result.err, "error: b.log: cannot write the log: "), 1, "%s",
                 result.err);
    cr_expect_not(command_file_exists("b.log"));
}

/* The studies, shorter. Where a variant has no pool, its record is replayed against one. */
static const struct {
    const char *name, *shorter, *variants[7];
} studies[] = {
    {"base-vs-ring",
     "--set shape.seq=16K",
     {"base", "ring", "base-on-ring-pattern", "ring-on-base-pattern"}},
    {"sliding-window",
     "--set shape.seq=640 --set shape.batch=1",
     {"causal", "window", "window-dense-blocks"}},
    {"memory-profiling",
     "--set shape.seq=320 --set shape.batch=1",
     {"standard", "linear", "linear-cumsum", "linear-chunked", "linear-recurrent", "flash"}},
    {"decomposition", "--set shape.seq=320", {"standard", "flash"}},
    {"attention-benchmark", "--set shape.seq=320 --set shape.head_dim=16", {"standard", "flash"}},
};

Test(pool_keys, records_of_all_studies_are_replayed_in_little_more_than_they_hold)
{
    int replayed = 0;
    for (size_t s = 0; s < sizeof(studies) / sizeof(studies[0]); s++) {
        for (int v = 0; studies[s].variants[v] != NULL; v++) {
            char line[1024];
            snprintf(line, sizeof(line),
                     "run --quiet --config '%s/configs/seeds/%s.yaml' --variant %s %s "
                     "--set memory.pool.log=blocks.log",
                     RA_TEST_SOURCE, studies[s].name, studies[s].variants[v], studies[s].shorter);
            command_run(&result, 0, line);
            if (strstr(result.err, "OpenBLAS") != NULL)
                continue; /* which materialises scores, and is not installed */
            cr_assert_eq(result.code, 0, "%s: exit code %d\n%s", line, result.code, result.err);
            expect_full("blocks.log");
            replayed++;
        }
    }
    cr_assert_geq(replayed, 14);
}

Test(pool_keys, every_point_of_a_sweep_has_a_record_of_its_own)
{
    static const char sweep[] = "sweep: {shape.seq: [200, 300]}\njob: {repeat: 1}\n";
    command_file_write("sweep.yaml", sweep, strlen(sweep));
    run(0, "bench --quiet --config sweep.yaml --set memory.pool.log=blocks.log");
    expect_full("blocks.log.1");
    expect_full("blocks.log.2");
    cr_assert(!command_file_exists("blocks.log"));
    cr_assert(!command_file_exists("blocks.log.3"));
}

Test(pool_keys, records_of_ranks_are_replayed_in_little_more_than_they_hold)
{
    if (!command_has_mpi())
        cr_skip_test("no MPI in this build");
    run(2, "run --quiet " JOB "--set shape.dtype=bf16 --set ring.head_groups=2 "
           "--set job.repeat=2 --set memory.pool.log=two.log");
    expect_full("two.log.0");
    expect_full("two.log.1");
}

Test(pool_keys, what_cannot_be_is_one_line_and_nothing_written)
{
    command_refused(&result, "run --set memory.pool.mode=driver", 2, "CUDA device");
    command_refused(&result, "run --set ring.variant=base --set memory.pool.mode=size_class", 2,
                    "has no effect with ring.variant: base");
    command_refused(&result, "run --set memory.pool.log=nowhere/blocks.log", 3, "memory.pool.log");
    command_refused(&result, "bench --set memory.pool.log=nowhere/blocks.log", 3,
                    "memory.pool.log");
    command_refused(&result, "ablate --set memory.pool.log=blocks.log", 2,
                    "is for 'run' and 'bench'");
    command_refused(&result, "probe --set memory.pool.log=blocks.log", 2,
                    "is for 'run' and 'bench'");
    cr_expect_eq(command_folder_entries(), 0);
}
