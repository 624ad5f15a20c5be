#include <criterion/criterion.h>
#include <pthread.h>

static int shared;

static void *add_one(void *context)
{
    (void)context;
    shared++;
    return NULL;
}

/* Passes as far as Criterion can see; run.sh must make it fail. */
Test(race, is_seen_by_the_wrapper)
{
    pthread_t threads[2];
    for (int t = 0; t < 2; t++)
        cr_assert_eq(pthread_create(&threads[t], NULL, add_one, NULL), 0);
    for (int t = 0; t < 2; t++)
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
}
