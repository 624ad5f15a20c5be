#include "bytes_text.h"
#include "ledger_marks.h"
#include "pool_internal.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct ra_ledger {
    pthread_mutex_t mutex;
    int64_t promised_bytes; /* on their way into `now`, counted towards the limit */
    bool hushed;            /* refusals are not logged */
    ra_ledger_snapshot now;
    ra_marks marks;
};

static const char *const category_names[RA_MEM_CATEGORY_COUNT] = {
    [RA_MEM_QKV] = "qkv",
    [RA_MEM_OUTPUT] = "output",
    [RA_MEM_LSE] = "lse",
    [RA_MEM_GRADS] = "grads",
    [RA_MEM_ACCUMULATOR] = "accumulator",
    [RA_MEM_WORKSPACE] = "workspace",
    [RA_MEM_TILEMAP] = "tilemap",
    [RA_MEM_PATTERN_CACHE] = "pattern_cache",
    [RA_MEM_POOL_IDLE] = "pool_idle",
    [RA_MEM_COMM_BUFFER] = "comm_buffer",
    [RA_MEM_SCORES] = "scores",
    [RA_MEM_STATE] = "state",
    [RA_MEM_IO] = "io",
    [RA_MEM_CONTEXT] = "context",
};

static bool category_is_valid(ra_category category)
{
    return (unsigned)category < RA_MEM_CATEGORY_COUNT;
}

static void lock(const ra_ledger *ledger)
{
    /* The mutex is the one part of a ledger that readers change. */
    RA_ASSERT(pthread_mutex_lock((pthread_mutex_t *)&ledger->mutex) == 0);
}

static void unlock(const ra_ledger *ledger)
{
    RA_ASSERT(pthread_mutex_unlock((pthread_mutex_t *)&ledger->mutex) == 0);
}

const char *ra_category_name(ra_category category)
{
    RA_ASSERT(category_is_valid(category));
    return category_names[category];
}

ra_status ra_ledger_create(int64_t limit_bytes, ra_ledger **ledger_out)
{
    RA_ASSERT(limit_bytes >= 1);
    ra_ledger *const ledger = calloc(1, sizeof(*ledger));
    if (ledger == NULL)
        goto err_no_memory;
    if (pthread_mutex_init(&ledger->mutex, NULL) != 0)
        goto err_free_ledger;
    ledger->now.limit_bytes = limit_bytes;
    *ledger_out = ledger;
    return RA_OK;

err_free_ledger:
    free(ledger);
err_no_memory:
    return ra_refuse_memory("a memory ledger");
}

void ra_ledger_destroy(ra_ledger *ledger)
{
    if (ledger == NULL)
        return;
    RA_ASSERT(ledger->promised_bytes == 0);
    pthread_mutex_destroy(&ledger->mutex);
    ra_marks_fini(&ledger->marks);
    free(ledger);
}

static int64_t headroom_locked(const ra_ledger *ledger)
{
    return ledger->now.limit_bytes - ledger->now.reserved_bytes - ledger->promised_bytes;
}

int64_t ra_ledger_headroom(const ra_ledger *ledger)
{
    lock(ledger);
    bool const unlimited = ledger->now.limit_bytes == INT64_MAX;
    int64_t const bytes = unlimited ? INT64_MAX : headroom_locked(ledger);
    unlock(ledger);
    return bytes;
}

bool ra_ledger_promise(ra_ledger *ledger, int64_t bytes)
{
    RA_ASSERT(bytes >= 0);
    lock(ledger);
    bool const fits = bytes <= headroom_locked(ledger);
    if (fits)
        ledger->promised_bytes += bytes;
    unlock(ledger);
    return fits;
}

/* Idle bytes are taken, and left, on the way to what was requested. */
static void count_locked(ra_ledger *ledger, ra_category category)
{
    ledger->now.alloc_count[category] += category != RA_MEM_POOL_IDLE;
}

static void add_locked(ra_ledger *ledger, ra_category category, int64_t bytes)
{
    ra_ledger_snapshot *const now = &ledger->now;
    now->current_bytes[category] += bytes;
    if (now->current_bytes[category] > now->peak_bytes[category])
        now->peak_bytes[category] = now->current_bytes[category];
}

static void note_peak_locked(ra_ledger *ledger)
{
    ra_ledger_snapshot *const now = &ledger->now;
    now->reserved_peak_bytes = now->reserved_bytes;
    memcpy(now->at_peak_bytes, now->current_bytes, sizeof(now->at_peak_bytes));
}

void ra_ledger_settle(ra_ledger *ledger, ra_category category, int64_t bytes, int64_t idle_bytes)
{
    RA_ASSERT(category_is_valid(category));
    RA_ASSERT(idle_bytes >= 0 && idle_bytes <= bytes);
    lock(ledger);
    RA_ASSERT(ledger->promised_bytes >= bytes);
    ledger->promised_bytes -= bytes;
    ledger->now.reserved_bytes += bytes;
    count_locked(ledger, category);
    add_locked(ledger, category, bytes - idle_bytes);
    add_locked(ledger, RA_MEM_POOL_IDLE, idle_bytes);
    if (ledger->now.reserved_bytes > ledger->now.reserved_peak_bytes)
        note_peak_locked(ledger);
    unlock(ledger);
}

