#include "pool/pool_internal.h"
#include "support/captured_log.h"
#include "support/test_rng.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

enum { CATEGORIES = RA_MEM_CATEGORY_COUNT, THREADS = 4, THREAD_OPERATIONS = 20000 };

static int64_t sum(const int64_t *values)
{
    int64_t total = 0;
    for (int i = 0; i < CATEGORIES; i++)
        total += values[i];
    return total;
}

static void expect_invariants(const ra_ledger_snapshot *snapshot)
{
    cr_assert_eq(sum(snapshot->current_bytes), snapshot->reserved_bytes);
    cr_assert_eq(sum(snapshot->at_peak_bytes), snapshot->reserved_peak_bytes);
    cr_assert_leq(snapshot->reserved_bytes, snapshot->reserved_peak_bytes);
    cr_assert_leq(snapshot->reserved_peak_bytes, snapshot->limit_bytes);
    for (int i = 0; i < CATEGORIES; i++) {
        cr_assert_geq(snapshot->current_bytes[i], 0);
        cr_assert_leq(snapshot->current_bytes[i], snapshot->peak_bytes[i]);
        cr_assert_leq(snapshot->at_peak_bytes[i], snapshot->peak_bytes[i]);
    }
}

static void expect_equal(const ra_ledger_snapshot *a, const ra_ledger_snapshot *b)
{
    for (int i = 0; i < CATEGORIES; i++) {
        cr_assert_eq(a->current_bytes[i], b->current_bytes[i]);
        cr_assert_eq(a->peak_bytes[i], b->peak_bytes[i]);
        cr_assert_eq(a->at_peak_bytes[i], b->at_peak_bytes[i]);
        cr_assert_eq(a->alloc_count[i], b->alloc_count[i]);
    }
    cr_assert_eq(a->reserved_bytes, b->reserved_bytes);
    cr_assert_eq(a->reserved_peak_bytes, b->reserved_peak_bytes);
    cr_assert_eq(a->limit_bytes, b->limit_bytes);
}

/* What a ledger must say after a charge that fits, in the plainest words. */
static void model_charge(ra_ledger_snapshot *model, int category, int64_t bytes)
{
    model->current_bytes[category] += bytes;
    model->alloc_count[category] += category != RA_MEM_POOL_IDLE;
    if (model->current_bytes[category] > model->peak_bytes[category])
        model->peak_bytes[category] = model->current_bytes[category];
    model->reserved_bytes = sum(model->current_bytes);
    if (model->reserved_bytes > model->reserved_peak_bytes) {
        model->reserved_peak_bytes = model->reserved_bytes;
        for (int i = 0; i < CATEGORIES; i++)
            model->at_peak_bytes[i] = model->current_bytes[i];
    }
}

Test(ledger, agrees_with_a_model_after_every_random_operation)
{
    enum { OPERATIONS = 20000, LIMIT = 100000 };
    test_rng rng = {1};
    ra_ledger *ledger;
    ra_ledger_snapshot model = {.limit_bytes = LIMIT}, snapshot;
    captured_log log;
    int refused = 0;

    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(LIMIT, &ledger), RA_OK);
    for (int i = 0; i < OPERATIONS; i++) {
        int const category = (int)test_rng_between(&rng, 0, CATEGORIES - 1);
        int64_t bytes = test_rng_between(&rng, 0, 19999);
        if (test_rng_chance(&rng, 0.6)) {
            bool const fits = model.reserved_bytes + bytes <= LIMIT;
            ra_status const status = ra_ledger_charge(ledger, (ra_category)category, bytes);
            cr_assert_eq(status, fits ? RA_OK : RA_ERR_NO_MEMORY);
            refused += !fits;
            if (fits)
                model_charge(&model, category, bytes);
        } else {
            bytes %= model.current_bytes[category] + 1;
            ra_ledger_release(ledger, (ra_category)category, bytes);
            model.current_bytes[category] -= bytes;
            model.reserved_bytes -= bytes;
        }
        ra_ledger_read(ledger, &snapshot);
        expect_equal(&snapshot, &model);
        expect_invariants(&snapshot);
    }
    cr_assert_gt(refused, 0, "the limit was never reached");
    cr_assert_eq(log.count, refused, "one line for each refusal");
    ra_ledger_destroy(ledger);
}

