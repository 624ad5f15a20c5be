/* The table of keys, and what a configuration file, --set and variants make of it. */
#include "tool/parsed_config.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(config, .init = begin);

Test(config, defaults_are_a_job)
{
    ra_config config = parse("");
    cr_assert_eq(ra_config_check(&config, 4), RA_OK);
    cr_assert_eq(config.batch, 1);
    cr_assert_eq(config.kv_heads, config.heads);
    cr_assert_eq(config.pattern.window_left, -1);
    cr_assert_eq(config.pattern.window_right, -1);
    cr_assert_null(config.pattern.documents);
    cr_assert_null(config.pattern.segments);
    cr_assert_null(config.pattern.block_rates);
    cr_assert_eq(config.pattern.blocks_kind, RA_BLOCKS_NONE);
    cr_assert_eq(config.layout, RA_LAYOUT_AUTO);
    cr_assert_eq(config.timeout_ms, 60000);
    cr_assert_null(config.input);
    for (int i = 0; i < ra_config_key_count; i++)
        cr_assert_not(ra_config_was_given(&config, ra_config_keys[i].path));
    ra_config_fini(&config);
}

Test(config, every_key_is_complete_and_its_default_is_allowed)
{
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        char problem[RA_VALUE_PROBLEM_MAX];
        const ra_yaml_node *at = NULL;
        ra_config_value value = {0};
        cr_assert_gt(strlen(key->help), 5, "%s", key->path);
        cr_assert_eq(ra_config_key_find(key->path), i, "%s is there twice", key->path);
        cr_assert_not(ra_keys_have_section(ra_config_keys, ra_config_key_count, key->path),
                      "%s is a section too", key->path);
        if (key->default_text == NULL) {
            cr_assert(key->type == RA_KEY_LIST || key->type == RA_KEY_TEXT, "%s", key->path);
            continue;
        }
        ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = key->default_text};
        cr_assert_eq(ra_config_value_read(key, &node, &value, &at, problem), RA_OK, "%s: %s",
                     key->path, problem);
    }
}

Test(config, what_lies_outside_a_range_is_refused_for_every_key)
{
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        char set[160];
        bool const integer =
            key->type == RA_KEY_INT32 || key->type == RA_KEY_INT64 || key->type == RA_KEY_BYTES;
        if (integer) {
            snprintf(set, sizeof(set), "%s=%lld", key->path, (long long)key->min - 1);
            REFUSES_SET(set, key->path);
            snprintf(set, sizeof(set), "%s=%lld", key->path, (long long)key->max + 1);
            REFUSES_SET(set, key->path);
        } else if (key->type == RA_KEY_TIME) {
            snprintf(set, sizeof(set), "%s=%lldms", key->path, (long long)key->max + 1);
            REFUSES_SET(set, key->path, "whole number of ms, s or m");
        } else if (key->type == RA_KEY_REAL) {
            snprintf(set, sizeof(set), "%s=%g", key->path, key->real_max * 2);
            REFUSES_SET(set, key->path);
            snprintf(set, sizeof(set), "%s=nan", key->path);
            REFUSES_SET(set, key->path);
        } else if (key->type == RA_KEY_LIST) {
            snprintf(set, sizeof(set), "%s=[%lld]", key->path, (long long)key->min - 1);
            REFUSES_SET(set, key->path, "item 1");
        }
        if (key->type != RA_KEY_TEXT) {
            snprintf(set, sizeof(set), "%s=nonsense", key->path);
            REFUSES_SET(set, key->path, "nonsense");
        }
        if (key->type != RA_KEY_LIST) {
            snprintf(set, sizeof(set), "%s=[1]", key->path);
            REFUSES_SET(set, key->path);
        }
        snprintf(set, sizeof(set), "%s={a: 1}", key->path);
        REFUSES_SET(set, key->path);
    }
}

static void takes(const ra_config_key *key, const char *text)
{
    char problem[RA_VALUE_PROBLEM_MAX];
    const ra_yaml_node *at = NULL;
    ra_config_value value = {0};
    ra_yaml_node const node = {.kind = RA_YAML_SCALAR, .text = text};
    cr_expect_eq(ra_config_value_read(key, &node, &value, &at, problem), RA_OK, "%s: %s", key->path,
                 problem);
}

