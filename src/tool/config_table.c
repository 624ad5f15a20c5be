#include "config_table.h"

#include <stdio.h>
#include <string.h>

static const ra_choice dtypes[] = {{"f32", RA_F32}, {"f16", RA_F16}, {"bf16", RA_BF16}, {NULL, 0}};
static const ra_choice block_kinds[] = {{"none", RA_BLOCKS_NONE},
                                        {"local_window", RA_BLOCKS_LOCAL_WINDOW},
                                        {"dilated_sparse", RA_BLOCKS_DILATED_SPARSE},
                                        {"global_local", RA_BLOCKS_GLOBAL_LOCAL},
                                        {"random", RA_BLOCKS_RANDOM},
                                        {"list", RA_BLOCKS_LIST},
                                        {NULL, 0}};
static const ra_choice dilated_heads[] = {
    {"all", RA_HEADS_ALL}, {"grouped", RA_HEADS_GROUPED}, {NULL, 0}};
static const ra_choice attention_kinds[] = {{"flash", RA_ATTENTION_FLASH},
                                            {"standard", RA_ATTENTION_STANDARD},
                                            {"linear", RA_ATTENTION_LINEAR},
                                            {"linear_causal", RA_ATTENTION_LINEAR_CAUSAL},
                                            {NULL, 0}};
static const ra_choice linear_methods[] = {{"chunked", RA_LINEAR_CHUNKED},
                                           {"recurrent", RA_LINEAR_RECURRENT},
                                           {"cumsum", RA_LINEAR_CUMSUM},
                                           {NULL, 0}};
static const ra_choice masks[] = {
    {"analytic", RA_MASK_ANALYTIC}, {"dense_blocks", RA_MASK_DENSE_BLOCKS}, {NULL, 0}};
static const ra_choice ring_variants[] = {
    {"ring", RA_VARIANT_RING}, {"base", RA_VARIANT_BASE}, {NULL, 0}};
static const ra_choice layouts[] = {{"contiguous", RA_LAYOUT_CONTIGUOUS},
                                    {"zigzag", RA_LAYOUT_ZIGZAG},
                                    {"striped", RA_LAYOUT_STRIPED},
                                    {"balanced", RA_LAYOUT_BALANCED},
                                    {"auto", RA_LAYOUT_AUTO},
                                    {NULL, 0}};
static const ra_choice schedules[] = {{"ring", RA_SCHEDULE_RING},
                                      {"direct", RA_SCHEDULE_DIRECT},
                                      {"shared", RA_SCHEDULE_SHARED},
                                      {"auto", RA_SCHEDULE_AUTO},
                                      {NULL, 0}};
static const ra_choice pool_modes[] = {{"off", RA_POOL_OFF},
                                       {"size_class", RA_POOL_SIZE_CLASS},
                                       {"driver", RA_POOL_DRIVER},
                                       {NULL, 0}};
static const ra_choice cache_modes[] = {
    {"off", RA_CACHE_OFF}, {"lazy", RA_CACHE_LAZY}, {"eager", RA_CACHE_EAGER}, {NULL, 0}};
static const ra_choice backends[] = {
    {"auto", RA_BACKEND_AUTO}, {"cpu", RA_BACKEND_CPU}, {"cuda", RA_BACKEND_CUDA}, {NULL, 0}};
static const ra_choice isas[] = {{"auto", RA_ISA_AUTO},
                                 {"portable", RA_ISA_PORTABLE},
                                 {"avx2", RA_ISA_AVX2},
                                 {"avx512", RA_ISA_AVX512},
                                 {"avx512bf16", RA_ISA_AVX512BF16},
                                 {"amx", RA_ISA_AMX},
                                 {"neon", RA_ISA_NEON},
                                 {"sm_80", RA_ISA_SM80},
                                 {"sm_90a", RA_ISA_SM90A},
                                 {"sm_90a_backward", RA_ISA_SM90A_BACKWARD},
                                 {NULL, 0}};
static const ra_choice comms[] = {{"auto", RA_COMM_AUTO},
                                  {"self", RA_COMM_SELF},
                                  {"mpi", RA_COMM_MPI},
                                  {"nccl", RA_COMM_NCCL},
                                  {NULL, 0}};

#define AT(member)       .offset = offsetof(ra_config, member)
#define COUNT_AT(member) .count_offset = offsetof(ra_config, member)
#define RANGE(low, high) .min = (low), .max = (high)
#define REALS(low, high) .real_min = (low), .real_max = (high)
#define TOKENS_MAX       INT32_MAX
#define BYTES_MAX        (INT64_C(1) << 50) /* of 4,096 ranks they sum to an integer */