typedef struct worker {
    ra_ledger *ledger;
    test_rng rng;
    int64_t held_bytes[CATEGORIES];
    int64_t charges[CATEGORIES];
} worker;

static void *charge_and_release(void *context)
{
    worker *const self = context;
    for (int i = 0; i < THREAD_OPERATIONS; i++) {
        int const category = (int)test_rng_between(&self->rng, 0, CATEGORIES - 1);
        int64_t const bytes = test_rng_between(&self->rng, 0, 999);
        if (self->held_bytes[category] >= bytes && test_rng_chance(&self->rng, 0.5)) {
            ra_ledger_release(self->ledger, (ra_category)category, bytes);
            self->held_bytes[category] -= bytes;
        } else if (ra_ledger_charge(self->ledger, (ra_category)category, bytes) == RA_OK) {
            self->held_bytes[category] += bytes;
            self->charges[category]++;
        }
    }
    return NULL;
}

Test(ledger, loses_nothing_between_threads)
{
    enum { LIMIT = 200000 };
    pthread_t threads[THREADS];
    worker workers[THREADS];
    ra_ledger *ledger;
    ra_ledger_snapshot snapshot;
    captured_log log;

    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(LIMIT, &ledger), RA_OK);
    for (int t = 0; t < THREADS; t++) {
        workers[t] = (worker){.ledger = ledger, .rng = {(uint64_t)t}};
        cr_assert_eq(pthread_create(&threads[t], NULL, charge_and_release, &workers[t]), 0);
    }
    for (int i = 0; i < 2000; i++) { /* snapshots taken in the middle of it are consistent too */
        ra_ledger_read(ledger, &snapshot);
        expect_invariants(&snapshot);
    }
    for (int t = 0; t < THREADS; t++)
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
    ra_ledger_read(ledger, &snapshot);
    expect_invariants(&snapshot);
    for (int i = 0; i < CATEGORIES; i++) {
        int64_t held = 0, charges = 0;
        for (int t = 0; t < THREADS; t++) {
            held += workers[t].held_bytes[i];
            charges += workers[t].charges[i];
        }
        cr_assert_eq(snapshot.current_bytes[i], held);
        cr_assert_eq(snapshot.alloc_count[i], i != RA_MEM_POOL_IDLE ? charges : 0);
    }
    ra_ledger_destroy(ledger);
}

Test(ledger, remembers_the_composition_of_the_highest_moment)
{
    ra_ledger *ledger;
    ra_ledger_snapshot snapshot;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 300), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_IO, 500), RA_OK); /* 800 */
    ra_ledger_release(ledger, RA_MEM_IO, 500);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_OUTPUT, 400), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_LSE, 150), RA_OK); /* 850: the peak */
    ra_ledger_release(ledger, RA_MEM_QKV, 300);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_LSE, 200), RA_OK); /* 750 */
    ra_ledger_read(ledger, &snapshot);
    cr_assert_eq(snapshot.reserved_peak_bytes, 850);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_QKV], 300);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_OUTPUT], 400);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_LSE], 150);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_IO], 0);
    cr_assert_eq(snapshot.peak_bytes[RA_MEM_IO], 500);
    cr_assert_eq(snapshot.peak_bytes[RA_MEM_LSE], 350);
    expect_invariants(&snapshot);
    ra_ledger_destroy(ledger);
}

