/*
 * Linked into programs that run under a sanitizer: libraries stay mapped once they are loaded.
 * MPI unloads its plugins before the leak check, which could then neither name the frames of what
 * they still hold nor match them against lsan.supp.
 */
int dlclose(void *handle);

int dlclose(void *handle)
{
    (void)handle;
    return 0;
}