Test(config, the_ends_of_a_range_are_allowed_for_every_key)
{
    for (int i = 0; i < ra_config_key_count; i++) {
        const ra_config_key *key = &ra_config_keys[i];
        bool const integer =
            key->type == RA_KEY_INT32 || key->type == RA_KEY_INT64 || key->type == RA_KEY_BYTES;
        for (int high = 0; high < 2; high++) {
            char text[64] = "";
            if (integer || key->type == RA_KEY_TIME)
                snprintf(text, sizeof(text), "%lld%s", (long long)(high ? key->max : key->min),
                         integer ? "" : "ms");
            else if (key->type == RA_KEY_REAL)
                snprintf(text, sizeof(text), "%.17g", high ? key->real_max : key->real_min);
            if (text[0] != '\0')
                takes(key, text);
        }
    }
}

static const char all_keys[] =
    "shape: {batch: 2, seq: 6K, heads: 6, kv_heads: 3, head_dim: 96, dtype: f16, scale: 0.125}\n"
    "pattern:\n"
    "  causal: true\n"
    "  window: {left: 100, right: 7}\n"
    "  sinks: 3\n"
    "  documents: [2K, 4096]\n"
    "  blocks: {size: 64, kind: random, density: 0.5, seed: 18446744073709551615}\n"
    "  dilated: {segments: [256, 512], rates: [1, 2], heads: grouped}\n"
    "ring: {layout: zigzag, schedule: direct, comm_buffers: 1, head_groups: 3}\n"
    "memory: {limit: 3GiB, pool: {trim: 1M}, pattern_cache: {entries: 7, bytes: 2KiB}}\n"
    "compute: {backend: cpu, threads: 3, isa: portable, deterministic: true}\n"
    "comm: {backend: self, timeout: 1500ms}\n"
    "job: {input: in.safetensors, output: 'o: #.safetensors', backward: true, verify: true,\n"
    "      repeat: 5, warmup: 2, seed: 42}\n";

/* Those that do not go with the above. */
static const char keys_of_globals[] =
    "pattern: {blocks: {kind: global_local, width: 2, globals: 3}}\n";
static const char keys_of_rates[] = "pattern: {blocks: {kind: dilated_sparse, rates: []}}\n";

Test(config, keys_of_other_kinds_of_blocks_reach_their_members)
{
    ra_config c = parse(keys_of_globals);
    cr_assert_eq(c.pattern.block_width, 2);
    cr_assert_eq(c.pattern.block_globals, 3);
    ra_config_fini(&c);
    c = parse(keys_of_rates);
    cr_assert_eq(c.pattern.block_rate_count, 0);
    cr_assert_not_null(c.pattern.block_rates); /* none, which is not the same as absent */
    ra_config_fini(&c);
}

Test(config, every_key_reaches_its_member)
{
    ra_config c = parse(all_keys);
    cr_assert_eq(ra_config_check(&c, 1), RA_OK, "%s", said.line);
    cr_assert_eq(c.batch, 2);
    cr_assert_eq(c.seq, 6144);
    cr_assert_eq(c.heads, 6);
    cr_assert_eq(c.kv_heads, 3);
    cr_assert_eq(c.head_dim, 96);
    cr_assert_eq(c.dtype, RA_F16);
    cr_assert(c.scale == 0.125);
    cr_assert(c.pattern.causal);
    cr_assert_eq(c.pattern.window_left, 100);
    cr_assert_eq(c.pattern.window_right, 7);
    cr_assert_eq(c.pattern.sinks, 3);
    cr_assert_eq(c.pattern.document_count, 2);
    cr_assert_eq(c.pattern.documents[0], 2048);
    cr_assert_eq(c.pattern.documents[1], 4096);
    cr_assert_eq(c.pattern.block_size, 64);
    cr_assert_eq(c.pattern.blocks_kind, RA_BLOCKS_RANDOM);
    cr_assert(c.pattern.block_density == 0.5);
    cr_assert_eq(c.pattern.block_seed, UINT64_MAX);
    cr_assert_eq(c.pattern.branch_count, 2);
    cr_assert_eq(c.pattern.segments[1], 512);
    cr_assert_eq(c.pattern.rates[1], 2);
    cr_assert_eq(c.pattern.dilated_heads, RA_HEADS_GROUPED);
    cr_assert_eq(c.layout, RA_LAYOUT_ZIGZAG);
    cr_assert_eq(c.schedule, RA_SCHEDULE_DIRECT);
    cr_assert_eq(c.comm_buffers, 1);
    cr_assert_eq(c.head_groups, 3);
    cr_assert_eq(c.limit_bytes, INT64_C(3) << 30);
    cr_assert_eq(c.cache_entries, 7);
    cr_assert_eq(c.cache_bytes, 2048);
    cr_assert_eq(c.threads, 3);
    cr_assert_eq(c.isa, RA_ISA_PORTABLE);
    cr_assert(c.deterministic);
    cr_assert_eq(c.comm, RA_COMM_SELF);
    cr_assert_eq(c.timeout_ms, 1500);
    cr_assert_str_eq(c.input, "in.safetensors");
    cr_assert_str_eq(c.output, "o: #.safetensors");
    cr_assert(c.backward && c.verify);
    cr_assert_eq(c.repeat, 5);
    cr_assert_eq(c.warmup, 2);
    cr_assert_eq(c.seed, 42);
    cr_assert(ra_config_was_given(&c, "shape.seq"));
    cr_assert_not(ra_config_was_given(&c, "ring.variant"));
    ra_config_fini(&c);
}

