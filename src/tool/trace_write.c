/*
 * Writing a trace: {"traceEvents": [...]}, one process per rank, one thread per track, complete
 * events ("ph": "X") with times in microseconds. Only rank 0 touches the file, so only it can fail
 * alone; it then still receives what the others send, and tells them at the end.
 */
#include "trace_write.h"

#include "console.h"
#include "output_file.h"

#include "internal.h"

#include <inttypes.h>
#include <stdio.h>

/* Events of a message: 14 KiB, on rank 0's stack. The report has been made: its figures hold only
   if no memory is taken any more. */
enum { PIECE_EVENTS = 256 };

/* What a rank sends before its events. */
typedef struct rank_head {
    int64_t count, lost, untimed;
    char host[72]; /* 64 bytes and their end; no padding behind */
} rank_head;

RA_STATIC_ASSERT(sizeof(rank_head) == 96, "heads cross between processes");

/* What rank 0 writes. */
typedef struct trace_file {
    ra_output output;
    int64_t lost, untimed; /* events of all ranks so far */
} trace_file;

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Microseconds without rounding. */
static void put_us(ra_output *output, const char *name, int64_t ns)
{
    int64_t const size = ns < 0 ? -ns : ns;
    ra_output_put(output, ",\"%s\":%s%" PRId64 ".%03d", name, ns < 0 ? "-" : "", size / 1000,
                  (int)(size % 1000));
}

static void put_member(ra_output *output, const char *name, int64_t value)
{
    if (value != -1)
        ra_output_put(output, ",\"%s\":%" PRId64, name, value);
}

static void put_event(ra_output *output, int rank, const ra_trace_event *event)
{
    ra_trace_kind const kind = (ra_trace_kind)event->kind;
    ra_trace_track const track = ra_trace_kind_track(kind);
    ra_output_put(output, ",\n{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d",
                  ra_trace_kind_name(kind), track == RA_TRACK_COMPUTE ? "compute" : "communication",
                  rank, (int)track);
    put_us(output, "ts", event->begin_ns);
    put_us(output, "dur", event->end_ns - event->begin_ns);
    ra_output_put(output, ",\"args\":{\"pass\":\"%s\",\"repetition\":%d",
                  event->backward ? "backward" : "forward", (int)event->repetition);
    put_member(output, "head_group", event->group);
    put_member(output, "step", event->step);
    put_member(output, "peer", event->peer);
    put_member(output, "bytes", event->bytes);
    put_member(output, "rows", event->rows);
    ra_output_put(output, "%s}}", event->device ? ",\"clock\":\"device\"" : "");
}

/* A host's name as JSON can hold it. */
static void host_clean(char *host, size_t bytes)
{
    host[bytes - 1] = '\0';
    for (char *c = host; *c != '\0'; c++) {
        if (*c < ' ' || *c > '~' || *c == '"' || *c == '\\')
            *c = '?';
    }
}

/* What a viewer shows instead of the numbers of processes and threads, and in which order. */
static void put_rank(ra_output *output, int rank, const char *host)
{
    ra_output_put(output,
                  "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{"
                  "\"name\":\"rank %d "
                  "on host %s\"}},\n",
                  rank > 0 ? ",\n" : "\n", rank, rank, host);
    ra_output_put(output,
                  "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":"
                  "{\"sort_index\":%d}}",
                  rank, rank);
    for (int track = 0; track < RA_TRACK_COUNT; track++) {
        ra_output_put(output,
                      ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
                      "{\"name\":\"%s\"}},\n",
                      rank, track, ra_trace_track_name((ra_trace_track)track));
        ra_output_put(output,
                      "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
                      "{\"sort_index\":%d}}",
                      rank, track, track);
    }
}

static ra_status put_events(ra_output *output, int rank, const ra_trace_event *events,
                            int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (events[i].kind < 0 || events[i].kind >= RA_TRACE_KIND_COUNT) {
            ra_log(RA_LOG_ERROR, "rank %d sent an event of no kind: do all ranks run ringattn %s?",
                   rank, ra_version());
            return RA_ERR_PEER;
        }
        put_event(output, rank, &events[i]);
    }
    return RA_OK;
}

/* ---- from rank to rank ----------------------------------------------------------------------- */

static ra_status transfer(ra_comm *comm, int peer, void *data, size_t bytes, bool sends)
{
    ra_exchange exchange = {.operation = "gathering the trace", .step = -1};
    *(sends ? &exchange.send : &exchange.recv) = (ra_message){peer, data, bytes};
    return ra_comm_exchange(comm, &exchange);
}

static void put_head(trace_file *file, int rank, rank_head *head)
{
    host_clean(head->host, sizeof(head->host));
    put_rank(&file->output, rank, head->host);
    file->lost += head->lost;
    file->untimed += head->untimed;
}

