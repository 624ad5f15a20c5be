/*
 * What the pool costs, and how full it keeps what it takes. Not a test:
 *     build/release/tests/pool/pool_bench             time of a block that is taken and given back
 *     build/release/tests/pool/pool_bench LOG...      replays what memory.pool.log has recorded
 * Replays ask for address space only, so that logs of large jobs can be replayed anywhere.
 */
#include "support/pool_replay.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { ROUNDS = 15, PAIRS = 20000, LIVE = 64 };

static void check(ra_status status)
{
    if (status != RA_OK)
        exit(1); /* what failed has been logged */
}

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e9 * (double)now.tv_sec + (double)now.tv_nsec;
}

static int compare_doubles(const void *a, const void *b)
{
    double const x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* A block among LIVE others of its size, taken and given back; the median and the best round. */
static void measure(ra_pool_mode mode, size_t bytes)
{
    double times[ROUNDS];
    ra_ledger *ledger;
    ra_pool *pool;
    ra_block blocks[LIVE];
    check(ra_ledger_create(INT64_MAX, &ledger));
    check(ra_pool_create(
        &(ra_pool_config){.mode = mode, .memory = ra_memory_host(), .ledger = ledger}, &pool));
    for (int i = 0; i < LIVE; i++)
        check(ra_pool_alloc(pool, RA_MEM_IO, bytes, NULL, &blocks[i]));
    int const pairs = mode == RA_POOL_OFF ? PAIRS / 50 : PAIRS;
    for (int r = 0; r < ROUNDS; r++) {
        double const begin_ns = now_ns();
        for (int i = 0; i < pairs; i++) {
            ra_block *const block = &blocks[i * 7 % LIVE];
            ra_pool_free(pool, NULL, block);
            check(ra_pool_alloc(pool, RA_MEM_IO, bytes, NULL, block));
        }
        times[r] = (now_ns() - begin_ns) / pairs;
    }
    qsort(times, ROUNDS, sizeof(times[0]), compare_doubles);
    printf("%-12s %10zu %12.1f %12.1f\n", ra_pool_mode_name(mode), bytes, times[ROUNDS / 2],
           times[0]);
    for (int i = 0; i < LIVE; i++)
        ra_pool_free(pool, NULL, &blocks[i]);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

/* Blocks of all sizes at once, most of them small: as a hit finds bins that are not its own size.
 */
static void measure_mixed(void)
{
    enum { MIXED = 1000 };
    static ra_block blocks[MIXED];
    double times[ROUNDS];
    uint64_t state = 1;
    ra_ledger *ledger;
    ra_pool *pool;
    ra_pool_stats stats = {0};
    ra_pool_config config = {
        .mode = RA_POOL_SIZE_CLASS, .memory = ra_memory_host(), .trim_bytes = INT64_MAX};
    check(ra_ledger_create(INT64_MAX, &ledger));
    config.ledger = ledger;
    check(ra_pool_create(&config, &pool));
    for (int r = -ROUNDS; r < ROUNDS; r++) { /* half of them until all are hits */
        double const begin_ns = now_ns();
        if (r == 0)
            ra_pool_read_stats(pool, &stats);
        for (int i = 0; i < PAIRS; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ra_block *const block = &blocks[(state >> 33) % MIXED];
            size_t const most = (size_t)256 << (state >> 60);
            ra_pool_free(pool, NULL, block);
            check(ra_pool_alloc(pool, RA_MEM_IO, most - (state >> 20) % (most / 2), NULL, block));
        }
        if (r >= 0)
            times[r] = (now_ns() - begin_ns) / PAIRS;
    }
    int64_t const misses = stats.misses;
    ra_pool_read_stats(pool, &stats);
    qsort(times, ROUNDS, sizeof(times[0]), compare_doubles);
    printf("%-12s %10s %12.1f %12.1f   (%" PRId64 " misses in %d)\n", "size_class", "any",
           times[ROUNDS / 2], times[0], stats.misses - misses, ROUNDS * PAIRS);
    for (int i = 0; i < MIXED; i++)
        ra_pool_free(pool, NULL, &blocks[i]);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

static void measure_all(void)
{
    static const size_t sizes[] = {256, 4096, 40000, 1 << 20};
    printf("%-12s %10s %12s %12s\n", "mode", "bytes", "ns, median", "ns, best");
    for (int mode = RA_POOL_OFF; mode <= RA_POOL_SIZE_CLASS; mode++)
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            measure((ra_pool_mode)mode, sizes[i]);
    measure_mixed();
}

/* ---- replay ---------------------------------------------------------------------------------- */

/* As host memory: what a job's pool held on a CPU. */
static size_t pages_round(const ra_memory *memory, size_t bytes)
{
    ra_memory const host = ra_memory_host();
    (void)memory;
    return host.ops->round(&host, bytes);
}

static ra_status pages_alloc(const ra_memory *memory, size_t bytes, void **ptr_out)
{
    (void)memory;
    *ptr_out = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return *ptr_out != MAP_FAILED ? RA_OK : RA_ERR_NO_MEMORY;
}

static void pages_free(const ra_memory *memory, void *ptr, size_t bytes)
{
    (void)memory;
    (void)munmap(ptr, bytes);
}

static ra_status pages_available(const ra_memory *memory, int64_t *bytes_out)
{
    (void)memory;
    *bytes_out = INT64_MAX;
    return RA_OK;
}

static const ra_memory_ops pages_ops = {.name = "address space",
                                        .round = pages_round,
                                        .alloc = pages_alloc,
                                        .free = pages_free,
                                        .available = pages_available};

static void replay(const char *path)
{
    ra_ledger *ledger;
    ra_pool *pool;
    pool_replay replayed;
    ra_pool_stats stats;
    FILE *const file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "pool_bench: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    check(ra_ledger_create(INT64_MAX, &ledger));
    check(ra_pool_create(&(ra_pool_config){.mode = RA_POOL_SIZE_CLASS,
                                           .memory = {&pages_ops, NULL},
                                           .ledger = ledger,
                                           .measures_time = true},
                         &pool));
    ra_status const status = pool_replay_run(file, pool, &replayed);
    fclose(file);
    if (status == RA_ERR_IO)
        fprintf(stderr, "pool_bench: %s: line %" PRId64 ": not a line of a pool's event log\n",
                path, replayed.lines + 1);
    check(status);
    ra_pool_read_stats(pool, &stats);
    printf("%-32s %8" PRId64 " %15" PRId64 " %15" PRId64 " %8.4f %8.4f %6.1f %7" PRId64 "\n", path,
           replayed.blocks, stats.bytes[RA_POOL_ALLOCATED].peak, stats.bytes[RA_POOL_RESERVED].peak,
           ra_pool_utilisation(&stats), ra_pool_internal_fragmentation(&stats),
           100 * (double)stats.hits / (double)(stats.hits + stats.misses), stats.alloc_p50_ns);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
}

int main(int count, char **arguments)
{
    if (count < 2) {
        measure_all();
        return 0;
    }
    printf("%-32s %8s %15s %15s %8s %8s %6s %7s\n", "log", "blocks", "peak allocated",
           "peak reserved", "used", "rounding", "hits %", "p50 ns");
    for (int i = 1; i < count; i++)
        replay(arguments[i]);
    return 0;
}
