#include "json_text.h"

#include <setjmp.h>
#include <stdlib.h>

/* The call at hand: what it has taken, in an order that changes only where blocks are freed. */
static _Thread_local struct {
    jmp_buf end;
    void **blocks;
    size_t count, room;
    json_malloc_t usual_malloc;
    json_free_t usual_free;
} call;

static void *take(size_t bytes)
{
    if (call.count == call.room) {
        size_t const room = call.room > 0 ? 2 * call.room : 64;
        void **more = realloc(call.blocks, room * sizeof(*more));
        if (more == NULL)
            longjmp(call.end, 1);
        call.blocks = more;
        call.room = room;
    }
    void *block = call.usual_malloc(bytes);
    if (block == NULL)
        longjmp(call.end, 1);
    return call.blocks[call.count++] = block;
}

/* Most often one of the last; one that an earlier call took is not among them. */
static void give_back(void *block)
{
    size_t i = call.count;
    while (i > 0 && call.blocks[i - 1] != block)
        i--;
    if (i > 0)
        call.blocks[i - 1] = call.blocks[--call.count];
    call.usual_free(block);
}

static void begin(void)
{
    json_get_alloc_funcs(&call.usual_malloc, &call.usual_free);
    json_set_alloc_funcs(take, give_back);
}

static void end(bool lacked_memory)
{
    json_set_alloc_funcs(call.usual_malloc, call.usual_free);
    while (lacked_memory && call.count > 0)
        call.usual_free(call.blocks[--call.count]);
    free(call.blocks);
    call.blocks = NULL;
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