/* clang-format off */
const ra_config_key ra_config_keys[] = {
    {"shape.batch", RA_KEY_INT64, "1", "independent sequences", AT(batch), RANGE(1, 1 << 20)},
    {"shape.seq", RA_KEY_INT64, "4096",
     "tokens per sequence; but for plans, batch * seq^2 * heads * dilated branches must be below "
     "2^61, whatever the pattern keeps",
     AT(seq), RANGE(1, TOKENS_MAX)},
    {"shape.heads", RA_KEY_INT32, "8", "query heads", AT(heads), RANGE(1, 65536)},
    {"shape.kv_heads", RA_KEY_INT32, "auto",
     "key and value heads, a divisor of `shape.heads`; auto: as many as query heads",
     AT(kv_heads), RANGE(1, 65536), .zero_name = "auto"},
    {"shape.head_dim", RA_KEY_INT32, "64", "elements per head", AT(head_dim),
     RANGE(1, RA_HEAD_DIM_MAX)},
    {"shape.dtype", RA_KEY_CHOICE, "bf16", "element type of q, k, v and the results", AT(dtype),
     .choices = dtypes},
    {"shape.scale", RA_KEY_REAL, "auto", "factor on scores; auto: 1 / sqrt(head_dim)", AT(scale),
     REALS(1e-30, 1e30), .zero_name = "auto"},

    {"pattern.causal", RA_KEY_BOOL, "false", "a token sees none that come after it",
     AT(pattern.causal)},
    {"pattern.window.left", RA_KEY_INT64, "-1", "tokens seen to the left; -1: all",
     AT(pattern.window_left), RANGE(-1, TOKENS_MAX)},
    {"pattern.window.right", RA_KEY_INT64, "-1", "tokens seen to the right; -1: all",
     AT(pattern.window_right), RANGE(-1, TOKENS_MAX)},
    {"pattern.sinks", RA_KEY_INT64, "0",
     "leading tokens of a document that the window never hides", AT(pattern.sinks),
     RANGE(0, TOKENS_MAX)},
    {"pattern.documents", RA_KEY_LIST, NULL,
     "lengths of documents, in order, summing to `shape.seq`: no attention across",
     AT(pattern.documents), COUNT_AT(pattern.document_count), RANGE(0, TOKENS_MAX)},
    {"pattern.blocks.kind", RA_KEY_CHOICE, "none",
     "which pairs of blocks are kept; list: the pairs of tensor `blocks` in the input file",
     AT(pattern.blocks_kind), .choices = block_kinds},
    {"pattern.blocks.size", RA_KEY_INT64, "128", "tokens per block", AT(pattern.block_size),
     RANGE(1, TOKENS_MAX)},
    {"pattern.blocks.width", RA_KEY_INT64, "1",
     "local_window, global_local: blocks kept to each side", AT(pattern.block_width),
     RANGE(0, TOKENS_MAX)},
    {"pattern.blocks.rates", RA_KEY_LIST, NULL,
     "dilated_sparse: distances kept; absent: powers of two until `density` is reached",
     AT(pattern.block_rates), COUNT_AT(pattern.block_rate_count), RANGE(1, TOKENS_MAX),
     .keeps_empty = true},
    {"pattern.blocks.density", RA_KEY_REAL, "0.02", "random, dilated_sparse: share of blocks kept",
     AT(pattern.block_density), REALS(0, 1)},
    {"pattern.blocks.globals", RA_KEY_INT64, "1",
     "global_local: leading blocks that see all and are seen by all", AT(pattern.block_globals),
     RANGE(0, TOKENS_MAX)},
    {"pattern.blocks.seed", RA_KEY_UINT64, "0", "random: which blocks", AT(pattern.block_seed)},
    {"pattern.dilated.segments", RA_KEY_LIST, NULL, "segment length of each branch",
     AT(pattern.segments), COUNT_AT(pattern.branch_count), RANGE(1, TOKENS_MAX)},
    {"pattern.dilated.rates", RA_KEY_LIST, NULL, "dilation rate of each branch",
     AT(pattern.rates), COUNT_AT(rate_count), RANGE(1, TOKENS_MAX)},
    {"pattern.dilated.heads", RA_KEY_CHOICE, "all",
     "all: every head takes every branch; grouped: heads are dealt to the branches",
     AT(pattern.dilated_heads), .choices = dilated_heads},

    {"attention.kind", RA_KEY_CHOICE, "flash",
     "how attention is computed; linear, linear_causal: without softmax, from sums of elu(k) + 1",
     AT(attention_kind),
     .choices = attention_kinds},
    {"attention.linear_method", RA_KEY_CHOICE, "chunked",
     "linear_causal: by chunks, row by row, or with the state of every row in memory",
     AT(linear_method), .choices = linear_methods},
    {"attention.mask", RA_KEY_CHOICE, "analytic",
     "how the pattern is held: dense_blocks lists each block of 128 x 128, as FlexAttention does",
     AT(mask),
     .choices = masks},

    {"ring.variant", RA_KEY_CHOICE, "ring",
     "base: one rank, and everything off that costs memory", AT(variant),
     .choices = ring_variants},
    {"ring.layout", RA_KEY_CHOICE, "auto",
     "who owns which tokens; auto: the fewest bytes sent among the balanced ones", AT(layout),
     .choices = layouts},
    {"ring.schedule", RA_KEY_CHOICE, "auto",
     "ring: blocks hop; direct: needed rows only; shared: read in place within a host, direct "
     "between hosts; auto: shared where it can be, else what sends least (in several rounds: direct)",
     AT(schedule), .choices = schedules},
    {"ring.comm_buffers", RA_KEY_INT32, "2",
     "buffers for rows on their way, held for the whole job; 0: none, a step takes what it needs; "
     "1: one, two where blocks hop; 2: transfers run while a step computes",
     AT(comm_buffers), RANGE(0, 2)},
    {"ring.head_groups", RA_KEY_INT32, "auto",
     "groups of heads computed one after the other: 1 to shape.kv_heads; or a multiple of that up "
     "to shape.heads; or a multiple of shape.heads up to 64 times it, each with a part of every "
     "rank's queries; beyond shape.kv_heads keys travel several times; more of them take less "
     "memory, and up to shape.kv_heads send less where heads of dilated branches see different "
     "rows; auto: as many as save much of that and leave each enough work, or as memory wants: more "
     "than shape.kv_heads where neither these nor rounds suffice; standard attention takes up to "
     "shape.heads, linear up to shape.kv_heads",
     AT(head_groups), RANGE(1, 65536 * RA_QUERY_PARTS_MAX), .zero_name = "auto"},
    {"ring.rounds", RA_KEY_INT32, "auto",
     "rounds in which rows travel between ranks that do not share memory, a part of each exchange "
     "at a time; more of them take smaller buffers and more tile maps; auto: the first of 1, 2, 4, ... "
     "that fits with up to shape.kv_heads head groups, or with those asked for, else the first of "
     "those that need the fewest groups; schedule ring has one",
     AT(rounds), RANGE(1, RA_ROUNDS_MAX), .zero_name = "auto"},

    {"memory.limit", RA_KEY_BYTES, "none",
     "bytes that a rank may take; none: its share of what is free when the job begins, on hosts less 2 %", AT(limit_bytes),
     RANGE(1, BYTES_MAX), .zero_name = "none"},
    {"memory.pool.mode", RA_KEY_CHOICE, "size_class",
     "what keeps freed memory for later use; driver: a CUDA device's own pool; "
     "`ring.variant: base` has none",
     AT(pool_mode), .choices = pool_modes},
    {"memory.pool.trim", RA_KEY_BYTES, "auto",
     "idle bytes that the pool may hold; auto: what fits below the peak of bytes in use; "
     "not with mode off",
     AT(pool_trim_bytes), RANGE(1, BYTES_MAX), .zero_name = "auto"},
    {"memory.pool.log", RA_KEY_TEXT, NULL,
     "file for every block that is taken and given back, to be replayed; FILE.RANK where ranks are "
     "several, FILE.POINT and FILE.POINT.RANK of `bench`",
     AT(pool_log)},
    {"memory.pattern_cache.mode", RA_KEY_CHOICE, "lazy",
     "which tile maps are kept for later jobs of the same process; lazy: those that are asked for "
     "twice; eager: all; the base variant: off", AT(cache_mode), .choices = cache_modes},
    {"memory.pattern_cache.entries", RA_KEY_INT64, "100", "most tile maps kept; not with mode off",
     AT(cache_entries), RANGE(1, 1 << 20)},
    {"memory.pattern_cache.bytes", RA_KEY_BYTES, "64MiB", "most bytes of tile maps kept, per rank; not with mode off",
     AT(cache_bytes), RANGE(1, BYTES_MAX)},

    {"compute.backend", RA_KEY_CHOICE, "auto", "what computes; auto: the CPU where no GPU can, and says why", AT(backend),
     .choices = backends},
    {"compute.threads", RA_KEY_INT32, "auto",
     "threads per rank; auto: the cores of this process over the ranks that share them",
     AT(threads), RANGE(1, 4096), .zero_name = "auto"},
    {"compute.isa", RA_KEY_CHOICE, "auto", "instruction set; auto: the best of this machine; on GPUs sm_90a, forward by wgmma, where compute capability (9.0), head_dim and 16 bits allow, else sm_80; sm_90a_backward, never run on a GPU so far: in bf16 with these head_dims, and not deterministic, backward by wgmma, too",
     AT(isa), .choices = isas},
    {"compute.deterministic", RA_KEY_BOOL, "false", "repeated runs agree bit for bit; on CPUs they always do for a given number of threads; on GPUs this costs time backward in bf16 up to head_dim 128 alone",
     AT(deterministic)},

    {"comm.backend", RA_KEY_CHOICE, "auto",
     "what carries bytes between ranks; auto: mpi under mpirun, else self (one rank); between "
     "GPUs auto is nccl where there is one, else mpi, through host memory", AT(comm),
     .choices = comms},
    {"comm.timeout", RA_KEY_TIME, "60s",
     "longest wait for another rank, and for a GPU that comes no further", AT(timeout_ms),
     RANGE(1, 86400000)},

    {"job.input", RA_KEY_TEXT, NULL, "safetensors file with q, k, v; none: random tensors",
     AT(input)},
    {"job.output", RA_KEY_TEXT, NULL, "safetensors file to write", AT(output)},
    {"job.backward", RA_KEY_BOOL, "false", "compute gradients too", AT(backward)},
    {"job.verify", RA_KEY_BOOL, "false", "recompute sampled rows in float64 and compare",
     AT(verify)},
    {"job.repeat", RA_KEY_INT32, "1", "timed repetitions; of bench and ablate the most, which end once times agree (without this key 50, or 10 s); not of probe", AT(repeat), RANGE(1, 1000000)},
    {"job.warmup", RA_KEY_INT32, "0", "repetitions before those that are timed; of bench and ablate 1 without this key; not of probe", AT(warmup),
     RANGE(0, 1000000)},
    {"job.seed", RA_KEY_UINT64, "0", "seed of random tensors, and of which rows are sampled", AT(seed)},
};
/* clang-format on */

