/* What the makers share: transfers, clocks, lines of failure, reductions, mail between threads. */
#ifndef RINGATTN_COMM_INTERNAL_H
#define RINGATTN_COMM_INTERNAL_H

#include "internal.h"
#include "ringattn/comm.h"

/* What is reduced: int64_t or double. */
typedef enum ra_number { RA_NUMBER_I64, RA_NUMBER_F64 } ra_number;

enum { RA_NUMBER_BYTES = 8 }; /* of either */

/*
 * What a maker, or a wrapper that injects faults, puts in. If an entry is NULL, the host's
 * communicator below (of_host) serves it: heartbeats, looks, and all collectives. Without one,
 * nothing is to be done.
 */
typedef struct ra_comm_ops {
    const char *name;
    ra_status (*start)(ra_comm *comm, const ra_exchange *exchange, ra_transfer **transfer_out);
    void (*poll)(ra_comm *comm); /* NULL: transfers progress by themselves */
    void (*beat)(ra_comm *comm);
    ra_status (*wait)(ra_comm *comm, ra_transfer *transfer);
    int (*missing_peer)(ra_comm *comm, ra_transfer *transfer);
    bool (*memory)(ra_comm *comm, ra_memory *memory_out); /* ra_comm_memory; NULL: false */
    /* Note in heard_ns the heartbeats that came, without waiting; RA_ERR_PEER if a rank failed. */
    ra_status (*look)(ra_comm *comm);
    /* Drop what is in flight; no buffer is touched after it. Ranks that share this one's memory
       learn of it. The communicator is marked as broken already. */
    void (*fail)(ra_comm *comm);
    /* Finish what is in flight, before something else is sent over of_host. NULL: no need. */
    ra_status (*drain)(ra_comm *comm);
    ra_status (*barrier)(ra_comm *comm, const char *operation);
    /* In a window; NULL: by what the window holds, with looks between. */
    ra_status (*meet)(ra_comm *comm, const ra_window *window, const char *operation, int step);
    ra_status (*broadcast)(ra_comm *comm, const char *operation, int root, void *data,
                           size_t bytes);
    ra_status (*reduce)(ra_comm *comm, const char *operation, ra_number number, ra_reduce reduce,
                        void *values, int count);
    void (*abort)(ra_comm *comm, int exit_code); /* NULL: `fail` releases the others */
    void (*destroy)(ra_comm *comm);
} ra_comm_ops;

/* The head of every communicator; a maker's own struct begins with it. */
struct ra_comm {
    const ra_comm_ops *ops;
    int rank, size;
    const int *hosts; /* [size], the maker's */
    int64_t timeout_ms;
    ra_comm_stats stats;
    char host[65];                 /* as long as Linux has them */
    int64_t heard_ns;              /* last heartbeat of another rank; CLOCK_MONOTONIC */
    int64_t beat_ns;               /* last one of this rank */
    int64_t looked_ns, excused_ns; /* ra_waited_ms: last time, and as if there had been a beat */
    int in_flight;                 /* kept by the ra_comm_* functions, as are the stats */
    /* NULL: messages lie in host memory. Else exchanges are carried out one after the other: none
       may need a later one of its own rank to end, and what two ranks send each other in one
       exchange is one exchange on either side. */
    ra_comm *of_host;
    ra_stream *stream;
    ra_comm_watch *watch; /* NULL: none */
    void *watch_context;
    ra_timed timed;
    bool broken; /* ra_comm_is_broken */
};

enum { RA_TRANSFER_MAX = 2 };

/* The head of every maker's transfer. */
struct ra_transfer {
    const char *operation;
    int step;
    int64_t recv_bytes; /* set by ra_comm_start, for the stats */
    bool in_use;
};

/** Fill the head of a communicator: host, deadline, no statistics; `hosts` is for the maker. */
void ra_comm_init(ra_comm *comm, const ra_comm_ops *ops, int rank, int size, int64_t timeout_ms);

/** FNV-1a: `hash`, continued with the bytes of `text`. */
uint64_t ra_hash_text(uint64_t hash, const char *text);

/**
 * How much of the deadline a wait that began at `begin_ns` has used up. To be asked at every look:
 * between two of them an eighth of the deadline passes at most, as who stood still itself, maybe
 * with all others, cannot tell that they are late.
 */
int64_t ra_waited_ms(ra_comm *comm, int64_t begin_ns, int64_t now_ns);

/* Between heartbeats of a rank that is at work. */
int64_t ra_beat_interval_ms(const ra_comm *comm);

