/* What must hold between keys, and sets of features between the file and --set. */
#include "tool/parsed_config.h"

TestSuite(config_check, .init = begin);

Test(config_check, contradictions_between_keys_are_refused_at_one_of_them)
{
    REFUSES("shape: {heads: 8,\n kv_heads: 3}\n", "job.yaml:2:2:", "multiple");
    REFUSES("shape: {heads: 7}\nshape.kv_heads: 14\n", "multiple");
    REFUSES("shape: {seq: 10}\npattern:\n  documents: [3, 4]\n", "job.yaml:3:3:", "sum to 7", "10");
    REFUSES("pattern: {dilated: {segments: [8, 16], rates: [1]}}\n", "one for each");
    REFUSES("pattern: {dilated: {segments: [8], rates: [1, 2]}}\n", "one for each");
    REFUSES("attention: {mask: dense_blocks}\nmemory: {pattern_cache: {mode: lazy}}\n",
            "memory.pattern_cache.mode", "no effect", "never kept");
    REFUSES("pattern: {dilated: {segments: [8, 16]}}\n", "go together");
    REFUSES("pattern: {dilated: {rates: [8, 16]}}\n", "go together");
    REFUSES("pattern: {dilated: {heads: grouped}}\n", "no effect");
    REFUSES("pattern: {blocks: {size: 16}}\n", "pattern.blocks.kind");
    REFUSES("pattern: {blocks: {kind: list}}\n", "--input");
    REFUSES("ring: {head_groups: 9}\n", "ring.head_groups", "9 groups of 8 heads",
            "1 to 8, or a multiple of 8 up to 512");
    REFUSES("shape: {heads: 8, kv_heads: 1}\nring: {head_groups: 9}\n", "ring.head_groups",
            "1 to 8, or a multiple of 8 up to 512");
    REFUSES("ring: {head_groups: 520}\n", "ring.head_groups", "a multiple of 8 up to 512");
    REFUSES("ring: {head_groups: 16}\nattention: {kind: standard}\n", "ring.head_groups",
            "1 to 8; standard attention takes no more");
    REFUSES("shape: {heads: 8, kv_heads: 2}\nring: {head_groups: 5}\n", "ring.head_groups",
            "5 groups of 8 heads, 2 for keys", "1 to 2, or a multiple of that up to 8");
    REFUSES("shape: {heads: 8, kv_heads: 2}\nring: {head_groups: 18}\n", "ring.head_groups",
            "a multiple of 8");
    REFUSES("shape: {heads: 8, kv_heads: 2}\nring: {head_groups: 4}\n"
            "attention: {kind: linear}\n",
            "ring.head_groups", "linear attention takes at most shape.kv_heads");
    REFUSES("shape: {seq: 2000000000, batch: 1000000}\n", "too large", "below 2^57");
    REFUSES("shape: {seq: 1000000000, heads: 16, head_dim: 16}\n"
            "pattern: {causal: true, window: {left: 1023}}\n",
            "seq 1000000000^2 * heads 16", "below 2^61");
    REFUSES("comm: {backend: nccl}\ncompute: {backend: cpu}\n", "comm.backend",
            "CPU was asked for");
    REFUSES("comm: {backend: nccl}\ncompute: {isa: portable}\n", "comm.backend",
            "CPU was asked for");
    REFUSES("compute: {backend: cuda, isa: avx2}\n", "compute.isa", "is the CPU's");
    REFUSES("compute: {backend: cpu, isa: sm_90a}\n", "compute.isa", "is a GPU's");
    REFUSES("comm: {backend: nccl}\ncompute: {isa: sm_80}\n", "compute.isa", "is a GPU's");
}

Test(config_check, sizes_are_refused_from_the_first_that_overflows_on)
{
    REFUSES("shape: {seq: 1G, heads: 1, head_dim: 128, batch: 1M}\n", "below 2^57");
    REFUSES("shape: {seq: 1G, heads: 2, head_dim: 16}\n", "below 2^61");
    REFUSES("shape: {seq: 1G, heads: 1, head_dim: 16}\n"
            "pattern.dilated: {segments: [64, 128], rates: [1, 2]}\n",
            "branches 2", "below 2^61");
    ra_config config = parse("shape: {seq: 1G, heads: 1, head_dim: 16}\n");
    cr_expect_eq(ra_config_check(&config, 1), RA_OK);
    ra_config_fini(&config);
    config = parse("shape: {seq: 1G, heads: 2, head_dim: 16}\n");
    cr_expect_eq(ra_config_check_plan(&config, 1), RA_OK, "a plan does not count them one by one");
    ra_config_fini(&config);
}