const int ra_config_key_count = (int)(sizeof(ra_config_keys) / sizeof(ra_config_keys[0]));

_Static_assert(sizeof(ra_config_keys) / sizeof(ra_config_keys[0]) <= RA_CONFIG_KEY_MAX,
               "ra_config.places has one entry per key");
_Static_assert(sizeof(int) == sizeof(int32_t), "int members are stored as int32");
_Static_assert(sizeof(ra_dtype) == sizeof(unsigned) && sizeof(ra_layout_kind) == sizeof(unsigned),
               "enum members are stored as unsigned");

int ra_config_key_find(const char *path)
{
    return ra_keys_find(ra_config_keys, ra_config_key_count, path);
}

/* ---- any table of keys ----------------------------------------------------------------------- */

int ra_keys_find(const ra_config_key *keys, int count, const char *path)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(keys[i].path, path) == 0)
            return i;
    }
    return -1;
}

bool ra_key_is_in(const ra_config_key *key, const char *section)
{
    size_t const length = strlen(section);
    return strncmp(key->path, section, length) == 0 && key->path[length] == '.';
}

bool ra_keys_have_section(const ra_config_key *keys, int count, const char *path)
{
    for (int i = 0; i < count; i++) {
        if (ra_key_is_in(&keys[i], path))
            return true;
    }
    return false;
}

