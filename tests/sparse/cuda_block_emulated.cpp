/* See cuda_block_emulated.h. */
#include "sparse/cuda_block_emulated.h"

#include "support/tensor_core.h"

#include <algorithm>
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

/* When a word was last touched, and by whom: a thread, or lanes of a warp (~warp). */
struct moment {
    int32_t who, epoch, warp_round; /* of its warp: epoch, barriers */
};

struct access {
    moment written, read[WARPS_MAX];
    bool arriving; /* a copy is on its way */
};

/* Of all launches, one after the other: epochs are numbered on, so what was noted is over. */
static std::vector<access> words;
static int32_t epochs = 1;
static int64_t changes; /* block.changes, likewise */

static int warp_of(const moment &m)
{
    return m.who < 0 ? ~m.who : m.who / WARP;
}

static int current_warp()
{
    return now->current / WARP;
}

static knowledge &own_knowledge()
{
    return now->known[(size_t)current_warp()];
}

/* Whether it is over for the current thread: that was told, or it was this thread. */
static bool is_over(const moment &m)
{
    int const warp = current_warp();
    if (warp_of(m) != warp)
        return m.epoch <= own_knowledge()[(size_t)warp_of(m)];
    return m.who == now->current || m.epoch < now->first_epoch ||
           m.warp_round < now->warps[(size_t)warp].barriers;
}

static moment this_moment()
{
    return {now->current, own_knowledge()[(size_t)current_warp()],
            now->warps[(size_t)current_warp()].barriers};
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
    for (size_t warp = 0; warp < now->warps.size(); ++warp)
        if (!is_over(a.read[warp]))
            fail_at(at, "written while another thread may read it: a barrier is missing");
    if (!is_over(a.written))
        fail_at(at, "two threads write one place");
    a.written = this_moment();
    a.arriving = false;
}

