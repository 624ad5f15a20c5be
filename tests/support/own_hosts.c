#include "support/own_hosts.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char each[] = "each its own";

void own_hosts_begin(void)
{
    setenv("NCCL_HOSTID", each, 1);
}

char *__real_getenv(const char *name);
char *__wrap_getenv(const char *name);
char *__wrap_getenv(const char *name)
{
    static _Thread_local char own[32]; /* whose address tells the threads apart */
    char *const value = __real_getenv(name);
    if (value == NULL || strcmp(name, "NCCL_HOSTID") != 0 || strcmp(value, each) != 0)
        return value;
    snprintf(own, sizeof(own), "%p", (void *)own);
    return own;
}
