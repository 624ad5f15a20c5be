/* Device and pinned memory over the stand-in runtime: what is asked of CUDA, and what becomes of
   every answer that it may give. */
#include "ringattn/device.h"
#include "support/captured_log.h"
#include "support/standin_cudart.h"

#include <criterion/criterion.h>
#include <string.h>

static captured_log said;

static void begin(void)
{
    standin_reset();
    captured_log_begin(&said);
}

static void end(void)
{
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events + standin.streams, 0,
                 "something is left");
    cr_expect_eq(standin.used_bytes, 0);
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream = NULL;
    cr_assert_eq(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    return stream;
}

TestSuite(memory_cuda, .init = begin, .fini = end);

static ra_memory device(int index)
{
    ra_memory memory = {0};
    cr_assert_eq(ra_memory_device(index, &memory), RA_OK);
    cr_assert_str_eq(memory.ops->name, "device");
    return memory;
}

static ra_memory pinned(void)
{
    ra_memory memory = {0};
    cr_assert_eq(ra_memory_pinned(&memory), RA_OK);
    cr_assert_str_eq(memory.ops->name, "pinned");
    return memory;
}

Test(memory_cuda, rounds_as_the_driver_does)
{
    static const size_t asked[] = {1, 512, 513, (2 << 20) - 1, 2 << 20, (2 << 20) + 1};
    static const size_t taken[] = {512, 512, 1024, 2 << 20, 2 << 20, 4 << 20};
    ra_memory const memory = device(0);
    for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++)
        cr_expect_eq(memory.ops->round(&memory, asked[i]), taken[i], "%zu", asked[i]);
    ra_memory const host = pinned();
    cr_expect_eq(host.ops->round(&host, 1), host.ops->round(&host, 4096));
}

Test(memory_cuda, takes_gives_and_knows_what_is_free)
{
    ra_memory const memory = device(1);
    int64_t before, after;
    void *data = NULL;
    cr_assert_eq(cudaSetDevice(0), cudaSuccess);
    cr_assert_eq(memory.ops->available(&memory, &before), RA_OK);
    cr_assert_eq(standin_current(), 1, "every call is about its own device");
    cr_assert_eq(memory.ops->alloc(&memory, 4 << 20, &data), RA_OK);
    cr_assert_not_null(data);
    cr_assert_eq(memory.ops->available(&memory, &after), RA_OK);
    cr_assert_eq(before - after, 4 << 20);
    cr_assert_eq(cudaSetDevice(0), cudaSuccess);
    memory.ops->free(&memory, data, 4 << 20);
    cr_assert_eq(standin_current(), 1);
    cr_assert_eq(said.errors + said.warnings, 0);
}

/* A real out-of-memory and the limit's end alike: NO_MEMORY, and one line that says for what. */
Test(memory_cuda, what_a_device_refuses_is_out_of_memory_said_by_the_pool)
{
    ra_ledger *ledger;
    ra_pool *pool;
    ra_block block;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    for (int mode = RA_POOL_OFF; mode <= RA_POOL_SIZE_CLASS; mode++) {
        ra_pool_config const config = {
            .mode = (ra_pool_mode)mode, .memory = device(0), .ledger = ledger};
        cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
        said.errors = 0;
        cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, (size_t)2 << 30, NULL, &block),
                     RA_ERR_NO_MEMORY);
        cr_assert_eq(said.errors, 1);
        cr_assert_not_null(strstr(said.line, "qkv"), "%s", said.line);
        cr_assert_eq(cudaPeekAtLastError(), cudaSuccess, "nobody else is handed this error");
        ra_pool_destroy(pool);
    }
    ra_ledger_destroy(ledger);
}