/* JSON is YAML: what a report says about a job can be run again. */
static void round_trips(const char *text)
{
    ra_config first = parse(text);
    json_t *json = ra_config_to_json(&first);
    cr_assert_not_null(json);
    char *dumped = json_dumps(json, JSON_INDENT(2));
    ra_config second = parse(dumped);
    json_t *again = ra_config_to_json(&second);
    cr_assert(json_equal(json, again), "%s", dumped);
    free(dumped);
    json_decref(json);
    json_decref(again);
    ra_config_fini(&first);
    ra_config_fini(&second);
}

Test(config, json_reads_back_as_the_same_configuration)
{
    round_trips("");
    round_trips(all_keys);
    round_trips(keys_of_globals);
    round_trips(keys_of_rates);
    round_trips("ring: {variant: base}\nshape: {scale: 1e-7}\n");
}

/* Integers of JSON are signed. */
Test(config, json_has_seeds_as_integers_up_to_the_largest)
{
    static const char *const seeds[] = {"9223372036854775807", "9223372036854775808"};
    for (int i = 0; i < 2; i++) {
        char text[64];
        snprintf(text, sizeof(text), "job: {seed: %s}\n", seeds[i]);
        ra_config config = parse(text);
        json_t *json = ra_config_to_json(&config);
        const json_t *seed = json_object_get(json_object_get(json, "job"), "seed");
        cr_expect(i == 0 ? json_integer_value(seed) == INT64_MAX
                         : json_is_string(seed) && strcmp(json_string_value(seed), seeds[i]) == 0);
        json_decref(json);
        ra_config_fini(&config);
    }
}

Test(config, what_a_report_says_of_a_job_is_a_job)
{
    static const char *const texts[] = {
        "",
        "ring: {variant: base}\n",
        "memory: {pool: {mode: off}, pattern_cache: {mode: off}}\n",
        "attention: {kind: linear}\n",
        "attention: {kind: standard}\n",
        "attention: {mask: dense_blocks}\n",
        "attention: {kind: linear_causal, linear_method: recurrent}\n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        ra_config first = parse(texts[i]);
        cr_assert_eq(ra_config_check(&first, 1), RA_OK);
        json_t *json = ra_config_to_json(&first);
        char *dumped = json_dumps(json, JSON_INDENT(2));
        ra_config second = parse(dumped);
        cr_expect_eq(ra_config_check(&second, 1), RA_OK, "%s", texts[i]);
        free(dumped);
        json_decref(json);
        ra_config_fini(&first);
        ra_config_fini(&second);
    }
}

Test(config, times_are_counted_in_their_units)
{
    static const struct {
        const char *text;
        int64_t ms;
    } times[] = {{"comm: {timeout: 250ms}", 250},
                 {"comm: {timeout: 3s}", 3000},
                 {"comm: {timeout: 2m}", 120000}};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        ra_config config = parse(times[i].text);
        cr_assert_eq(config.timeout_ms, times[i].ms, "%s", times[i].text);
        ra_config_fini(&config);
    }
}

