/*
 * Writing a trace: {"traceEvents": [...]}, one process per rank, one thread per track, complete
 * events ("ph": "X") with times in microseconds. Only rank 0 touches the file, so only it can fail
 * by itself; it goes on taking what the others send, and tells them at the end.
 */
#include "trace_write.h"
#include "doomed_file.h"

#include "internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE_EVENTS = 4096, PATH_BYTES = 4096 };

/* What a rank sends before its events. */
typedef struct rank_head {
    int64_t count, lost, untimed;
    char host[64];
} rank_head;

RA_STATIC_ASSERT(sizeof(rank_head) == 88, "heads cross between processes");

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct trace_file {
    const char *path;
    char temporary[PATH_BYTES];
    bool in_place;         /* a device or pipe */
    FILE *stream;          /* NULL: not open */
    int cause;             /* errno of the first failure; nothing is written after it */
    bool begun;            /* an event has been written: a comma comes before the next */
    int64_t lost, untimed; /* events of all ranks so far */
} trace_file;

static ra_status file_refuse(const trace_file *file, int cause)
{
    ra_log(RA_LOG_ERROR, "--trace: %s: cannot write the trace: %s", file->path, strerror(cause));
    return RA_ERR_IO;
}

static ra_status file_open(trace_file *file, const char *path)
{
    struct stat info;
    *file = (trace_file){.path = path};
    file->in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    int const length =
        file->in_place ? snprintf(file->temporary, PATH_BYTES, "%s", path)
                       : snprintf(file->temporary, PATH_BYTES, "%s.tmp-%ld", path, (long)getpid());
    if (length >= PATH_BYTES)
        return file_refuse(file, ENAMETOOLONG);
    int const flags = file->in_place ? O_WRONLY : O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    if (!file->in_place)
        ra_doomed_file_set(file->temporary);
    int const fd = open(file->temporary, flags | O_CLOEXEC, 0666);
    file->stream = fd < 0 ? NULL : fdopen(fd, "w");
    if (file->stream != NULL)
        return RA_OK;
    int const cause = errno;
    if (fd >= 0) {
        close(fd);
        if (!file->in_place)
            unlink(file->temporary);
    }
    ra_doomed_file_clear();
    return file_refuse(file, cause);
}

static void put(trace_file *file, const char *format, ...) RA_PRINTF(2, 3);

static void put(trace_file *file, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    if (file->cause == 0 && vfprintf(file->stream, format, args) < 0)
        file->cause = errno;
    va_end(args);
}

/* A name that a crash could take back is not an output; some file systems cannot flush a folder. */
static bool folder_flush(const char *path)
{
    char folder[PATH_BYTES];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof(folder), "%.*s", slash == NULL ? 1 : (int)(slash - path + 1),
             slash == NULL ? "." : path);
    int const fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool const flushed = fsync(fd) == 0 || errno == EINVAL;
    int const cause = errno;
    close(fd);
    errno = cause;
    return flushed;
}

static bool file_publish(const trace_file *file)
{
    if (rename(file->temporary, file->path) != 0)
        return false;
    if (folder_flush(file->path))
        return true;
    int const cause = errno;
    unlink(file->path);
    errno = cause;
    return false;
}