/* Blocks move between streams through a pool only when the events allow it. */
Test(memory_cuda, a_pool_waits_for_the_stream_that_used_a_block)
{
    ra_stream *const first = (ra_stream *)make_stream(), *const second = (ra_stream *)make_stream();
    ra_ledger *ledger;
    ra_pool *pool;
    ra_block a, b;
    cr_assert_eq(ra_ledger_create(INT64_MAX, &ledger), RA_OK);
    ra_pool_config const config = {
        .mode = RA_POOL_SIZE_CLASS, .memory = device(0), .ledger = ledger, .trim_bytes = 1 << 30};
    cr_assert_eq(ra_pool_create(&config, &pool), RA_OK);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 3 << 20, first, &a), RA_OK);
    void *const at = a.data;
    standin.stream_is_over = 0;
    ra_pool_free(pool, first, &a);
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 3 << 20, second, &b), RA_OK);
    cr_assert_neq(b.data, at, "its stream still works on it");
    ra_pool_free(pool, second, &b);
    standin.stream_is_over = 1;
    cr_assert_eq(ra_pool_alloc(pool, RA_MEM_QKV, 3 << 20, second, &b), RA_OK);
    ra_pool_free(pool, second, &b);
    ra_pool_destroy(pool);
    ra_ledger_destroy(ledger);
    cr_assert_eq(cudaStreamDestroy((cudaStream_t)first), cudaSuccess);
    cr_assert_eq(cudaStreamDestroy((cudaStream_t)second), cudaSuccess);
}

/* Reading finds what was enqueued before; nothing is touched beside what was asked for. */
Test(memory_cuda, copies_come_after_what_is_enqueued_and_are_done_at_once)
{
    ra_memory const memory = device(0), host = ra_memory_host();
    cudaStream_t const stream = make_stream();
    ra_stream *const order = (ra_stream *)stream;
    char here[16] = "0123456789abcde", back[16] = "";
    void *there = NULL;
    cr_assert_not(ra_memory_is_host(&memory));
    cr_assert_eq(memory.ops->alloc(&memory, 512, &there), RA_OK);
    cr_assert_eq(ra_memory_write(&memory, order, there, here, 16), RA_OK);
    memset(here, 0, sizeof(here)); /* it was read by then */
    cr_assert_eq(cudaMemsetAsync((char *)there + 4, 'x', 2, stream), cudaSuccess);
    cr_assert_eq(ra_memory_read(&memory, order, back, (char *)there + 1, 7), RA_OK);
    cr_assert_str_eq(back, "123xx67");
    cr_assert_eq(ra_memory_write(&memory, order, NULL, NULL, 0), RA_OK);
    cr_assert_eq(ra_memory_read(&memory, order, NULL, NULL, 0), RA_OK);
    cr_assert_eq(ra_memory_write(&memory, order, here, back, 8), RA_ERR_CUDA, "not the device's");
    cr_assert_eq(ra_memory_read(&memory, order, back, (char *)there + 510, 3), RA_ERR_CUDA);
    cr_assert_eq(said.errors, 2);
    memory.ops->free(&memory, there, 512);
    cr_assert_eq(cudaStreamDestroy(stream), cudaSuccess);
    cr_assert(ra_memory_is_host(&host));
    cr_assert_eq(ra_memory_write(&host, NULL, here, back, 8), RA_OK);
    cr_assert_str_eq(here, "123xx67");
}

Test(memory_cuda, the_host_reaches_pinned_memory_itself)
{
    ra_memory const memory = pinned();
    char text[4] = "abc", back[4] = "";
    void *data = NULL;
    cr_assert(ra_memory_is_host(&memory));
    cr_assert_eq(memory.ops->alloc(&memory, 4096, &data), RA_OK);
    cr_assert_eq(ra_memory_write(&memory, NULL, data, text, 4), RA_OK);
    cr_assert_eq(ra_memory_read(&memory, NULL, back, data, 4), RA_OK);
    cr_assert_str_eq(back, "abc");
    memory.ops->free(&memory, data, 4096);
}

Test(memory_cuda, a_process_uses_one_gpu_which_must_be_there_and_new_enough)
{
    static const int wrong[] = {-1, 2, 1};
    cr_assert_eq(ra_device_used(), 0);
    /* How many there are, five attributes, and properties; the next asks for the clock and may
       fail; the last chooses the GPU. */
    static const int64_t calls[] = {1, 2, 3, 4, 5, 6, 7, 9};
    for (int i = 0; i < 8; i++) {
        standin.calls = said.errors = 0;
        standin.fail_call = calls[i];
        standin.fail_error = cudaErrorUnknown;
        cr_expect_eq(ra_device_use(1), RA_ERR_CUDA);
        cr_expect_eq(said.errors, 1);
        cr_expect_eq(ra_device_used(), 0);
    }
    standin.fail_call = 0;
    standin.major[1] = 7;
    for (size_t i = 0; i < 3; i++) {
        said.errors = 0;
        cr_expect_eq(ra_device_use(wrong[i]), RA_ERR_UNSUPPORTED);
        cr_expect_eq(said.errors, 1);
    }
    cr_expect_not_null(strstr(said.line, "compute capability 7.0"), "%s", said.line);
    cr_expect_eq(ra_device_used(), 0);
    standin.major[1] = 8;
    cr_assert_eq(ra_device_use(1), RA_OK);
    cr_assert_eq(ra_device_used(), 1);
    cr_assert_eq(standin_current(), 1);
    ra_memory const memory = pinned();
    cr_assert_eq((intptr_t)memory.self, 1);
}

