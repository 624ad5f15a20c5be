/* See cuda_block_emulated.h. */
#include "sparse/cuda_block_emulated.h"

#include "support/tensor_core.h"

#include <limits.h>
#include <math.h>
#include <sanitizer/asan_interface.h>

namespace emulated
{

block *now;

[[noreturn]] void fail(const char *what)
{
    fprintf(stderr, "emulated thread block %lld, thread %d: %s\n", (long long)now->index,
            now->current, what);
    abort();
}

/* ---- shared memory --------------------------------------------------------------------------- */

/* When a word was last touched, and by whom: a thread, lanes of a warp (~warp), or ANYONE. */
struct moment {
    int32_t who, round, warp_round; /* barriers of the block, and of the warp */
};

struct access {
    moment written, read;
    bool arriving; /* a copy is on its way */
};

enum { ANYONE = INT_MIN };

/* Of all launches, one after the other: rounds are numbered on, so what was noted is over. */
static std::vector<access> words;
static int64_t rounds = 1;

static int warp_of(const moment &m)
{
    return m.who == ANYONE ? -1 : m.who < 0 ? ~m.who : m.who / WARP;
}

/* Whether it is over for the current thread: a barrier is in between, or it was this thread. */
static bool is_over(const moment &m)
{
    int const warp = now->current / WARP;
    return m.round < now->all.round || m.who == now->current ||
           (warp_of(m) == warp && m.warp_round < now->warps[(size_t)warp].barriers);
}

static moment this_moment()
{
    return {now->current, (int32_t)now->all.round,
            now->warps[(size_t)(now->current / WARP)].barriers};
}

[[noreturn]] static void fail_at(const void *at, const char *what)
{
    fprintf(stderr, "byte %lld of shared memory: ", (long long)((const char *)at - now->shared));
    fail(what);
}

/* The word that holds a byte. */
static access &word_of(const void *at)
{
    if (!is_shared(at))
        fail("beyond shared memory");
    return words[(size_t)((const char *)at - now->shared) / WORD_BYTES];
}

static void write_word(const void *at)
{
    access &a = word_of(at);
    if (!is_over(a.read))
        fail_at(at, "written while another thread may read it: a barrier is missing");
    if (!is_over(a.written))
        fail_at(at, "two threads write one place");
    a.written = this_moment();
    a.arriving = false;
}

static void read_word(const void *at)
{
    access &a = word_of(at);
    int32_t const round = (int32_t)now->all.round;
    if (a.read.who == ANYONE && a.read.round == round && a.written.round < round && !a.arriving)
        return; /* as most are: every thread reads it, and that is known */
    if (a.arriving)
        fail_at(at, "read before its copy has arrived");
    if (!is_over(a.written))
        fail_at(at, "read what another thread wrote without a barrier");
    moment mine = this_moment();
    if (!is_over(a.read))
        mine.who = warp_of(a.read) == now->current / WARP ? ~(now->current / WARP) : ANYONE;
    a.read = mine;
}

static void for_words(const void *at, int bytes, void (*note)(const void *word))
{
    const char *const end = (const char *)at + bytes;
    for (const char *p = (const char *)at - (uintptr_t)at % WORD_BYTES; p < end; p += WORD_BYTES)
        note(p);
}

void note_write(const void *at, int bytes)
{
    for_words(at, bytes, write_word);
}

void note_read(const void *at, int bytes)
{
    for_words(at, bytes, read_word);
}

void note_copy(const void *at, int bytes)
{
    for_words(at, bytes, [](const void *word) {
        write_word(word);
        word_of(word).arriving = true;
    });
}

void note_arrival(const void *at, int bytes)
{
    for_words(at, bytes, [](const void *word) {
        access &a = word_of(word);
        a.written = this_moment();
        a.arriving = false;
    });
}

/* ---- threads --------------------------------------------------------------------------------- */

[[noreturn]] __attribute__((noinline, no_sanitize("address"))) static void go(place &to)
{
    if (to.begun)
        __builtin_longjmp(to.at, 1);
    setcontext(&to.context);
    abort();
}

/* Of the compiler, not of the C library, whose AddressSanitizer knows nothing of fibers. */
__attribute__((noinline, no_sanitize("address"))) static void leave(place &from, place &to)
{
    from.begun = true;
    if (__builtin_setjmp(from.at) == 0)
        go(to);
}

const std::vector<offer> &together(group &g, int member, operation op, const offer &mine)
{
    int64_t const round = g.round;
    std::vector<offer> &offers = g.offers[round & 1];
    expect(g.arrived == 0 || g.op == op, "lanes do different things");
    g.op = op;
    offers[(size_t)member] = mine;
    if (++g.arrived == g.members) {
        g.arrived = 0;
        ++g.round;
        g.barriers += op == OP_WARP_BARRIER;
        return offers;
    }
    fiber &self = now->fibers[(size_t)now->current];
    self.waits_for = &g;
    self.waits_round = round;
    leave(self.here, now->scheduler);
    return offers;
}

/* A lane's part of a product of matrices: see emulated_element. */
void add_products(const std::vector<offer> &offers, int lane, float c[4])
{
    for (int i = 0; i < 4; ++i) {
        int const row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
        double sum = 0;
        for (int k = 0; k < 16; ++k) {
            offer const &x = offers[(size_t)(row % 8 * 4 + k % 8 / 2)];
            offer const &y = offers[(size_t)(column * 4 + k % 8 / 2)];
            sum += (double)x.a[(row >= 8) + 2 * (k >= 8)][k % 2] * (double)y.b[k >= 8][k % 2];
        }
        c[i] = tensor_core_cut((double)c[i] + sum);
    }
}

static void enter()
{
    now->run(now->f, now->shared);
    fiber &self = now->fibers[(size_t)now->current];
    expect(self.begun.empty(), "copies were begun and never committed");
    self.done = true;
    leave(self.here, now->scheduler);
}

/* A permutation of the threads, another one every time. */
static void shuffle_order(std::vector<int> &order, uint64_t &seed)
{
    for (size_t i = order.size() - 1; i > 0; --i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::swap(order[i], order[(seed >> 33) % (i + 1)]);
    }
}

static void run_block(block &b)
{
    std::vector<int> order;
    for (int i = 0; i < b.all.members; ++i)
        order.push_back(i);
    now = &b;
    for (size_t done = 0; done < order.size();) {
        bool moved = false;
        shuffle_order(order, b.seed);
        done = 0;
        for (int i : order) {
            fiber &f = b.fibers[(size_t)i];
            if (f.waits_for != NULL && f.waits_for->round == f.waits_round)
                continue;
            if (f.done) {
                ++done;
                continue;
            }
            f.waits_for = NULL;
            moved = true;
            b.current = i;
            leave(b.scheduler, f.here);
        }
        expect(moved || done == order.size(), "lanes wait for others that never come");
    }
}

static void init_group(group &g, int members)
{
    g = group();
    g.members = members;
    g.offers[0].resize((size_t)members);
    g.offers[1].resize((size_t)members);
}

/* Stacks are made once: blocks run one after the other, and to clear theirs takes longer than most
   of what they do. */
static char *stack_of(size_t thread)
{
    static std::vector<std::vector<char>> stacks;
    while (stacks.size() <= thread)
        stacks.emplace_back((size_t)STACK_BYTES);
    ASAN_UNPOISON_MEMORY_REGION(stacks[thread].data(), STACK_BYTES); /* frames that were left */
    return stacks[thread].data();
}

static void init_block(block &b, int threads)
{
    init_group(b.all, threads);
    b.all.round = ++rounds; /* nothing was read or written in it */
    b.warps.resize((size_t)(threads / WARP));
    for (group &warp : b.warps)
        init_group(warp, WARP);
    if (words.size() < (size_t)b.shared_bytes / WORD_BYTES)
        words.resize((size_t)b.shared_bytes / WORD_BYTES);
    b.fibers.resize((size_t)threads);
    for (size_t i = 0; i < b.fibers.size(); ++i) {
        fiber &f = b.fibers[i];
        f.done = false;
        f.here.begun = false;
        f.waits_for = NULL;
        getcontext(&f.here.context);
        f.here.context.uc_stack.ss_sp = stack_of(i);
        f.here.context.uc_stack.ss_size = STACK_BYTES;
        f.here.context.uc_link = NULL;
        makecontext(&f.here.context, enter, 0);
    }
}

void launch(const kernel &k, int blocks, uint64_t seed, cuda_emulation *stats)
{
    int const count = k.yields ? (int)k.tasks : blocks;
    for (int i = 0; i < count; ++i) {
        block b = {};
        b.shared_bytes = k.tile.shared_bytes;
        b.shared = (char *)aligned_alloc(1024, ((size_t)b.shared_bytes + 1023) / 1024 * 1024);
        memset(b.shared, 0xff, (size_t)b.shared_bytes);
        b.index = i;
        b.count = count;
        b.seed = seed + (uint64_t)i;
        b.run = k.run;
        b.f = k.f;
        b.tasks = k.tasks;
        b.stats = stats;
        init_block(b, 32 * k.tile.warps);
        run_block(b);
        expect(b.all.round < INT32_MAX, "more barriers than are counted");
        rounds = b.all.round;
        now = NULL;
        free(b.shared);
    }
}

} // namespace emulated
