#include "support/recorded_root.h"

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char recorded_root[PATH_MAX];

void recorded_root_make(void)
{
    strcpy(recorded_root, "/tmp/ringattn-recorded-XXXXXX");
    cr_assert_not_null(mkdtemp(recorded_root));
}

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *ftw)
{
    (void)info, (void)flag, (void)ftw;
    return remove(path);
}

void recorded_root_remove(void)
{
    nftw(recorded_root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

void record(const char *path, const char *text)
{
    char full[2 * PATH_MAX];
    snprintf(full, sizeof(full), "%s%s", recorded_root, path);
    for (char *at = full + strlen(recorded_root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        mkdir(full, 0700);
        *at = '/';
    }
    FILE *const file = fopen(full, "w");
    cr_assert_not_null(file, "%s", full);
    cr_assert_geq(fputs(text, file), 0);
    cr_assert_eq(fclose(file), 0);
}