ra_status ra_keys_refuse_section(const ra_yaml *yaml, const ra_yaml_node *node, const char *section)
{
    return ra_yaml_refuse(yaml, node->line, node->column,
                          "%s: is a section: its keys go below it, or {} around them", section);
}

/* The last word of a path, which is where most slips and forgotten sections show. */
static const char *path_leaf(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL ? dot + 1 : path;
}

static void sections_offer(const char *path, ra_nearest *nearest)
{
    for (const char *dot = strchr(path, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
        char section[RA_NEAREST_BYTES];
        snprintf(section, sizeof(section), "%.*s", (int)(dot - path), path);
        ra_nearest_offer(nearest, section);
    }
}

void ra_keys_offer(const ra_config_key *keys, int count, ra_nearest *nearest)
{
    for (int i = 0; i < count; i++)
        ra_nearest_offer(nearest, keys[i].path);
    for (int i = 0; i < count; i++)
        sections_offer(keys[i].path, nearest);
    if (nearest->name[0] != '\0')
        return;
    for (int i = 0; i < count; i++) {
        const char *candidate = keys[i].path;
        if (strcmp(path_leaf(candidate), path_leaf(nearest->typed)) == 0 &&
            (nearest->name[0] == '\0' || strlen(candidate) < strlen(nearest->name)))
            snprintf(nearest->name, sizeof(nearest->name), "%s", candidate);
    }
}