Test(config, sizes_are_powers_of_1024_and_never_overflow)
{
    ra_config config = parse("memory: {limit: 2M}\nshape: {seq: 64KiB}\njob: {seed: 1G}\n");
    cr_assert_eq(config.limit_bytes, 2 << 20);
    cr_assert_eq(config.seq, 65536);
    cr_assert_eq(config.seed, 1 << 30);
    ra_config_fini(&config);
    config = parse("shape: {seq: +64}\n");
    cr_assert_eq(config.seq, 64);
    ra_config_fini(&config);
    /* Which would be -1, 64 and 3. */
    REFUSES_SET("pattern.window.left=18446744073709551615", "pattern.window.left");
    REFUSES_SET("shape.seq=18446744073709551680", "shape.seq");
    REFUSES_SET("shape.seq=18446744073709551619", "shape.seq");
    REFUSES_SET("shape.scale=1-2", "shape.scale");
    REFUSES_SET("shape.seq=128Q", "128Q", "shape.seq", "KiB");
    REFUSES_SET("shape.seq=1.5K", "1.5K");
    REFUSES_SET("shape.seq=1 K", "1 K");
    REFUSES_SET("shape.seq=0x10", "0x10");
    REFUSES_SET("memory.limit=9007199254740992K",
                "above the most that it may be, 1125899906842624 bytes");
    REFUSES_SET("memory.limit=99999999999999999999",
                "above the most that it may be, 1125899906842624 bytes");
    REFUSES_SET("job.seed=-1", "job.seed");
    REFUSES_SET("job.seed=18446744073709551616", "job.seed");
    REFUSES_SET("job.seed=18014398509481984K", "job.seed");
    REFUSES_SET("comm.timeout=60", "comm.timeout", "whole number of ms, s or m");
    REFUSES_SET("comm.timeout=0s", "comm.timeout");
}

Test(config, a_mistake_names_file_line_column_key_and_the_nearest_name)
{
    REFUSES("shape:\n  batch: 1\n  seqq: 5\n", "job.yaml:3:3:", "shape.seqq", "'shape.seq'");
    REFUSES("shpae: {seq: 5}\n", "job.yaml:1:1:", "'shape'");
    REFUSES("seq: 5\n", "job.yaml:1:1:", "'shape.seq'");
    REFUSES("pattern:\n  widnow: {left: 3}\n", "job.yaml:2:3:", "'pattern.window'");
    REFUSES("zzzzzzzzzzzzz: 5\n", "unknown key", "--help-config");
    REFUSES("mode: off\n", "job.yaml:1:1:", "'memory.pool.mode'"); /* the shorter of two */
    REFUSES("variant: {a: {}}\n", "job.yaml:1:1:", "'variants'");
    REFUSES("sweeps: {shape.seq: [5]}\n", "job.yaml:1:1:", "'sweep'");
    REFUSES("ring:\n  layout: zigzga\n", "job.yaml:2:11:", "ring.layout", "'zigzag'");
    REFUSES("pattern:\n  documents:\n  - 10\n  - ten\n", "job.yaml:4:5:", "item 2");
    cr_expect_null(strstr(said.line, "sweep"), "of a key that takes a list: %s", said.line);
    REFUSES("shape: {dtype: float32}\n", "job.yaml:1:16:", "'f32'");
    REFUSES("compute: {backend: gpu}\n", "job.yaml:1:20:", "'cuda'"); /* not 'cpu' */
    REFUSES("shape: 5\n", "job.yaml:1:8:", "section");
    REFUSES("- 5\n", "job.yaml:1:1:");
    REFUSES("just text\n", "job.yaml:1:1:");
}

Test(config, a_key_given_twice_is_refused_however_it_is_written)
{
    REFUSES("shape:\n  seq: 5\n  seq: 6\n", "job.yaml:3:3:", "duplicate", "seq");
    REFUSES("shape: {seq: 5}\nshape: {batch: 1}\n", "job.yaml:2:1:", "duplicate");
    REFUSES("shape: {seq: 5}\nshape.seq: 6\n", "job.yaml:2:1:", "duplicate", "shape.seq");
}