Test(ledger, says_nothing_of_refusals_while_it_is_hushed)
{
    captured_log said;
    ra_ledger *ledger;
    cr_assert_eq(ra_ledger_create(100, &ledger), RA_OK);
    captured_log_begin(&said);
    ra_ledger_hush(ledger, true);
    cr_expect_eq(ra_ledger_charge(ledger, RA_MEM_IO, 101), RA_ERR_NO_MEMORY);
    cr_expect_eq(said.count, 0, "%s", said.line);
    ra_ledger_hush(ledger, false);
    cr_expect_eq(ra_ledger_charge(ledger, RA_MEM_IO, 101), RA_ERR_NO_MEMORY);
    cr_expect_eq(said.errors, 1);
    ra_ledger_destroy(ledger);
}

Test(ledger, grants_the_limit_to_the_last_byte_and_not_one_more)
{
    ra_ledger *ledger;
    ra_ledger_snapshot before, after;
    captured_log log;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(1000, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 600), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_GRADS, 400), RA_OK);
    ra_ledger_read(ledger, &before);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_GRADS, 1), RA_ERR_NO_MEMORY);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_GRADS, INT64_MAX), RA_ERR_NO_MEMORY);
    ra_ledger_read(ledger, &after);
    expect_equal(&after, &before);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_GRADS, 0), RA_OK);
    ra_ledger_release(ledger, RA_MEM_QKV, 1);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_GRADS, 1), RA_OK);
    ra_ledger_destroy(ledger);
}

/* What is on its way is granted to nobody else. */
Test(ledger, keeps_a_promise_until_it_is_settled_or_broken)
{
    ra_ledger *ledger;
    ra_ledger_snapshot snapshot;
    captured_log log;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(1000, &ledger), RA_OK);
    cr_assert(ra_ledger_promise(ledger, 600));
    cr_assert_eq(ra_ledger_headroom(ledger), 400);
    cr_assert_not(ra_ledger_promise(ledger, 401));
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 401), RA_ERR_NO_MEMORY);
    cr_assert(ra_ledger_promise(ledger, 400));
    ra_ledger_break(ledger, 400);
    ra_ledger_settle(ledger, RA_MEM_IO, 600, 0);
    cr_assert_eq(ra_ledger_headroom(ledger), 400);
    ra_ledger_read(ledger, &snapshot);
    cr_assert_eq(snapshot.reserved_bytes, 600);
    expect_invariants(&snapshot);
    ra_ledger_destroy(ledger);
}

/* Idle bytes are no allocation, and of equal peaks the one with fewer of them is kept. */
Test(ledger, knows_idle_bytes_from_others)
{
    ra_ledger *ledger;
    ra_ledger_snapshot snapshot;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_IO, 500), RA_OK);
    ra_ledger_move(ledger, RA_MEM_IO, RA_MEM_POOL_IDLE, 200);
    ra_ledger_release(ledger, RA_MEM_IO, 100);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 100), RA_OK);
    ra_ledger_read(ledger, &snapshot);
    cr_assert_eq(snapshot.alloc_count[RA_MEM_POOL_IDLE], 0);
    cr_assert_eq(snapshot.reserved_peak_bytes, 500);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_POOL_IDLE], 0);
    cr_assert_eq(snapshot.at_peak_bytes[RA_MEM_IO], 500);
    expect_invariants(&snapshot);
    ra_ledger_destroy(ledger);
}

/* Of moments with as much the one with the least of it idle is remembered, not the first. */
Test(ledger, remembers_what_the_highest_moment_was_used_for)
{
    ra_ledger *ledger;
    ra_ledger_snapshot now;
    cr_assert_eq(ra_ledger_create(1000, &ledger), RA_OK);
    cr_assert(ra_ledger_promise(ledger, 100));
    ra_ledger_settle(ledger, RA_MEM_QKV, 100, 80);
    ra_ledger_move(ledger, RA_MEM_POOL_IDLE, RA_MEM_GRADS, 70);
    ra_ledger_move(ledger, RA_MEM_QKV, RA_MEM_POOL_IDLE, 20);
    ra_ledger_read(ledger, &now);
    cr_expect_eq(now.reserved_peak_bytes, 100);
    cr_expect_eq(now.at_peak_bytes[RA_MEM_QKV], 20);
    cr_expect_eq(now.at_peak_bytes[RA_MEM_GRADS], 70);
    cr_expect_eq(now.at_peak_bytes[RA_MEM_POOL_IDLE], 10);
    ra_ledger_destroy(ledger);
}

