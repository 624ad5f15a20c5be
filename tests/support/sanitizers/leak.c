#include <criterion/criterion.h>
#include <stdlib.h>

static void *volatile kept;

/* Passes as far as Criterion can see; run.sh must make it fail. */
Test(leak, is_seen_by_the_wrapper)
{
    kept = malloc(12345);
    kept = NULL;
}