/* The key that is to blame is the one that somebody gave, where the other comes from tensors. */
Test(config_check, heads_of_a_file_are_held_against_the_key_that_was_given)
{
    static const char *const given[] = {"shape: {heads: 6}\n", "shape: {kv_heads: 4}\n"};
    static const char *const says[] = {"job.yaml:1:9: shape.heads: shape.heads (6)",
                                       "job.yaml:1:9: shape.kv_heads: shape.heads (6)"};
    for (int i = 0; i < 2; i++) {
        char text[100];
        snprintf(text, sizeof(text), "%sjob: {input: in}\n", given[i]);
        ra_config config = parse(text);
        config.heads = 6;
        config.kv_heads = 4;
        cr_expect_eq(ra_config_check(&config, 1), RA_ERR_CONFIG);
        cr_expect_not_null(strstr(said.line, says[i]), "%s", said.line);
        ra_config_fini(&config);
    }
}

Test(config_check, linear_attention_refuses_what_does_not_go_with_it)
{
    static const char *const kinds[] = {"linear", "linear_causal"};
    static const char *const bad[][2] = {
        {"pattern: {causal: true}", "pattern.causal"},
        {"pattern: {window: {left: 4}}", "pattern.window.left"},
        {"pattern: {documents: [4096]}", "pattern.documents"},
        {"pattern: {blocks: {kind: random}}", "pattern.blocks"},
        {"shape: {scale: 0.5}", "shape.scale"},
        {"attention.mask: dense_blocks", "attention.mask"},
        {"ring: {layout: zigzag}", "ring.layout"},
        {"ring: {schedule: ring}", "ring.schedule"},
        {"ring: {comm_buffers: 1}", "ring.comm_buffers"},
        {"memory: {pattern_cache: {mode: lazy}}", "memory.pattern_cache.mode"}};
    for (int kind = 0; kind < 2; kind++) {
        char text[200];
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
            snprintf(text, sizeof(text), "attention: {kind: %s}\n%s\n", kinds[kind], bad[i][0]);
            REFUSES(text, bad[i][1], "linear attention");
        }
        snprintf(text, sizeof(text), "attention: {kind: %s}\nring: {layout: contiguous}\n",
                 kinds[kind]);
        ra_config config = parse(text);
        cr_expect_eq(ra_config_check(&config, 3), RA_OK);
        cr_expect_eq(config.comm_buffers, 0);
        ra_config_fini(&config);
    }
    REFUSES("attention: {linear_method: recurrent}\n", "attention.linear_method", "no effect");
    REFUSES("attention: {kind: linear, linear_method: recurrent}\n", "attention.linear_method");
    REFUSES("attention: {kind: linear_causal, linear_method: cumsum}\njob: {backward: true}\n",
            "attention.linear_method", "chunked");
}

/* The method is meant for the other points of the sweep, whose kind has several. */
Test(config_check, a_method_is_no_reason_to_refuse_the_kinds_of_a_sweep_that_have_none)
{
    static const char text[] = "attention: {linear_method: cumsum}\njob: {backward: true}\n"
                               "sweep: {attention.kind: [linear, linear_causal]}\n";
    for (int point = 1; point <= 2; point++) {
        ra_config_source const source = {.pick.sweep_point = point};
        ra_config config;
        cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
        cr_expect_eq(ra_config_check(&config, 1), point == 1 ? RA_OK : RA_ERR_CONFIG);
        ra_config_fini(&config);
    }
}

Test(config_check, base_has_one_rank_and_nothing_switched_on)
{
    ra_config config = parse("ring: {variant: base}\n");
    cr_assert_eq(ra_config_check(&config, 1), RA_OK);
    cr_assert_eq(config.comm_buffers, 0);
    cr_assert_eq(config.cache_mode, RA_CACHE_OFF);
    cr_assert_eq(config.pool_mode, RA_POOL_OFF);
    cr_assert_eq(ra_config_check(&config, 2), RA_ERR_CONFIG);
    cr_assert_not_null(strstr(said.line, "one rank"), "%s", said.line);
    ra_config_fini(&config);
    config = parse("ring: {variant: base, head_groups: 2}\n"); /* they cost nothing */
    cr_assert_eq(ra_config_check(&config, 1), RA_OK);
    cr_assert_eq(config.head_groups, 2);
    ra_config_fini(&config);
    REFUSES("ring: {variant: base, comm_buffers: 1}\n", "ring.comm_buffers", "no effect", "base");
    REFUSES("ring: {variant: base, schedule: ring}\n", "ring.schedule", "no effect", "base");
    REFUSES("ring: {variant: base, rounds: 2}\n", "ring.rounds", "no effect", "base");
    REFUSES("ring: {schedule: ring, rounds: 2}\n", "ring.rounds", "take auto");
    REFUSES("ring: {rounds: 65}\n", "ring.rounds", "64");
    REFUSES("ring: {rounds: 2}\nattention: {kind: linear}\n", "ring.rounds", "linear");
    REFUSES("ring: {variant: base}\nmemory: {pool: {mode: size_class}}\n", "memory.pool.mode",
            "no effect", "base");
    REFUSES("ring: {variant: base}\nmemory: {pattern_cache: {mode: lazy}}\n",
            "memory.pattern_cache.mode", "no effect", "base");
    config = parse("ring: {variant: base}\nmemory: {pattern_cache: {mode: off}}\n");
    cr_assert_eq(ra_config_check(&config, 1), RA_OK);
    ra_config_fini(&config);
}