void ra_ledger_break(ra_ledger *ledger, int64_t bytes)
{
    lock(ledger);
    RA_ASSERT(ledger->promised_bytes >= bytes);
    ledger->promised_bytes -= bytes;
    unlock(ledger);
}

void ra_ledger_admit(ra_ledger *ledger, ra_category category, int64_t bytes)
{
    lock(ledger);
    ledger->promised_bytes += bytes;
    unlock(ledger);
    ra_ledger_settle(ledger, category, bytes, 0);
}

void ra_ledger_move(ra_ledger *ledger, ra_category from, ra_category to, int64_t bytes)
{
    RA_ASSERT(category_is_valid(from) && category_is_valid(to));
    lock(ledger);
    RA_ASSERT(bytes >= 0 && bytes <= ledger->now.current_bytes[from]);
    ra_ledger_snapshot *const now = &ledger->now;
    now->current_bytes[from] -= bytes;
    count_locked(ledger, to);
    add_locked(ledger, to, bytes);
    /* Of equal totals the one with less idle bytes tells more. */
    if (now->reserved_bytes == now->reserved_peak_bytes &&
        now->current_bytes[RA_MEM_POOL_IDLE] < now->at_peak_bytes[RA_MEM_POOL_IDLE])
        note_peak_locked(ledger);
    unlock(ledger);
}

ra_status ra_ledger_charge(ra_ledger *ledger, ra_category category, int64_t bytes)
{
    RA_ASSERT(category_is_valid(category));
    if (!ra_ledger_promise(ledger, bytes)) {
        ra_ledger_log_refusal(ledger, "the memory limit", category, bytes);
        return RA_ERR_NO_MEMORY;
    }
    ra_ledger_settle(ledger, category, bytes, 0);
    return RA_OK;
}

void ra_ledger_release(ra_ledger *ledger, ra_category category, int64_t bytes)
{
    RA_ASSERT(category_is_valid(category));
    lock(ledger);
    RA_ASSERT(bytes >= 0 && bytes <= ledger->now.current_bytes[category]);
    ledger->now.current_bytes[category] -= bytes;
    ledger->now.reserved_bytes -= bytes;
    unlock(ledger);
}

void ra_ledger_read(const ra_ledger *ledger, ra_ledger_snapshot *snapshot_out)
{
    lock(ledger);
    *snapshot_out = ledger->now;
    unlock(ledger);
}

ra_status ra_ledger_keep_marks(ra_ledger *ledger, int32_t most)
{
    lock(ledger);
    ra_status const status = ra_marks_keep(&ledger->marks, most);
    unlock(ledger);
    return status;
}

void ra_ledger_mark_now(ra_ledger *ledger, const char *name, int32_t group, int32_t step)
{
    if (ledger->marks.items == NULL)
        return;
    lock(ledger);
    ra_marks_add(&ledger->marks, name, group, step, ledger->now.current_bytes);
    unlock(ledger);
}

void ra_ledger_forget_marks(ra_ledger *ledger)
{
    lock(ledger);
    ra_marks_forget(&ledger->marks);
    unlock(ledger);
}

int32_t ra_ledger_read_marks(const ra_ledger *ledger, const ra_ledger_mark **marks_out,
                             int64_t *dropped_out)
{
    lock(ledger);
    *marks_out = ledger->marks.items;
    *dropped_out = ledger->marks.dropped_count;
    int32_t const count = ledger->marks.count;
    unlock(ledger);
    return count;
}

/* " qkv=384.0 MiB output=512 B"; categories that hold nothing are left out. */
static void format_composition(const ra_ledger_snapshot *now, char *text, size_t size)
{
    char bytes[32];
    snprintf(text, size, "%s", now->reserved_bytes == 0 ? " nothing" : "");
    for (int i = 0; i < RA_MEM_CATEGORY_COUNT; i++) {
        if (now->current_bytes[i] != 0)
            ra_text_append(text, size, "", " %s=%s", category_names[i],
                           ra_bytes_text(now->current_bytes[i], bytes));
    }
}

void ra_ledger_hush(ra_ledger *ledger, bool hushed)
{
    lock(ledger);
    ledger->hushed = hushed;
    unlock(ledger);
}

void ra_ledger_log_refusal(const ra_ledger *ledger, const char *who, ra_category category,
                           int64_t bytes)
{
    char composition[640], limit[48] = "no limit", asked[32] = "memory", exactly[32] = "", held[32];
    ra_ledger_snapshot now;
    lock(ledger);
    now = ledger->now;
    bool const hushed = ledger->hushed;
    unlock(ledger);
    if (hushed)
        return;
    format_composition(&now, composition, sizeof(composition));
    if (now.limit_bytes != INT64_MAX)
        snprintf(limit, sizeof(limit), "limit %s", ra_bytes_text(now.limit_bytes, held));
    if (bytes > 0)
        ra_bytes_text(bytes, asked);
    if (bytes >= 1024) /* below it the text is not rounded */
        snprintf(exactly, sizeof(exactly), " (%" PRId64 " bytes)", bytes);
    ra_log(RA_LOG_ERROR,
           "out of memory: %s refused %s%s for %s (%s, held %s:%s): take more ranks or a shorter "
           "sequence",
           who, asked, exactly, category_names[category], limit,
           ra_bytes_text(now.reserved_bytes, held), composition);
}
