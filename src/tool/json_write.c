#include "tool_info.h"

#include "output_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ra_status ra_text_write(const char *text, const char *path)
{
    if (path != NULL)
        return ra_output_write(path, "cannot write the report", text);
    fputs(text, stdout); /* a failure stays with the stream */
    return ra_stdout_check(" the report");
}

ra_status ra_json_write(json_t *root, const char *path)
{
    char *text = root != NULL ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    size_t const length = text != NULL ? strlen(text) : 0;
    char *line = text != NULL ? realloc(text, length + 2) : NULL; /* and a newline */
    json_decref(root);
    if (line == NULL) {
        free(text);
        ra_log(RA_LOG_ERROR, "out of memory while writing the report");
        return RA_ERR_NO_MEMORY;
    }
    memcpy(line + length, "\n", 2);
    ra_status const status = ra_text_write(line, path);
    free(line);
    return status;
}
