/* Starts the real command as a user would, and holds what it said. */
#ifndef RINGATTN_TESTS_COMMAND_RUNNER_H
#define RINGATTN_TESTS_COMMAND_RUNNER_H

#include <stdbool.h>

enum { OUTPUT_BYTES_MAX = 1 << 16 };

typedef struct command_result {
    int code;
    char out[OUTPUT_BYTES_MAX], err[OUTPUT_BYTES_MAX];
} command_result;

extern char command_folder[64]; /* where commands run; files of a test lie there */

void command_folder_make(void);
void command_folder_remove(void);
/** Entries in the folder, what the runner itself leaves there not counted. */
int command_folder_entries(void);
/** Write a file of the folder. */
void command_file_write(const char *name, const void *data, unsigned long bytes);
bool command_file_exists(const char *name);

/** Whether the build has MPI, so that the command runs on several ranks. */
bool command_has_mpi(void);
/**
 * Run `ringattn ARGUMENTS` in the folder on `ranks` ranks (0: without mpirun), under a shell.
 * A command that has not ended after two minutes is killed and fails the test.
 */
void command_run(command_result *result, int ranks, const char *arguments);
/**
 * Run `ringattn ARGUMENTS` in the folder, and kill it (SIGKILL) once it has written `file`. Fails
 * the test if the command ends by itself.
 */
void command_kill_after(command_result *result, const char *arguments, const char *file);
/** Run any shell text with $RINGATTN standing for the command and $MPIEXEC for mpirun. */
void command_shell(command_result *result, const char *text);
/** Whether the command finds OpenBLAS, without which `attention.kind: standard` is refused. */
bool command_has_openblas(void);
/**
 * Run `ringattn ARGUMENTS` on one rank, and expect that it is refused: this exit code, one error
 * line that says `said`, and nothing on standard output.
 */
void command_refused(command_result *result, const char *arguments, int code, const char *said);
/** Lines of `text` that contain `wanted`. */
int command_count_lines(const char *text, const char *wanted);

#endif