Test(config, set_wins_over_variant_and_variant_over_file)
{
    static const char text[] = "shape: {seq: 10, batch: 10, heads: 10}\n"
                               "variants:\n"
                               "  small: {shape.seq: 20, shape: {batch: 20}}\n"
                               "  empty:\n";
    const char *const sets[] = {"shape.seq=30", "shape.seq=40"};
    ra_config config = {0};
    ra_config_source source = {
        .sets = sets, .set_count = 2, .pick.variant = "small", .backward = true};
    cr_assert_eq(parse_with(text, &source, &config), RA_OK, "%s", said.line);
    cr_assert_eq(config.heads, 10);
    cr_assert_eq(config.batch, 20);
    cr_assert_eq(config.seq, 40);
    cr_assert(config.backward);
    ra_config_fini(&config);
    source.pick.variant = "smal";
    cr_assert_eq(parse_with(text, &source, &config), RA_ERR_CONFIG);
    cr_assert_not_null(strstr(said.line, "'small'"), "%s", said.line);
    source.pick.variant = "empty";
    cr_assert_eq(parse_with(text, &source, &config), RA_OK);
    ra_config_fini(&config);
}

Test(config, a_variant_that_is_not_there_says_what_to_give)
{
    static const char *const cases[][3] = {
        {"variants: {first: {}}\n", "zzzzzzzz", "its first is 'first'"},
        {"", "base", "for base itself give --set ring.variant=base"},
        {"variants: {zzzzzzzz: {}}\n", "ring", "for ring itself give --set ring.variant=ring"},
        {"", "lean", "variants are a section of the --config file"},
        {"variants:\n", "lean", "variants are a section of the --config file"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        ra_config config = {0};
        ra_config_source const source = {.pick.variant = cases[i][1]};
        cr_assert_eq(parse_with(cases[i][0], &source, &config), RA_ERR_CONFIG, "%s", cases[i][1]);
        cr_expect_not_null(strstr(said.line, cases[i][2]), "%s", said.line);
    }
}

/* Of a file with tensors the number is known when it is read. */
Test(config, key_value_heads_are_as_many_as_heads_unless_a_file_says)
{
    ra_config config = parse("shape: {heads: 6}\n");
    cr_expect_eq(config.kv_heads, 6);
    ra_config_fini(&config);
    config = parse("shape: {heads: 6}\njob: {input: in.safetensors}\n");
    cr_expect_eq(config.kv_heads, 0);
    ra_config_fini(&config);
}

Test(config, variants_and_sweeps_are_checked_even_where_they_are_not_used)
{
    REFUSES("variants: {a: {shape.seqq: 5}}\n", "shape.seqq", "'shape.seq'");
    REFUSES("variants: {a: {shape.seq: x}}\n", "shape.seq");
    REFUSES("variants: [a]\n", "variants");
    REFUSES("variants: {a: 5}\n", "variants");
    REFUSES("sweep: {shape.seq: 5}\n", "sweep", "list");
    REFUSES("sweep: {shape.seq: []}\n", "sweep", "list");
    REFUSES("sweep: {shape.seq: [5, x]}\n", "shape.seq", "'x'");
    REFUSES("sweep: {shape.sek: [5]}\n", "'shape.seq'");
    REFUSES("variants: {a: {sweep: {shape.seq: [5]}}}\n", "job.yaml:1:16: sweep", "at the top");
    REFUSES("variants: {a: {variants: {b: {shape.seq: 5}}}}\n", "variants", "at the top");
    REFUSES("sweep: {variants: {a: {}}}\n", "variants", "at the top");
    REFUSES("shape: {sweep: {shape.seq: [5]}}\n", "shape.sweep", "unknown key");
    ra_config config = parse("sweep: {shape.seq: [5, 6], pattern.documents: [[1, 2], null]}\n");
    cr_assert(config.has_sweep);
    cr_assert_eq(config.seq, 4096);
    ra_config_fini(&config);
}

Test(config, null_gives_back_the_default)
{
    const char *const sets[] = {"pattern=null", "shape.seq=~"};
    ra_config config = {0};
    ra_config_source const source = {.sets = sets, .set_count = 2};
    cr_assert_eq(parse_with(all_keys, &source, &config), RA_OK, "%s", said.line);
    cr_assert_not(config.pattern.causal);
    cr_assert_null(config.pattern.documents);
    cr_assert_eq(config.pattern.window_left, -1);
    cr_assert_eq(config.seq, 4096);
    cr_assert_not(ra_config_was_given(&config, "shape.seq"));
    ra_config_fini(&config);
    config = parse("pattern: {window: {}, documents: [], blocks: , dilated: ~}\nring:\n");
    cr_assert_null(config.pattern.documents);
    ra_config_fini(&config);
    config = parse("variants:\nsweep: {shape: , pattern.causal: [true]}\nshape: {seq: 10}\n");
    cr_expect_eq(config.seq, 10, "a sweep over nothing");
    cr_expect_eq(config.variant_count, 0);
    ra_config_fini(&config);
}

Test(config, an_empty_section_undoes_no_key_given_before_it)
{
    REFUSES("shape.seq: 10\nshape:\n", "job.yaml:2:1: shape: ", "null would undo shape.seq");
    REFUSES("pattern: {window.left: 3, window: ~}\n",
            "job.yaml:1:27: pattern.window: ", "pattern.window.left");
    REFUSES("variants: {a: {ring.layout: zigzag, ring: }}\n", "ring: ", "ring.layout");
    ra_config config = parse("shape:\nshape.seq: 10\n");
    cr_expect_eq(config.seq, 10);
    ra_config_fini(&config);
}

Test(config, sets_that_are_no_sets_are_refused)
{
    REFUSES_SET("shape.seq", "--set shape.seq", "KEY=VALUE");
    REFUSES_SET("=5", "KEY=VALUE");
    REFUSES_SET("shape.seq=", "no value");
    REFUSES_SET("shape.seq= \t\n", "no value");
    REFUSES_SET("shape.seq= # as it was", "no value");
    REFUSES_SET("shape.seq=[", "YAML");
    REFUSES_SET("variants.a=5", "unknown key");
    REFUSES_SET("sweep={shape.seq: [5]}", "--set sweep", "at the top");
    REFUSES_SET("shape={sweep: {shape.seq: [5]}}", "shape.sweep", "unknown key");
    REFUSES_SET("shape.seq=5\nshape: 3", "--set");
}

/* A word of the command line comes as it is, not as YAML. */
Test(config, a_name_that_reports_could_not_hold_is_refused)
{
    static const char *const names[] = {"a\x01", "caf\xe9", ""};
    for (int i = 0; i < 3; i++) {
        ra_config config = {0};
        ra_config_source const source = {.output = names[i]};
        cr_expect_eq(parse_with("", &source, &config), RA_ERR_CONFIG, "name %d", i);
        cr_expect_not_null(strstr(said.line, i < 2 ? "UTF-8 text" : "empty"), "%s", said.line);
    }
}

Test(config, a_file_may_have_16_mib_and_no_more)
{
    char path[] = "/tmp/ringattn_config_XXXXXX";
    int const fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    for (int more = 0; more < 2; more++) {
        char *text = NULL;
        size_t bytes = 0;
        cr_assert_eq(ftruncate(fd, RA_CONFIG_BYTES_MAX + more), 0);
        cr_expect_eq(ra_config_read_file("configuration", path, &text, &bytes),
                     more == 0 ? RA_OK : RA_ERR_CONFIG);
        cr_expect_eq(bytes, more == 0 ? RA_CONFIG_BYTES_MAX : 0);
        free(text);
    }
    cr_expect_not_null(strstr(said.line, "larger than 16 MiB"), "%s", said.line);
    close(fd);
    unlink(path);
}

/* Of a file that is not to be taken. */
static ra_status read_file(const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    return ra_config_read_file("configuration", path, &text, &bytes);
}

Test(config, a_file_that_cannot_be_read_is_a_file_error)
{
    cr_assert_eq(read_file("/nowhere/job.yaml"), RA_ERR_IO);
    cr_assert_not_null(strstr(said.line, "/nowhere/job.yaml"));
    cr_assert_eq(read_file("/"), RA_ERR_IO);
    cr_assert_eq(read_file("/dev/zero"), RA_ERR_CONFIG); /* endless */
}

Test(config, a_pipe_that_nobody_writes_to_is_refused_at_once, .timeout = 20)
{
    char folder[] = "/tmp/ringattn_config_XXXXXX", path[64];
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/pipe", folder);
    cr_assert_eq(mkfifo(path, 0600), 0);
    ra_status const status = read_file(path);
    unlink(path);
    rmdir(folder);
    cr_assert_eq(status, RA_ERR_CONFIG);
    cr_assert_not_null(strstr(said.line, "is a device or pipe"));
}