/* Close; where `keep` and nothing has failed the file gets its name, else it is removed. */
static ra_status file_close(trace_file *file, bool keep)
{
    if (file->stream == NULL)
        return RA_OK;
    if (file->cause == 0 && fflush(file->stream) != 0)
        file->cause = errno;
    if (file->cause == 0 && !file->in_place && fsync(fileno(file->stream)) != 0)
        file->cause = errno;
    if (fclose(file->stream) != 0 && file->cause == 0)
        file->cause = errno;
    file->stream = NULL;
    if (file->cause == 0 && keep && !file->in_place && !file_publish(file))
        file->cause = errno;
    if (!file->in_place && (!keep || file->cause != 0))
        unlink(file->temporary);
    ra_doomed_file_clear();
    return file->cause != 0 && keep ? file_refuse(file, file->cause) : RA_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* Microseconds without rounding. */
static void put_us(trace_file *file, const char *name, int64_t ns)
{
    int64_t const size = ns < 0 ? -ns : ns;
    put(file, ",\"%s\":%s%" PRId64 ".%03d", name, ns < 0 ? "-" : "", size / 1000,
        (int)(size % 1000));
}

static void put_member(trace_file *file, const char *name, int64_t value)
{
    if (value != -1)
        put(file, ",\"%s\":%" PRId64, name, value);
}

static void put_separator(trace_file *file)
{
    put(file, file->begun ? ",\n" : "\n");
    file->begun = true;
}

static void put_event(trace_file *file, int rank, const ra_trace_event *event)
{
    ra_trace_kind const kind = (ra_trace_kind)event->kind;
    ra_trace_track const track = ra_trace_kind_track(kind);
    put_separator(file);
    put(file, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d",
        ra_trace_kind_name(kind), track == RA_TRACK_COMPUTE ? "compute" : "communication", rank,
        (int)track);
    put_us(file, "ts", event->begin_ns);
    put_us(file, "dur", event->end_ns - event->begin_ns);
    put(file, ",\"args\":{\"pass\":\"%s\",\"repetition\":%d",
        event->backward ? "backward" : "forward", (int)event->repetition);
    put_member(file, "head_group", event->group);
    put_member(file, "step", event->step);
    put_member(file, "peer", event->peer);
    put_member(file, "bytes", event->bytes);
    put_member(file, "rows", event->rows);
    put(file, "%s}}", event->device ? ",\"clock\":\"device\"" : "");
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
static void put_rank(trace_file *file, int rank, const char *host)
{
    put_separator(file);
    put(file,
        "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{\"name\":\"rank %d "
        "on host %s\"}},\n",
        rank, rank, host);
    put(file,
        "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":"
        "{\"sort_index\":%d}}",
        rank, rank);
    for (int track = 0; track < RA_TRACK_COUNT; track++) {
        put_separator(file);
        put(file,
            "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
            "{\"name\":\"%s\"}},\n",
            rank, track, ra_trace_track_name((ra_trace_track)track));
        put(file,
            "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
            "{\"sort_index\":%d}}",
            rank, track, track);
    }
}

static ra_status put_events(trace_file *file, int rank, const ra_trace_event *events, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (events[i].kind < 0 || events[i].kind >= RA_TRACE_KIND_COUNT) {
            ra_log(RA_LOG_ERROR, "rank %d sent an event of no kind: do all ranks run ringattn %s?",
                   rank, ra_version());
            return RA_ERR_PEER;
        }
        put_event(file, rank, &events[i]);
    }
    return RA_OK;
}

/* ---- from rank to rank ----------------------------------------------------------------------- */

static ra_status transfer(ra_comm *comm, int peer, void *data, size_t bytes, bool sends)
{
    ra_message const message = {peer, data, bytes};
    ra_transfer *posted = NULL;
    ra_status const status = ra_comm_start(comm,
                                           &(ra_exchange){.operation = "gathering the trace",
                                                          .step = -1,
                                                          .send_count = sends,
                                                          .recv_count = !sends,
                                                          .sends = &message,
                                                          .recvs = &message},
                                           &posted);
    return status == RA_OK ? ra_comm_wait(comm, posted) : status;
}

static void put_head(trace_file *file, int rank, rank_head *head)
{
    host_clean(head->host, sizeof(head->host));
    put_rank(file, rank, head->host);
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
    } const events = {ra_trace_events(trace, &count)}; /* a message serves receiving too */
    ra_status status = transfer(comm, 0, &head, sizeof(head), true);
    for (int64_t at = 0; at < count && status == RA_OK; at += PIECE_EVENTS) {
        int64_t const piece = ra_min_i64(PIECE_EVENTS, count - at);
        status = transfer(comm, 0, events.to + at, (size_t)piece * sizeof(*events.to), true);
    }
    return status;
}