/* All that the two memories do, once; false as soon as something failed. */
static bool do_everything(void)
{
    ra_memory memory;
    void *data = NULL, *event = NULL;
    int64_t bytes;
    for (int kind = 0; kind < 2; kind++) {
        if ((kind == 0 ? ra_memory_device(1, &memory) : ra_memory_pinned(&memory)) != RA_OK)
            return false;
        if (memory.ops->available(&memory, &bytes) != RA_OK ||
            memory.ops->alloc(&memory, 4096, &data) != RA_OK)
            return false;
        int64_t number = 7;
        bool fine = ra_memory_write(&memory, NULL, data, &number, sizeof(number)) == RA_OK &&
                    ra_memory_read(&memory, NULL, &number, data, sizeof(number)) == RA_OK &&
                    memory.ops->event_record(&memory, NULL, &event) == RA_OK;
        if (fine) {
            fine = memory.ops->event_is_over(&memory, event);
            int64_t const fail_call = standin.fail_call;
            memory.ops->event_free(&memory, event);
            if (fail_call == standin.calls) /* so that the test itself leaks nothing */
                memory.ops->event_free(&memory, event);
        }
        memory.ops->free(&memory, data, 4096);
        while (standin.blocks + standin.pinned_blocks > 0)
            memory.ops->free(&memory, data, 4096);
        if (!fine)
            return false;
    }
    return true;
}

Test(memory_cuda, a_failure_of_any_call_is_one_line_and_leaks_nothing)
{
    bool done = false;
    int64_t call = 1;
    for (; !done; call++) {
        cr_assert_lt(call, 100);
        begin();
        standin.fail_call = call;
        standin.fail_error = cudaErrorLaunchOutOfResources;
        bool const fine = do_everything();
        done = standin.calls < call;
        if (done)
            break;
        /* An event that cannot be asked counts as not over, in silence: it is asked again. */
        bool const asked = !fine && said.errors == 0;
        cr_expect_eq(said.errors + said.warnings, asked ? 0 : 1, "call %lld: %d lines, the last %s",
                     (long long)call, said.errors + said.warnings, said.line);
        cr_expect_eq(fine, said.warnings == 1, "call %lld", (long long)call);
        cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events, 0, "call %lld",
                     (long long)call);
    }
    cr_assert_geq(call, 15);
}

Test(memory_cuda, every_way_of_having_no_gpu_is_the_same_sentence_with_versions)
{
    static const cudaError_t absent[] = {cudaErrorInsufficientDriver, cudaErrorNoDevice,
                                         cudaErrorStubLibrary};
    ra_memory memory;
    ra_devices devices;
    for (size_t i = 0; i < 3; i++) {
        begin();
        standin.absent = absent[i];
        standin.driver_version = 11080;
        cr_expect_eq(ra_memory_device(0, &memory), RA_ERR_UNSUPPORTED);
        cr_expect_eq(said.errors, 1);
        cr_expect_not_null(strstr(said.line, "(CUDA of the driver: 11.8, of this build: "), "%s",
                           said.line);
        ra_devices_read(&devices);
        cr_expect_eq(devices.usable_count, 0);
        cr_expect_not_null(strstr(said.line, devices.why_not), "%s", devices.why_not);
        cr_expect_eq(cudaPeekAtLastError(), cudaSuccess);
    }
    standin.absent = cudaErrorInsufficientDriver;
    ra_devices_read(&devices);
    cr_expect_not_null(strstr(devices.why_not, "too old"), "%s", devices.why_not);
    standin.driver_version = 0;
    ra_devices_read(&devices);
    cr_expect_not_null(strstr(devices.why_not, "no NVIDIA driver"), "%s", devices.why_not);
}

