#include "library.h"

#include <dlfcn.h>
#include <string.h>

void *ra_library_open(const char *const *names, size_t count)
{
    void *library = NULL;
    for (size_t i = 0; i < count && library == NULL; i++) {
        if (names[i][0] != '\0') /* which would be the program itself */
            library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

/* dlsym gives data pointers; that they hold functions is POSIX. */
bool ra_library_find(void *library, const char *name, void *function_out)
{
    void *const found = dlsym(library, name);
    memcpy(function_out, &found, sizeof(found));
    return found != NULL;
}