Test(config_check, options_of_what_is_off_are_refused)
{
    REFUSES("memory: {pool: {mode: off,\n trim: 1M}}\n", "job.yaml:2:2:", "memory.pool.trim",
            "memory.pool.mode: off");
    REFUSES("ring: {variant: base}\nmemory: {pool: {trim: 1M}}\n", "memory.pool.trim",
            "ring.variant: base");
    REFUSES("memory: {pattern_cache: {mode: off, entries: 5}}\n", "memory.pattern_cache.entries",
            "memory.pattern_cache.mode: off");
    REFUSES("memory: {pattern_cache: {bytes: 1M, mode: off}}\n", "memory.pattern_cache.bytes",
            "memory.pattern_cache.mode: off");
    REFUSES("ring: {variant: base}\nmemory: {pattern_cache: {bytes: 1M}}\n", "pattern_cache.bytes",
            "ring.variant: base");
    REFUSES("attention: {mask: dense_blocks}\nmemory: {pattern_cache: {entries: 1}}\n",
            "pattern_cache.entries", "attention.mask: dense_blocks");
    REFUSES("attention: {kind: linear}\nmemory: {pattern_cache: {entries: 1}}\n",
            "pattern_cache.entries", "linear attention");
    REFUSES("attention: {kind: standard}\ncompute: {isa: portable}\n", "compute.isa", "OpenBLAS");
    REFUSES("pattern: {blocks: {seed: 1}}\n", "pattern.blocks.seed", "without pattern.blocks.kind");
    REFUSES("pattern: {blocks: {rates: []}}\n", "pattern.blocks.rates",
            "without pattern.blocks.kind");
    REFUSES("pattern: {blocks: {density: 0.5}}\n", "pattern.blocks.density",
            "without pattern.blocks.kind");
    REFUSES("pattern: {blocks: {kind: none, size: 64}}\n", "pattern.blocks.size",
            "without pattern.blocks.kind");
}

/* Each kind of blocks with each option, and which of them it takes. */
Test(config_check, blocks_take_the_options_of_their_kind)
{
    static const char *const given[] = {"width: 9", "rates: [3]", "density: 0.5", "globals: 3",
                                        "seed: 5"};
    static const struct {
        const char *kind;
        bool takes[5];
    } rows[] = {{"local_window", {true, false, false, false, false}},
                {"dilated_sparse", {false, true, true, false, false}},
                {"global_local", {true, false, false, true, false}},
                {"random", {false, false, true, false, true}},
                {"list", {false, false, false, false, false}}};
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        for (int i = 0; i < 5; i++) {
            char text[200], with[80];
            snprintf(text, sizeof(text), "pattern: {blocks: {kind: %s, size: 64, %s}}\n%s",
                     rows[k].kind, given[i],
                     strcmp(rows[k].kind, "list") == 0 ? "job: {input: in}\n" : "");
            snprintf(with, sizeof(with), "has no effect with pattern.blocks.kind: %s",
                     rows[k].kind);
            ra_config config = {0};
            cr_expect_eq(parse_with(text, NULL, &config), rows[k].takes[i] ? RA_OK : RA_ERR_CONFIG,
                         "%s%s", text, said.line);
            cr_expect(rows[k].takes[i] || strstr(said.line, with) != NULL, "%s%s", text, said.line);
            ra_config_fini(&config);
        }
    }
    REFUSES("pattern: {blocks: {kind: dilated_sparse, rates: [3], density: 0.5}}\n",
            "pattern.blocks.density", "with pattern.blocks.rates");
}

