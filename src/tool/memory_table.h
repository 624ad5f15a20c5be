/* Peaks by category side by side: a column per variant, a row per category. */
#ifndef RINGATTN_TOOL_MEMORY_TABLE_H
#define RINGATTN_TOOL_MEMORY_TABLE_H

#include "report.h"

/* One variant: its report's fullest rank. Both are borrowed. */
typedef struct ra_memory_column {
    const char *name;        /* 11 bytes of it are shown */
    const ra_report *report; /* NULL: there is nothing but the name, shown as "-" */
} ra_memory_column;

/** Categories that hold nothing in any column are left out. To standard output. */
void ra_memory_table_print(const ra_memory_column *columns, int count);
/**
 * The same of the host's memory beside that of GPUs, with "-" where none computes; nothing if none
 * does in any column.
 * @return whether there was anything
 */
bool ra_memory_table_print_host(const ra_memory_column *columns, int count);
/** The start of a row, padded so that values of `ra_memory_table_cell` come below the columns. */
void ra_memory_table_begin(const char *name);
void ra_memory_table_cell(const char *text);
void ra_memory_table_end(void);

#endif
