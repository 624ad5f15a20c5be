#include "library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

void *ra_library_open(const char *const *names, size_t count)
{
    void *library = NULL;
    for (size_t i = 0; i < count && library == NULL; i++) {
        if (names[i][0] != '\0') /* which would be the program itself */
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

bool ra_library_has_room(int64_t mib, int64_t written_mib)
{
    size_t const bytes = (size_t)mib << 20;
    void *const room =
        mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return false;
    bool const found = mprotect(room, (size_t)written_mib << 20, PROT_READ | PROT_WRITE) == 0;
    return munmap(room, bytes) == 0 && found;
}

/* dlsym gives data pointers; that they hold functions is POSIX. */
bool ra_library_find(void *library, const char *name, void *function_out)
{
    void *const found = dlsym(library, name);
    memcpy(function_out, &found, sizeof(found));
    return found != NULL;
}

bool ra_library_find_all(void *library, const char *soname, const ra_library_symbol *symbols,
                         size_t count, char *why, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if (!ra_library_find(library, symbols[i].name, symbols[i].function_out)) {
            snprintf(why, bytes, "this machine's %s has no %s", soname, symbols[i].name);
            return false;
        }
    return true;
}