static rank_head head_of(const ra_trace *trace, const ra_comm *comm)
{
    rank_head head = {.lost = ra_trace_lost(trace), .untimed = ra_trace_untimed(trace)};
    ra_trace_events(trace, &head.count);
    snprintf(head.host, sizeof(head.host), "%s", ra_comm_host(comm));
    return head;
}

static ra_status send_rank(const ra_trace *trace, ra_comm *comm)
{
    rank_head head = head_of(trace, comm);
    int64_t count;
    union {
        const ra_trace_event *from;
        ra_trace_event *to;
    } const events = {ra_trace_events(trace, &count)}; /* not const, but only read here */
    ra_status status = transfer(comm, 0, &head, sizeof(head), true);
    for (int64_t at = 0; at < count && status == RA_OK; at += PIECE_EVENTS) {
        int64_t const piece = ra_min_i64(PIECE_EVENTS, count - at);
        status = transfer(comm, 0, events.to + at, (size_t)piece * sizeof(*events.to), true);
    }
    return status;
}

static ra_status receive_rank(trace_file *file, ra_comm *comm, int rank)
{
    rank_head head;
    ra_trace_event piece[PIECE_EVENTS];
    ra_status status = transfer(comm, rank, &head, sizeof(head), false);
    if (status != RA_OK)
        return status;
    put_head(file, rank, &head);
    for (int64_t at = 0; at < head.count && status == RA_OK; at += PIECE_EVENTS) {
        int64_t const count = ra_min_i64(PIECE_EVENTS, head.count - at);
        status = transfer(comm, rank, piece, (size_t)count * sizeof(*piece), false);
        if (status == RA_OK)
            status = put_events(&file->output, rank, piece, count);
    }
    return status;
}

/* Ranks take turns, and waiting ranks wait for one turn at a time: no longer than a deadline. */
static ra_status gather(const ra_trace *trace, ra_comm *comm, trace_file *file)
{
    int const rank = ra_comm_rank(comm);
    ra_status status = RA_OK;
    for (int turn = 1; turn < ra_comm_size(comm) && status == RA_OK; turn++) {
        if (rank == 0)
            status = receive_rank(file, comm, turn);
        else if (rank == turn)
            status = send_rank(trace, comm);
        if (status == RA_OK)
            status = ra_comm_barrier(comm, "gathering the trace");
    }
    return status;
}

static void write_own(trace_file *file, const ra_trace *trace, const ra_comm *comm)
{
    rank_head head = head_of(trace, comm);
    int64_t count;
    const ra_trace_event *events = ra_trace_events(trace, &count);
    ra_output_put(&file->output, "{\"traceEvents\":[");
    put_head(file, 0, &head);
    for (int64_t i = 0; i < count; i++)
        put_event(&file->output, 0, &events[i]);
}

static ra_status finish(trace_file *file, const ra_comm *comm)
{
    ra_output_put(&file->output,
                  "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"ringattn\":\"%s\",\"ranks\":%d,"
                  "\"lost_events\":%" PRId64 ",\"untimed_events\":%" PRId64 "}}\n",
                  ra_version(), ra_comm_size(comm), file->lost, file->untimed);
    ra_status const status = ra_output_close(&file->output, true);
    if (status == RA_OK && file->lost > 0)
        ra_console_tell(RA_LOG_WARNING,
                        "--trace: %s: %" PRId64
                        " events did not fit and are missing: lower job.repeat",
                        file->output.path, file->lost);
    if (status == RA_OK && file->untimed > 0)
        ra_console_tell(RA_LOG_WARNING,
                        "--trace: %s: %" PRId64
                        " events show when work was handed to a GPU, not when it ran",
                        file->output.path, file->untimed);
    return status;
}

ra_status ra_trace_write(const ra_trace *trace, ra_comm *comm, const char *path)
{
    static const char operation[] = "writing the trace";
    bool const first = ra_comm_rank(comm) == 0;
    trace_file file = {0};
    ra_status status = RA_OK;
    if (first)
        status = ra_output_open(&file.output, path, "--trace: ", "cannot write the trace");
    status = ra_comm_agree(comm, operation, status);
    if (status == RA_OK && first)
        write_own(&file, trace, comm);
    if (status == RA_OK)
        status = gather(trace, comm, &file);
    if (status == RA_OK) /* else all know already, or the communicator has failed */
        status = ra_comm_agree(comm, operation, first ? finish(&file, comm) : RA_OK);
    if (first) {
        ra_status const ignored = ra_output_close(&file.output, false); /* unless it is done */
        (void)ignored;
    }
    return status;
}
