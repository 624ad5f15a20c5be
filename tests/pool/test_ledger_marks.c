/* Compositions at moments with a name: kept where they are asked for, bounded, and what they were.
 */
#include "ringattn/pool.h"
#include "support/failing_calloc.h"

#include <criterion/criterion.h>
#include <pthread.h>
#include <string.h>

static ra_ledger *ledger;

static void begin(void)
{
    cr_assert_eq(ra_ledger_create(INT64_MAX - 1, &ledger), RA_OK);
}

static void end(void)
{
    ra_ledger_destroy(ledger);
}

TestSuite(ledger_marks, .init = begin, .fini = end);

Test(ledger_marks, hold_what_the_ledger_held)
{
    const ra_ledger_mark *marks;
    int64_t dropped = -1;
    char name[16] = "first";
    cr_assert_eq(ra_ledger_keep_marks(ledger, 8), RA_OK);
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 100), RA_OK);
    ra_ledger_mark_now(ledger, name, -1, -1);
    memset(name, 'x', sizeof(name)); /* the name was copied */
    cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_SCORES, 30), RA_OK);
    ra_ledger_release(ledger, RA_MEM_QKV, 40);
    ra_ledger_mark_now(ledger, "fifteen letters", 3, 7);
    ra_ledger_release(ledger, RA_MEM_SCORES, 30);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 2);
    cr_expect_eq(dropped, 0);
    cr_expect_str_eq(marks[0].name, "first");
    cr_expect(marks[0].group == -1 && marks[0].step == -1);
    cr_expect_str_eq(marks[1].name, "fifteen letters");
    cr_expect(marks[1].group == 3 && marks[1].step == 7);
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        cr_expect_eq(marks[0].current_bytes[i], i == RA_MEM_QKV ? 100 : 0);
        cr_expect_eq(marks[1].current_bytes[i], i == RA_MEM_QKV ? 60 : i == RA_MEM_SCORES ? 30 : 0);
    }
    ra_ledger_release(ledger, RA_MEM_QKV, 60);
}

Test(ledger_marks, are_not_kept_unless_asked_for)
{
    const ra_ledger_mark *marks;
    int64_t dropped = -1;
    ra_ledger_mark_now(ledger, "unasked", 0, 0);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 0);
    cr_expect_eq(dropped, 0);
    cr_assert_eq(ra_ledger_keep_marks(ledger, 1), RA_OK);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 0);
}

Test(ledger_marks, beyond_the_bound_are_counted)
{
    const ra_ledger_mark *marks;
    int64_t dropped = -1;
    cr_assert_eq(ra_ledger_keep_marks(ledger, 3), RA_OK);
    for (int i = 0; i < 5; i++)
        ra_ledger_mark_now(ledger, "mark", 0, i);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 3);
    cr_expect_eq(dropped, 2);
    cr_expect_eq(marks[2].step, 2);
    ra_ledger_forget_marks(ledger);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 0);
    cr_expect_eq(dropped, 0);
    ra_ledger_mark_now(ledger, "again", 0, 9);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 1);
    cr_expect_eq(marks[0].step, 9);
    cr_assert_eq(ra_ledger_keep_marks(ledger, 2), RA_OK);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 0);
}

Test(ledger_marks, without_memory_for_them_leave_those_before)
{
    const ra_ledger_mark *marks;
    int64_t dropped;
    cr_assert_eq(ra_ledger_keep_marks(ledger, 2), RA_OK);
    ra_ledger_mark_now(ledger, "kept", 0, 0);
    callocs_left = 0;
    ra_status const status = ra_ledger_keep_marks(ledger, 4);
    callocs_left = -1;
    cr_assert_eq(status, RA_ERR_NO_MEMORY);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), 1);
    cr_expect_str_eq(marks[0].name, "kept");
}

enum { THREADS = 4, MARKS = 1000 };

static void *charge_and_mark(void *unused)
{
    for (int i = 0; i < MARKS; i++) {
        cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_QKV, 8), RA_OK);
        cr_assert_eq(ra_ledger_charge(ledger, RA_MEM_IO, 8), RA_OK);
        ra_ledger_mark_now(ledger, "mark", 0, i);
        ra_ledger_release(ledger, RA_MEM_IO, 8);
        ra_ledger_release(ledger, RA_MEM_QKV, 8);
    }
    return unused;
}

/* Whoever marks holds 8 bytes of each; another may be between its two calls. */
Test(ledger_marks, of_several_threads_are_each_a_moment_that_was)
{
    const ra_ledger_mark *marks;
    int64_t dropped;
    pthread_t threads[THREADS];
    cr_assert_eq(ra_ledger_keep_marks(ledger, THREADS * MARKS), RA_OK);
    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, charge_and_mark, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    cr_assert_eq(ra_ledger_read_marks(ledger, &marks, &dropped), THREADS * MARKS);
    for (int i = 0; i < THREADS * MARKS; i++) {
        int64_t const qkv = marks[i].current_bytes[RA_MEM_QKV];
        int64_t const io = marks[i].current_bytes[RA_MEM_IO];
        cr_assert(io >= 8 && io <= qkv && qkv <= 8 * THREADS, "%lld %lld", (long long)qkv,
                  (long long)io);
    }
}