Test(memory_cuda, a_gpu_that_is_not_there_is_refused)
{
    ra_memory memory;
    static const int wrong[] = {-1, 2, 1000};
    for (size_t i = 0; i < 3; i++) {
        said.errors = 0;
        cr_expect_eq(ra_memory_device(wrong[i], &memory), RA_ERR_UNSUPPORTED);
        cr_expect_eq(said.errors, 1);
    }
}

Test(memory_cuda, devices_are_listed_with_what_jobs_ask_for)
{
    ra_devices devices;
    standin.calls = 0;
    standin.fail_call = 8; /* the first device's clock */
    standin.fail_error = cudaErrorInvalidValue;
    ra_devices_read(&devices);
    standin.fail_call = 0;
    cr_assert_eq(devices.count, 2);
    cr_assert_eq(devices.usable_count, 2);
    cr_assert_eq(devices.list[0].clock_khz, 0);
    cr_assert_eq(cudaGetLastError(), cudaSuccess, "what failed is not handed on");
    cr_assert_eq(devices.driver_version, 13000);
    cr_assert_eq(devices.runtime_version, CUDART_VERSION);
    cr_assert_str_empty(devices.why_not);
    cr_assert_str_eq(devices.list[1].name, "stand-in 1");
    cr_assert_str_eq(devices.list[1].bus_id, "0000:3c:00.0");
    cr_assert_eq(devices.list[1].memory_bytes, standin.memory_bytes);
    cr_assert_eq(devices.list[1].multiprocessors, 132);
    cr_assert_eq(devices.list[1].clock_khz, STANDIN_CLOCK_KHZ);
    standin.device_count = STANDIN_DEVICES_MAX;
    ra_devices_read(&devices);
    cr_assert_eq(devices.count, RA_DEVICES_MAX);
}

/* The others serve, under the numbers that they have. */
Test(memory_cuda, a_gpu_that_cannot_be_read_is_left_out)
{
    enum { COUNT = 1, ATTRIBUTES = 5, PROPERTIES = 1 }; /* calls, the first GPU's */
    ra_devices devices;
    standin.fail_error = cudaErrorUnknown;
    for (int i = COUNT + 1; i <= COUNT + ATTRIBUTES + PROPERTIES; i++) {
        standin.fail_call = standin.calls + i;
        ra_devices_read(&devices);
        standin.fail_call = 0;
        cr_expect_eq(devices.count, 2);
        cr_expect_eq(devices.usable_count, 1, "call %d: %d", i, devices.usable_count);
        cr_expect_eq(ra_devices_first(&devices), 1);
        cr_expect_str_empty(devices.why_not);
        cr_expect_eq(cudaGetLastError(), cudaSuccess, "what failed is not handed on");
    }
}

/* Drivers take milliseconds to tell them; a job looks for GPUs some ten times. */
Test(memory_cuda, properties_are_asked_for_once)
{
    ra_devices first, again;
    ra_devices_read(&first);
    cr_assert_eq(standin.descriptions, 2);
    cr_assert_eq(ra_device_use(1), RA_OK);
    standin.multiprocessors = 7;
    ra_devices_read(&again);
    cr_assert_eq(standin.descriptions, 2);
    for (int i = 0; i < 2; i++) {
        cr_expect_str_eq(again.list[i].name, first.list[i].name);
        cr_expect_str_eq(again.list[i].bus_id, first.list[i].bus_id);
        cr_expect_eq(again.list[i].memory_bytes, first.list[i].memory_bytes);
        cr_expect_eq(again.list[i].clock_khz, first.list[i].clock_khz);
        cr_expect_eq(again.list[i].multiprocessors, 7, "attributes are asked for each time");
    }
    standin.device_count = STANDIN_DEVICES_MAX;
    cr_assert_eq(ra_device_use(STANDIN_DEVICES_MAX - 1), RA_OK, "one that is in no list");
}

Test(memory_cuda, devices_that_are_too_old_are_listed_and_not_used)
{
    ra_devices devices;
    standin.major[0] = 7;
    ra_devices_read(&devices);
    cr_assert_eq(devices.count, 2);
    cr_assert_eq(devices.usable_count, 1);
    cr_assert_not(devices.list[0].usable);
    standin.major[1] = 7;
    ra_devices_read(&devices);
    cr_assert_eq(devices.usable_count, 0);
    cr_assert_not_null(strstr(devices.why_not, "compute capability 7.0"), "%s", devices.why_not);
}