static void read_word(const void *at)
{
    access &a = word_of(at);
    moment &last = a.read[current_warp()];
    moment mine = this_moment();
    if (a.arriving)
        fail_at(at, "read before its copy has arrived");
    if (!is_over(a.written))
        fail_at(at, "read what another thread wrote without a barrier");
    if (!is_over(last))
        mine.who = ~current_warp();
    last = mine;
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

static void take_copy_of(const copy &c, const moment &m)
{
    memset(c.to, 0, (size_t)c.room);
    memcpy(c.to, c.from, (size_t)c.bytes);
    for (const char *p = c.to; p < c.to + c.room; p += WORD_BYTES) {
        access &a = word_of(p);
        a.written = m;
        a.arriving = false;
    }
}

void take_copy(const copy &c)
{
    take_copy_of(c, this_moment());
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

/* Until it is another number. */
static void wait_for(const int64_t &number, int64_t is)
{
    fiber &self = now->fibers[(size_t)now->current];
    self.waits_for = &number;
    self.waits_number = is;
    leave(self.here, now->scheduler);
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
    wait_for(g.round, round);
    return offers;
}

/* ---- barriers -------------------------------------------------------------------------------- */

static void join(knowledge &all, const knowledge &more)
{
    for (size_t i = 0; i < all.size(); ++i)
        all[i] = std::max(all[i], more[i]);
}

/* What others gathered, and this warp let them know: its epoch is over. */
static void take(const knowledge &gathered)
{
    knowledge &own = own_knowledge();
    size_t const warp = (size_t)current_warp();
    int32_t const epoch = std::max(own[warp], gathered[warp] + 1);
    join(own, gathered);
    own[warp] = epoch;
}

static void come(barrier &b, int threads, int count)
{
    expect(b.arrived == 0 || b.members == threads, "a barrier is of different numbers of threads");
    b.members = threads;
    b.arrived += count;
    b.warps |= 1u << current_warp();
    join(b.gathering, own_knowledge());
    expect(b.arrived <= threads, "more threads come to a barrier than it is for");
    if (b.arrived < threads)
        return;
    b.gathered[b.round & 1] = b.gathering;
    for (size_t i = 0; i < now->warps.size(); ++i)
        now->warps[i].barriers += b.warps >> i & 1;
    b.gathering = {};
    b.arrived = 0;
    b.warps = 0;
    ++b.round;
    ++now->changes;
}

void meet(int number, int threads)
{
    barrier &b = now->barriers[number];
    int64_t const round = b.round;
    come(b, threads, 1);
    if (b.round == round)
        wait_for(b.round, round);
    take(b.gathered[round & 1]);
}

/* The lane that comes last arrives for all, before any of them goes on. */
void arrive(int number, int threads)
{
    bool const last = now->warps[(size_t)current_warp()].arrived == WARP - 1;
    warp_together(OP_ARRIVE, {});
    if (!last)
        return;
    come(now->barriers[number], threads, WARP);
    ++own_knowledge()[(size_t)current_warp()];
}

static phases &mbarrier_at(const void *at)
{
    auto const found = now->mbarriers.find(at);
    expect(found != now->mbarriers.end(), "no mbarrier is there");
    return found->second;
}

void mbarrier_made(const void *at, int arrivals)
{
    expect(is_shared(at) && (uintptr_t)at % 8 == 0, "an mbarrier lies wrong");
    expect(now->mbarriers.count(at) == 0, "an mbarrier is made anew");
    phases &p = now->mbarriers[at];
    p = phases();
    p.count = p.left = arrivals;
}

void mbarrier_arrived(const void *at, bool with_copies)
{
    phases &p = mbarrier_at(at);
    fiber &self = now->fibers[(size_t)now->current];
    int32_t &epoch = own_knowledge()[(size_t)current_warp()];
    expect(self.committed.empty(), "copies of a group are sent along");
    for (size_t i = 0; with_copies && i < self.begun.size(); ++i)
        p.copies.push_back({self.begun[i], now->current, epoch});
    if (with_copies)
        self.begun.clear();
    join(p.gathering, own_knowledge());
    ++epoch;
    if (--p.left > 0)
        return;
    for (sent const &c : p.copies)
        take_copy_of(c.what, {c.thread, c.epoch, 0});
    p.copies.clear();
    p.gathered = p.gathering;
    p.gathering = {};
    p.left = p.count;
    ++p.ended;
    ++now->changes;
}

void mbarrier_awaited(const void *at, uint32_t parity)
{
    phases &p = mbarrier_at(at);
    while ((uint32_t)p.ended % 2 == parity)
        wait_for(p.ended, p.ended);
    take(p.gathered);
    warp_together(OP_WARP_BARRIER, {});
}

/* A lane's part of a product of matrices: see emulated_element. Its two rows and two columns are
   taken along the depth together: four sums that do not wait for each other. */
void add_products(const std::vector<offer> &offers, int lane, float c[4])
{
    const offer *const rows = &offers[(size_t)(lane / 4 * 4)];
    const offer *const columns = &offers[(size_t)(lane % 4 * 8)];
    double sums[4] = {0, 0, 0, 0};
    for (int half = 0; half < 2; ++half)
        for (int k = 0; k < 8; ++k) {
            offer const &x = rows[k / 2], &y = columns[k / 2], &next = columns[4 + k / 2];
            double const upper = x.a[2 * half][k % 2], lower = x.a[2 * half + 1][k % 2];
            double const left = y.b[half][k % 2], right = next.b[half][k % 2];
            sums[0] += upper * left;
            sums[1] += upper * right;
            sums[2] += lower * left;
            sums[3] += lower * right;
        }
    for (int i = 0; i < 4; ++i)
        c[i] = tensor_core_cut((double)c[i] + sums[i]);
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
    for (size_t i = 0; i < b.fibers.size(); ++i)
        order.push_back((int)i);
    now = &b;
    for (size_t done = 0; done < order.size();) {
        bool moved = false;
        shuffle_order(order, b.seed);
        done = 0;
        for (int i : order) {
            fiber &f = b.fibers[(size_t)i];
            if (f.waits_for != NULL && *f.waits_for == f.waits_number)
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
    expect(threads <= WARPS_MAX * WARP, "more warps than are known");
    knowledge before;
    before.fill(epochs++); /* what was noted until now is over */
    b.known.assign((size_t)(threads / WARP), before);
    for (size_t i = 0; i < b.known.size(); ++i)
        b.known[i][i] = epochs;
    b.first_epoch = epochs;
    b.drawer = -1;
    b.changes = ++changes;
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
        for (size_t w = 0; w < b.known.size(); ++w)
            epochs = std::max(epochs, b.known[w][w]);
        changes = b.changes;
        expect(epochs < INT32_MAX / 2, "more epochs than are counted");
        now = NULL;
        free(b.shared);
    }
}

} // namespace emulated
