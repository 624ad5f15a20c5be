/* The events of all ranks as one file in Chrome's trace format, which Perfetto opens. */
#ifndef RINGATTN_TOOL_TRACE_WRITE_H
#define RINGATTN_TOOL_TRACE_WRITE_H

#include "ringattn/trace.h"

/**
 * Collective. Ranks send their events to rank 0, one rank after the other and in bounded pieces;
 * rank 0 writes them to `path`, under a temporary name until the file is complete. Events that a
 * full trace has lost are said in a warning. Every rank returns the same status, unless the
 * communicator fails.
 *
 * @param path  of rank 0; a device or pipe is written as it is
 * @return RA_ERR_IO  rank 0 could not write; it has said why and left no file behind
 */
RA_CHECKED ra_status ra_trace_write(const ra_trace *trace, ra_comm *comm, const char *path);

#endif
