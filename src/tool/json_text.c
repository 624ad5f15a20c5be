#include "json_text.h"

#include "internal.h"

#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>

/* The call at hand, and its log: addresses that it took, and with the lowest bit those it freed. */
static _Thread_local struct {
    jmp_buf end;
    int64_t *log;
    size_t count, room;
    json_malloc_t usual_malloc;
    json_free_t usual_free;
} call;

enum { FREED = 1 };

static void make_room(void)
{
    size_t const room = call.room > 0 ? 2 * call.room : 64;
    int64_t *more = realloc(call.log, room * sizeof(*more));
    if (more == NULL)
        longjmp(call.end, 1);
    call.log = more;
    call.room = room;
}

static void *take(size_t bytes)
{
    if (call.count == call.room)
        make_room();
    void *block = call.usual_malloc(bytes);
    if (block == NULL)
        longjmp(call.end, 1);
    call.log[call.count++] = (int64_t)(intptr_t)block;
    return block;
}

static void give_back(void *block)
{
    if (call.count == call.room)
        make_room();
    call.log[call.count++] = (int64_t)(intptr_t)block | FREED;
    call.usual_free(block);
}

/* Free what was taken once more than freed: an address may come again and again. */
static void free_left(void)
{
    qsort(call.log, call.count, sizeof(*call.log), ra_compare_i64);
    for (size_t i = 0; i < call.count;) {
        int64_t const address = call.log[i] & ~(int64_t)FREED;
        int64_t left = 0;
        for (; i < call.count && (call.log[i] & ~(int64_t)FREED) == address; i++)
            left += (call.log[i] & FREED) != 0 ? -1 : 1;
        if (left > 0)
            call.usual_free((void *)(intptr_t)address);
    }
}

static void begin(void)
{
    json_get_alloc_funcs(&call.usual_malloc, &call.usual_free);
    json_set_alloc_funcs(take, give_back);
}

static void end(bool lacked_memory)
{
    json_set_alloc_funcs(call.usual_malloc, call.usual_free);
    if (lacked_memory && call.count > 0)
        free_left();
    free(call.log);
    call.log = NULL;
    call.count = call.room = 0;
}

json_t *ra_json_load(json_load_callback_t read, void *context, json_error_t *error,
                     bool *lacked_memory)
{
    json_t *volatile root = NULL; /* keeps its value where a jump ends here */
    begin();
    *lacked_memory = setjmp(call.end) != 0;
    if (!*lacked_memory)
        root = json_load_callback(read, context, JSON_REJECT_DUPLICATES, error);
    end(*lacked_memory);
    return root;
}

char *ra_json_dump(const json_t *json, size_t flags)
{
    char *volatile text = NULL;
    begin();
    bool const lacked_memory = setjmp(call.end) != 0;
    if (!lacked_memory)
        text = json_dumps(json, flags);
    end(lacked_memory);
    return text;
}
