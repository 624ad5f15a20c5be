/*
 * main() for a fuzz target without libFuzzer: run it once over every file of the folders given,
 * so that each corpus is a regression test in every build.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int replay_file(const char *path)
{
    int result = -1;
    FILE *const file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        return -1;
    }
    if (fseek(file, 0, SEEK_END) != 0)
        goto out_close;
    long const bytes = ftell(file);
    if (bytes < 0 || fseek(file, 0, SEEK_SET) != 0)
        goto out_close;
    uint8_t *const data = malloc((size_t)bytes + 1);
    if (data == NULL)
        goto out_close;
    if (fread(data, 1, (size_t)bytes, file) == (size_t)bytes)
        result = LLVMFuzzerTestOneInput(data, (size_t)bytes);
    free(data);
out_close:
    fclose(file);
    if (result != 0)
        fprintf(stderr, "%s: not replayed\n", path);
    return result;
}

/* Number of files replayed, -1 on a failure. */
static int replay_folder(const char *folder)
{
    char path[4096];
    struct dirent *entry;
    int count = 0;
    DIR *const dir = opendir(folder);
    if (dir == NULL) {
        perror(folder);
        return -1;
    }
    while (count >= 0 && (entry = readdir(dir)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
        count = replay_file(path) == 0 ? count + 1 : -1;
    }
    closedir(dir);
    return count;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        int const count = replay_folder(argv[i]);
        if (count <= 0) {
            fprintf(stderr, "%s: %s\n", argv[i], count == 0 ? "an empty corpus" : "failed");
            return 1;
        }
        printf("%s: %d inputs\n", argv[i], count);
    }
    return argc > 1 ? 0 : 1;
}
