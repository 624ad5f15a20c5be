/*
 * What messages of the stand-in for NCCL go through: memory that ranks share, be they threads or
 * processes of one machine.
 */
#ifndef RINGATTN_TESTS_STANDIN_WIRE_H
#define RINGATTN_TESTS_STANDIN_WIRE_H

#include <stdatomic.h>
#include <stddef.h>

enum { WIRE_RANKS_MAX = 20, WIRE_PIECE_BYTES = 1 << 16 };

/* What one rank hands to another, piece by piece: the one fills it, the other empties it. */
typedef struct wire_slot {
    atomic_int full;
    size_t total_bytes, piece_bytes; /* of the message, and of what lies here */
    char piece[WIRE_PIECE_BYTES];
} wire_slot;

/* Those who came with one id. */
typedef struct wire {
    atomic_int here_count;
    wire_slot slots[WIRE_RANKS_MAX][WIRE_RANKS_MAX]; /* [from][to] */
} wire;

/* A send or a receive. */
typedef struct wire_op {
    char *data;
    size_t bytes, moved;
    int peer, is_send, done;
} wire_op;

/** A new one that others open by `path`, through this process: 0, or -1. */
int wire_make(char *path, size_t bytes);
/** NULL: it cannot be opened. Close it with munmap. */
wire *wire_open(const char *path);
/** Forget those that this process has made; whoever has opened one keeps it. */
void wire_forget_all(void);
/** Move what can be moved of an operation of `rank`; `spoil`: what is received is another thing. */
void wire_move(wire *w, int rank, wire_op *op, int spoil);

#endif
