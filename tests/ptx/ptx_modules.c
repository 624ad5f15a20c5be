/* Finds kernels in modules, those of a target's own features (sm_90a) too. One is parsed when it is
 * first asked for. */
#include "ptx/ptx_internal.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ENTRY_BYTES = 640 };

static char *read_file(const char *path)
{
    FILE *const file = fopen(path, "r");
    if (file == NULL || fseek(file, 0, SEEK_END) != 0) {
        fprintf(stderr, "ptx: cannot read %s\n", path);
        abort();
    }
    long const bytes = ftell(file);
    rewind(file);
    char *const text = calloc((size_t)bytes + 1, 1);
    if (text == NULL || fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
        fprintf(stderr, "ptx: cannot read %s\n", path);
        abort();
    }
    fclose(file);
    return text;
}

static ptx_kernel *find_in(const char *path, int target, const char *name)
{
    char entry[ENTRY_BYTES], kind[32], special[32];
    char *const text = read_file(path);
    snprintf(entry, sizeof(entry), ".entry %s(", name);
    snprintf(kind, sizeof(kind), ".target sm_%d\n", target);
    snprintf(special, sizeof(special), ".target sm_%da\n", target);
    bool const suits = strstr(text, kind) != NULL || strstr(text, special) != NULL;
    const char *const at = suits ? strstr(text, entry) : NULL;
    ptx_kernel *const kernel =
        at == NULL ? NULL : ptx_parse(path, text, at + strlen(entry) - 1, name);
    free(text);
    return kernel;
}

const ptx_kernel *ptx_kernel_find(const char *folder, int target, const char *name)
{
    static ptx_kernel *kernels;
    size_t const folder_length = strlen(folder);
    for (const ptx_kernel *k = kernels; k != NULL; k = k->next)
        if (k->target == target && strcmp(k->name, name) == 0 &&
            strncmp(k->file, folder, folder_length) == 0)
            return k;
    DIR *const files = opendir(folder);
    ptx_kernel *found = NULL;
    for (struct dirent *entry;
         files != NULL && found == NULL && (entry = readdir(files)) != NULL;) {
        char path[4096];
        size_t const length = strlen(entry->d_name);
        if (length < 4 || strcmp(entry->d_name + length - 4, ".ptx") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        found = find_in(path, target, name);
    }
    if (files != NULL)
        closedir(files);
    if (found != NULL) {
        found->target = target;
        found->next = kernels;
        kernels = found;
    }
    return found;
}

int ptx_kernel_threads(const ptx_kernel *kernel)
{
    return kernel->threads;
}

int ptx_kernel_blocks(const ptx_kernel *kernel)
{
    return kernel->blocks;
}

size_t ptx_kernel_param_bytes(const ptx_kernel *kernel)
{
    return kernel->param_bytes;
}