Test(ledger, refuses_in_one_line_with_what_is_held_and_what_was_asked)
{
    int64_t const mib = 1 << 20;
    ra_ledger *ledger;
    captured_log log;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(512 * mib, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 384 * mib), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_OUTPUT, 64 * mib), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_ACCUMULATOR, 65 * mib), RA_ERR_NO_MEMORY);
    cr_assert_eq(log.count, 1);
    cr_assert(strchr(log.line, '\n') == NULL);
    static const char *const parts[] = {
        "refused 65.0 MiB (68157440 bytes) for accumulator",
        "limit 512.0 MiB",
        "held 448.0 MiB:",
        "qkv=384.0 MiB",
        "output=64.0 MiB",
        "): take more ranks or a shorter sequence",
    };
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        cr_assert(strstr(log.line, parts[i]) != NULL, "'%s' is not in '%s'", parts[i], log.line);
    cr_assert(strstr(log.line, "lse=") == NULL, "%s", log.line);
    ra_ledger_destroy(ledger);
}

/* None of them is shown as 0.00 MiB. */
Test(ledger, refuses_with_small_sizes_in_their_own_units)
{
    ra_ledger *ledger;
    captured_log log;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(2048, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_LSE, 512), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 1537), RA_ERR_NO_MEMORY);
    cr_assert_not_null(strstr(log.line, "refused 1.5 KiB (1537 bytes) for qkv "
                                        "(limit 2.0 KiB, held 512 B: lse=512 B): take"),
                       "%s", log.line);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 1023), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 1000), RA_ERR_NO_MEMORY);
    cr_assert_not_null(strstr(log.line, "refused 1000 B for qkv (limit"), "%s", log.line);
    ra_ledger_destroy(ledger);
}

/* Every category at its widest number: still one whole line. */
Test(ledger, refuses_in_one_whole_line_when_every_category_is_full)
{
    ra_ledger *ledger;
    captured_log log;
    captured_log_begin(&log);
    cr_assert_eq(ra_ledger_create(INT64_MAX - 1, &ledger), RA_OK);
    for (int i = 0; i < CATEGORIES; i++)
        cr_assert_eq(ra_ledger_charge(ledger, (ra_category)i, INT64_MAX / CATEGORIES), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_PATTERN_CACHE, INT64_MAX), RA_ERR_NO_MEMORY);
    cr_assert_eq(log.count, 1);
    cr_assert(strstr(log.line, " context=") != NULL, "%s", log.line);
    static const char todo[] = "): take more ranks or a shorter sequence";
    cr_assert_str_eq(strrchr(log.line, ')'), todo, "cut: %s", log.line);
    ra_ledger_destroy(ledger);
}

Test(ledger, names_every_category_differently)
{
    for (int i = 0; i < CATEGORIES; i++) {
        cr_assert(ra_category_name((ra_category)i)[0] != '\0');
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(ra_category_name((ra_category)i), ra_category_name((ra_category)j));
    }
    cr_assert_str_eq(ra_category_name(RA_MEM_COMM_BUFFER), "comm_buffer");
}

Test(ledger, stops_a_caller_who_releases_more_than_was_charged, .signal = SIGABRT)
{
    ra_ledger *ledger;
    cr_assert_eq(ra_ledger_create(1000, &ledger), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_IO, 10), RA_OK);
    ra_ledger_release(ledger, RA_MEM_IO, 11);
}