/* Keys of a variant over those of the file, and --set over both; what is left is a job. */
Test(config_check, options_of_what_is_replaced_get_their_defaults)
{
    static const char text[] = "pattern: {blocks: {kind: local_window, width: 9}}\n"
                               "memory: {pool: {trim: 1M}}\n"
                               "variants:\n"
                               "  random: {pattern.blocks.kind: random, pattern.blocks.seed: 5}\n"
                               "  wide: {pattern.blocks.width: 20}\n";
    const char *set = "ring.variant=base";
    ra_config config = {0};
    ra_config_source source = {.sets = &set, .set_count = 1, .pick.variant = "random"};
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.pattern.block_width, 1);
    cr_expect_eq(config.pattern.block_seed, 5);
    cr_expect_eq(config.pool_trim_bytes, 0);
    cr_expect_not(ra_config_was_given(&config, "memory.pool.trim"));
    ra_config_fini(&config);
    set = "pattern.blocks.width=30";
    cr_expect_eq(parse_with(text, &source, &config), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "--set pattern.blocks.width=30: pattern.blocks.width: "
                                         "has no effect with pattern.blocks.kind: random"),
                       "%s", said.line);
    source.pick.variant = "wide";
    set = "pattern.blocks.kind=none";
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.pattern.block_width, 1);
    ra_config_fini(&config);
    set = "pattern.blocks.kind=global_local";
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(config.pattern.block_width, 20);
    ra_config_fini(&config);
}

/* What the file asks for is not asked of a variant that cannot have it. */
Test(config_check, features_are_not_asked_of_a_variant_without_them)
{
    static const char text[] =
        "ring: {comm_buffers: 1, schedule: direct, rounds: 2}\n"
        "memory: {pool: {mode: size_class, trim: 1M}, pattern_cache: {mode: lazy}}\n"
        "variants: {lean: {ring.variant: base}}\n";
    ra_config config = {0};
    ra_config_source source = {.pick.variant = "lean"};
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_assert_eq(ra_config_check(&config, 1), RA_OK, "%s", said.line);
    cr_expect(config.comm_buffers == 0 && config.pool_mode == RA_POOL_OFF &&
              config.cache_mode == RA_CACHE_OFF);
    cr_expect(config.schedule == RA_SCHEDULE_AUTO && config.rounds <= 1);
    ra_config_fini(&config);
    const char *set = "memory.pool.mode=size_class";
    source.sets = &set;
    source.set_count = 1;
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_expect_eq(ra_config_check(&config, 1), RA_ERR_CONFIG, "asked for over the variant");
    cr_expect_not_null(strstr(said.line, "has no effect with ring.variant: base"), "%s", said.line);
    ra_config_fini(&config);
}

/* Nor of such a point of a sweep, whose report is then a job; but a sweep that is not used, as by
   'run', changes nothing. */
Test(config_check, features_are_not_asked_of_a_point_without_them)
{
    static const char text[] = "ring: {comm_buffers: 1, schedule: direct, rounds: 2}\n"
                               "memory: {pool: {trim: 1M}}\n"
                               "sweep: {attention.kind: [flash, linear]}\n";
    ra_config_source source = {0};
    for (int point = 1; point <= 2; point++) {
        ra_config config = {0};
        source.pick.sweep_point = point;
        cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
        cr_assert_eq(ra_config_check(&config, 1), RA_OK, "%s", said.line);
        cr_expect_eq(config.comm_buffers, point == 1 ? 1 : 0);
        cr_expect_eq(config.schedule, point == 1 ? RA_SCHEDULE_DIRECT : RA_SCHEDULE_AUTO);
        cr_expect_eq(config.rounds > 1, point == 1);
        json_t *json = ra_config_to_json(&config);
        char *dumped = json_dumps(json, 0);
        ra_config again = parse(dumped);
        cr_expect_eq(ra_config_check(&again, 1), RA_OK, "%s: %s", dumped, said.line);
        ra_config_fini(&again);
        ra_config_fini(&config);
        json_decref(json);
        free(dumped);
    }
    REFUSES("ring: {comm_buffers: 1}\nattention: {kind: linear}\n"
            "sweep: {attention.kind: [flash]}\n",
            "ring.comm_buffers", "no effect", "linear attention");
}

Test(config_check, options_at_their_defaults_ask_for_nothing)
{
    static const char *const texts[] = {
        "memory: {pool: {mode: off, trim: auto}}\n",
        "memory: {pattern_cache: {mode: off, bytes: 64MiB, entries: 100}}\n",
        "ring: {variant: base}\nmemory: {pattern_cache: {bytes: 64MiB}}\n",
        "pattern: {blocks: {seed: 0, density: 0.02}}\nattention: {linear_method: chunked}\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        ra_config config = parse(texts[i]);
        cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s%s", texts[i], said.line);
        ra_config_fini(&config);
    }
}