Test(memory_cuda, devices_in_mode_prohibited_are_listed_and_not_used)
{
    ra_devices devices;
    standin.compute_mode = cudaComputeModeProhibited;
    ra_devices_read(&devices);
    cr_assert_eq(devices.count, 2);
    cr_assert_eq(devices.usable_count, 0);
    cr_assert_str_eq(devices.why_not, "stand-in 0 is in compute mode Prohibited");
    cr_assert_eq(ra_device_use(1), RA_ERR_UNSUPPORTED);
    cr_assert_str_eq(said.line, "GPU 1: stand-in 1 is in compute mode Prohibited");
}

Test(memory_cuda, a_list_without_a_gpu_that_can_be_read_says_why)
{
    ra_devices devices;
    standin.device_count = 0;
    ra_devices_read(&devices);
    cr_assert_not_null(strstr(devices.why_not, "there is no GPU"), "%s", devices.why_not);
    standin.device_count = 2;
    standin.fail_call = standin.calls + 7; /* the first device's properties, and all after them */
    standin.fail_error = cudaErrorUnknown;
    standin.fails_for_good = 1;
    ra_devices_read(&devices);
    cr_assert_eq(devices.usable_count, 0);
    cr_assert_not_null(strstr(devices.why_not, "injected"), "%s", devices.why_not);
    cr_assert_eq(said.errors, 0, "an answer, not an error");
}

/* ---- an error that stays --------------------------------------------------------------------- */

/* One line, whichever call meets it first, and none about what cannot be given back then. */
Test(memory_cuda, an_error_that_stays_is_said_once_and_loses_the_gpu)
{
    ra_memory const memory = device(0), host = pinned();
    void *data = NULL, *page = NULL, *event = NULL;
    int64_t bytes = 0;
    cr_assert_eq(memory.ops->alloc(&memory, 4096, &data), RA_OK);
    cr_assert_eq(host.ops->alloc(&host, 4096, &page), RA_OK);
    cr_assert_eq(memory.ops->event_record(&memory, NULL, &event), RA_OK);
    standin.fails_for_good = 1;
    standin.fail_call = standin.calls + 2; /* of a copy, behind the choice of the device */
    standin.fail_error = cudaErrorMisalignedAddress;
    cr_expect_eq(ra_memory_write(&memory, NULL, data, &bytes, sizeof(bytes)), RA_ERR_CUDA);
    cr_expect_eq(said.errors, 1);
    cr_expect_not_null(strstr(said.line, "copying to the GPU: "), "%s", said.line);
    cr_expect_not_null(strstr(said.line, "(CUDA error 716): GPU 0 is lost"), "%s", said.line);
    cr_expect(ra_device_is_lost());
    cr_expect_eq(memory.ops->available(&memory, &bytes), RA_ERR_CUDA);
    cr_expect_eq(ra_device_taken(&bytes), RA_ERR_CUDA);
    cr_expect_not(memory.ops->event_is_over(&memory, event));
    memory.ops->event_free(&memory, event);
    int64_t const calls = standin.calls;
    cr_expect_eq(memory.ops->event_record(&memory, NULL, &event), RA_ERR_CUDA);
    cr_expect_eq(standin.calls, calls, "its streams may have no room for more");
    memory.ops->free(&memory, data, 4096);
    host.ops->free(&host, page, 4096);
    cr_expect_eq(said.errors + said.warnings, 1, "%s", said.line);
    cr_expect_eq(standin.blocks + standin.pinned_blocks + standin.events, 3, "they are left");
    standin_reset_streams();
}

Test(memory_cuda, where_giving_back_meets_it_first_the_next_call_says_it)
{
    ra_memory const memory = device(0);
    void *data = NULL, *event = NULL;
    int64_t bytes = 0;
    cr_assert_eq(memory.ops->alloc(&memory, 4096, &data), RA_OK);
    standin.absent = cudaErrorLaunchFailure;
    cr_expect_eq(memory.ops->event_record(&memory, NULL, &event), RA_ERR_CUDA);
    memory.ops->free(&memory, data, 4096);
    cr_expect_eq(said.errors + said.warnings, 0);
    cr_expect_not(ra_device_is_lost());
    cr_expect_eq(ra_device_taken(&bytes), RA_ERR_CUDA);
    cr_expect_eq(said.errors, 1);
    cr_expect(ra_device_is_lost());
}