static ra_status receive_rank(trace_file *file, ra_comm *comm, int rank, ra_trace_event *piece)
{
    rank_head head;
    RA_ASSERT(piece != NULL); /* there are other ranks: ra_trace_write has taken it */
    ra_status status = transfer(comm, rank, &head, sizeof(head), false);
    if (status != RA_OK)
        return status;
    put_head(file, rank, &head);
    for (int64_t at = 0; at < head.count && status == RA_OK; at += PIECE_EVENTS) {
        int64_t const count = ra_min_i64(PIECE_EVENTS, head.count - at);
        status = transfer(comm, rank, piece, (size_t)count * sizeof(*piece), false);
        if (status == RA_OK)
            status = put_events(file, rank, piece, count);
    }
    return status;
}

/* Ranks take turns, and those that wait do so for one turn at a time: no longer than a deadline. */
static ra_status gather(const ra_trace *trace, ra_comm *comm, trace_file *file,
                        ra_trace_event *piece)
{
    int const rank = ra_comm_rank(comm);
    ra_status status = RA_OK;
    for (int turn = 1; turn < ra_comm_size(comm) && status == RA_OK; turn++) {
        if (rank == 0)
            status = receive_rank(file, comm, turn, piece);
        else if (rank == turn)
            status = send_rank(trace, comm);
        if (status == RA_OK)
            status = ra_comm_barrier(comm, "gathering the trace");
    }
    return status;
}

/* Rank 0's status, on all of them. */
static ra_status tell(ra_comm *comm, ra_status status)
{
    int32_t told = status;
    ra_status const sent = ra_comm_broadcast(comm, "writing the trace", 0, &told, sizeof(told));
    return sent != RA_OK ? sent : (ra_status)told;
}

static void write_own(trace_file *file, const ra_trace *trace, const ra_comm *comm)
{
    rank_head head = head_of(trace, comm);
    int64_t count;
    const ra_trace_event *events = ra_trace_events(trace, &count);
    put(file, "{\"traceEvents\":[");
    put_head(file, 0, &head);
    for (int64_t i = 0; i < count; i++)
        put_event(file, 0, &events[i]);
}

static ra_status finish(trace_file *file, const ra_comm *comm)
{
    put(file,
        "\n],\"displayTimeUnit\":\"ms\",\"otherData\":{\"ringattn\":\"%s\",\"ranks\":%d,"
        "\"lost_events\":%" PRId64 ",\"untimed_events\":%" PRId64 "}}\n",
        ra_version(), ra_comm_size(comm), file->lost, file->untimed);
    ra_status const status = file_close(file, true);
    if (status == RA_OK && file->lost > 0)
        ra_log(RA_LOG_WARNING,
               "--trace: %s: %" PRId64 " events did not fit and are missing: lower job.repeat",
               file->path, file->lost);
    if (status == RA_OK && file->untimed > 0)
        ra_log(RA_LOG_WARNING,
               "--trace: %s: %" PRId64
               " events show when work was handed to a GPU, not when it ran",
               file->path, file->untimed);
    return status;
}

ra_status ra_trace_write(const ra_trace *trace, ra_comm *comm, ra_pool *pool, const char *path)
{
    bool const first = ra_comm_rank(comm) == 0;
    trace_file file = {.path = path};
    ra_block block = {0};
    ra_status status = RA_OK;
    if (first && ra_comm_size(comm) > 1)
        status =
            ra_pool_alloc(pool, RA_MEM_IO, PIECE_EVENTS * sizeof(ra_trace_event), NULL, &block);
    if (first && status == RA_OK)
        status = file_open(&file, path);
    status = tell(comm, status);
    if (status != RA_OK)
        goto free_block;
    if (first)
        write_own(&file, trace, comm);
    status = gather(trace, comm, &file, block.data);
    if (status != RA_OK)
        goto close_file; /* the communicator has failed: there is nobody to tell */
    status = tell(comm, first ? finish(&file, comm) : RA_OK);

close_file:
    if (first) {
        ra_status const ignored = file_close(&file, false);
        (void)ignored;
    }
free_block:
    ra_pool_free(pool, NULL, &block);
    return status;
}