static const ra_feature_set *feature_set(const char *name)
{
    for (int i = 0; i < ra_feature_set_count; i++) {
        if (strcmp(ra_feature_sets[i].name, name) == 0)
            return &ra_feature_sets[i];
    }
    cr_assert_fail("no set %s", name);
    return NULL;
}

static ra_status parse_features(const char *set, const char *name, ra_config *config)
{
    static const char text[] =
        "ring: {schedule: direct, comm_buffers: 1}\n"
        "memory: {pool: {trim: 1M}, pattern_cache: {mode: lazy, bytes: 7}}\n";
    ra_config_source const source = {
        .sets = &set, .set_count = set != NULL, .pick.features = feature_set(name)};
    said.line[0] = '\0';
    return parse_with(text, &source, config);
}

/* A set takes the place of the file's switches, and of those that it has no use for. */
Test(config_check, sets_of_features_come_between_the_file_and_set)
{
    ra_config config = {0};
    cr_assert_eq(parse_features(NULL, "ring", &config), RA_OK);
    cr_expect_eq(config.comm_buffers, 2);
    cr_expect_eq(config.cache_mode, RA_CACHE_EAGER);
    ra_config_fini(&config);
    cr_assert_eq(parse_features("memory.pattern_cache.mode=lazy", "ring", &config), RA_OK);
    cr_expect_eq(config.cache_mode, RA_CACHE_LAZY);
    ra_config_fini(&config);
    cr_assert_eq(parse_features("ring.comm_buffers=1", "ring", &config), RA_OK);
    cr_expect_eq(config.comm_buffers, 1);
    ra_config_fini(&config);
    for (int i = 0; i < ra_feature_set_count; i++) {
        cr_assert_eq(parse_features("memory.pool.trim=2M", ra_feature_sets[i].name, &config), RA_OK,
                     "%s", said.line);
        cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s", said.line);
        ra_config_fini(&config);
    }
}

Test(config_check, set_wins_over_sets_of_features_and_may_leave_nothing_of_them)
{
    static const char *const bad[][2] = {{"ring.variant=ring", "base"},
                                         {"ring.variant=null", "base"},
                                         {"ring.variant=base", "ring"},
                                         {"memory.pool={mode: size_class}", "no_pool"},
                                         {"memory.pattern_cache.mode=lazy", "no_cache"},
                                         {"ring.comm_buffers=2", "no_buffers"},
                                         {"ring.head_groups=2", "no_groups"},
                                         {"attention.mask=analytic", "ring_dense"}};
    static const char *const good[][2] = {
        {"ring.variant=base", "base"},         {"ring.schedule=direct", "base"},
        {"memory.pool.mode=off", "no_pool"},   {"memory.pool={mode: off, trim: auto}", "ring"},
        {"ring.comm_buffers=0", "no_buffers"}, {"memory.pattern_cache.mode=eager", "ring_dense"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        ra_config config = {0};
        cr_expect_eq(parse_features(bad[i][0], bad[i][1], &config), RA_ERR_CONFIG, "%s", bad[i][0]);
        cr_expect_not_null(strstr(said.line, "contradicts"), "%s: %s", bad[i][0], said.line);
        cr_expect_not_null(strstr(said.line, bad[i][1]), "%s: %s", bad[i][0], said.line);
    }
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        ra_config config = {0};
        cr_assert_eq(parse_features(good[i][0], good[i][1], &config), RA_OK, "%s: %s", good[i][0],
                     said.line);
        cr_expect_eq(ra_config_check(&config, 1), RA_OK, "%s: %s", good[i][0], said.line);
        ra_config_fini(&config);
    }
}

Test(config_check, self_is_for_one_rank)
{
    ra_config config = parse("comm: {backend: self}\n");
    cr_expect_eq(ra_config_check(&config, 1), RA_OK);
    cr_expect_eq(ra_config_check(&config, 2), RA_ERR_CONFIG);
    cr_expect_not_null(strstr(said.line, "comm.backend: self is for one rank"), "%s", said.line);
    ra_config_fini(&config);
}

Test(config_check, host_memory_has_no_driver_to_keep_a_pool)
{
    REFUSES("memory: {pool: {mode: driver}}\n", "memory.pool.mode", "CUDA device",
            "size_class or off");
    REFUSES("memory: {pool: {mode: driver}}\ncompute: {backend: cpu}\n", "memory.pool.mode",
            "CUDA device", "compute.backend: cuda");
    ra_config config = parse("memory: {pool: {mode: driver}}\ncompute: {backend: cuda}\n");
    cr_expect_eq(ra_config_check(&config, 1), RA_OK);
    ra_config_fini(&config);
}