/** Whether a heartbeat is due; then notes that one is sent at `now_ns`. */
bool ra_beat_is_due(ra_comm *comm, int64_t now_ns);

/** ra_comm_ops.look, once more after a failure too: RA_ERR_PEER where broken. */
RA_CHECKED ra_status ra_comm_look(ra_comm *comm);
/** This rank fails without having been asked to: what is in flight is dropped. */
void ra_comm_break(ra_comm *comm);

/* One line each, with rank, host, step (>= 0), peer and operation. */
void ra_comm_log_timeout(const ra_comm *comm, const char *operation, int step, int peer);
/** The same with what was in flight at its end. */
void ra_comm_log_timeout_with(const ra_comm *comm, const char *operation, int step, int peer,
                              const char *record);
/** Where nobody knows who is missing; `advice` follows the line. */
void ra_comm_log_timeout_of_some(const ra_comm *comm, ra_log_level level, const char *operation,
                                 const char *advice);
/** "rank 2 on host h, step 3", for such lines; a step below 0 is left out. Returns `text`. */
const char *ra_comm_where(const ra_comm *comm, int step, char *text, size_t bytes);
/** @param sent_bytes negative: unknown, but more than `expected_bytes` */
void ra_comm_log_mismatch(const ra_comm *comm, const char *operation, int step, int peer,
                          int64_t sent_bytes, int64_t expected_bytes);
/** `peer` takes part in another collective than `comm`'s rank, which is in `operation`. */
void ra_comm_log_disagreement(const ra_comm *comm, const char *operation, int peer);

/** Count the ranks of `rank`'s host. */
int ra_hosts_count_local(const int *hosts, int size, int rank);
/** Count those of them before `rank`. */
int ra_hosts_place(const int *hosts, int rank);

/** Wait in a window, with ra_comm_look between looks at the meeting. */
RA_CHECKED ra_status ra_window_meet(ra_comm *comm, const ra_window *window, const char *operation,
                                    int step);

/** ra_comm_reduce_i64 or ra_comm_reduce_f64. */
RA_CHECKED ra_status ra_comm_reduce(ra_comm *comm, const char *operation, ra_number number,
                                    ra_reduce reduce, void *values, int count);
/* values[i] = values[i] (reduce) more[i]; called in the order of ranks. NaN stays NaN. */
void ra_reduce_fold(ra_number number, ra_reduce reduce, void *values, const void *more, int count);

/* ---- mail: messages between ranks of one process (self, local) ------------------------------ */

/* One message of an exchange, from post to done. */
typedef struct ra_parcel {
    ra_message message;
    size_t sent_bytes; /* once done; of a receive that is refused, not what it asked for */
    bool done;
} ra_parcel;

/* An exchange in flight. */
typedef struct ra_mail {
    ra_transfer base;
    ra_parcel send, recv;
} ra_mail;

/* What one rank has sent to another that has not asked for it, or the other way, in order. */
typedef struct ra_channel {
    ra_parcel *waiting[RA_TRANSFER_MAX];
    int count;
    bool holds_sends;
} ra_channel;

/** A free one of the communicator's two; there is one, because ra_comm_start has counted. */
ra_mail *ra_mail_take(ra_mail mails[RA_TRANSFER_MAX]);
/**
 * Post an exchange of `rank`; whatever meets its counterpart is copied at once. The caller holds
 * the lock of channels[size * size] (from * size + to), if they are shared.
 */
void ra_mail_post(ra_mail *mail, const ra_exchange *exchange, ra_channel *channels, int rank,
                  int size);
/** The peer that has not sent, or else that has not received; -1: none, or the mail is refused. */
int ra_mail_open_peer(const ra_mail *mail);
/** Whether what came has not the length that was asked for. */
bool ra_mail_is_refused(const ra_mail *mail);
/** Log that. @return RA_ERR_PEER */
RA_CHECKED ra_status ra_mail_refuse(const ra_comm *comm, const ra_mail *mail);

/* ---- for tests ------------------------------------------------------------------------------- */

/**
 * Cut messages of an MPI communicator into pieces of `piece_bytes` (1 to INT_MAX) and use
 * `tag_count` tags for them, so that both limits are met with little data. At least 2 tags: two
 * messages of one tag must not be in flight together. The same on every rank, with nothing in
 * flight.
 */
void ra_comm_mpi_set_limits(ra_comm *comm, size_t piece_bytes, int tag_count);

/** Cut messages of a staged communicator into pieces of at most `piece_bytes` (>= 1). */
void ra_comm_staged_set_piece(ra_comm *comm, size_t piece_bytes);

#endif
