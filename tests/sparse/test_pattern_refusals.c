/* Patterns that mean nothing are refused in one line that names the key.
 */
#include "ringattn/pattern.h"
#include "support/captured_log.h"
#include "support/poison_suite.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

TestSuite(pattern_refusals, .init = poison_suite_begin, .fini = poison_suite_end);

enum { SEQ = 64 };

static captured_log said;

static void refuses(const ra_pattern_config *config, int64_t seq, const char *key)
{
    ra_pattern *pattern;
    captured_log_begin(&said);
    cr_expect_eq(ra_pattern_create(config, seq, 1, pool, &pattern), RA_ERR_CONFIG, "%s", key);
    cr_expect_eq(said.count, 1, "%s", key);
    cr_expect_not_null(strstr(said.line, key), "'%s' does not say '%s'", said.line, key);
}

Test(pattern_refusals, lengths_are_checked_one_by_one_and_in_sum)
{
    static const int64_t negative[] = {96, -32}, half[] = {32};
    static const int64_t overflow[] = {INT64_MAX, INT64_MAX, SEQ + 2}; /* to SEQ, in 64 bits */
    ra_pattern_config bad = ra_pattern_config_dense();
    bad.documents = half;
    refuses(&bad, SEQ, "pattern.documents: lengths must be at least 0, and there must be one");
    bad.document_count = 1;
    refuses(&bad, SEQ, "pattern.documents: lengths must sum to shape.seq = 64");
    bad.document_count = 3;
    bad.documents = overflow;
    refuses(&bad, SEQ, "pattern.documents: lengths must sum");
    bad.document_count = 2;
    bad.documents = negative;
    refuses(&bad, SEQ, "pattern.documents: lengths must be at least 0");
    bad = ra_pattern_config_dense();
    bad.sinks = -1;
    refuses(&bad, SEQ, "pattern.sinks");
}

Test(pattern_refusals, branches_have_a_length_and_a_rate_each)
{
    static const int64_t some[] = {32, 32}, none[] = {32, 0};
    ra_pattern_config bad = ra_pattern_config_dense();
    bad.segments = some;
    bad.branch_count = 2;
    refuses(&bad, SEQ, "pattern.dilated: needs one rate");
    bad.rates = none;
    refuses(&bad, SEQ, "pattern.dilated.rates");
    bad.rates = some;
    bad.segments = none;
    refuses(&bad, SEQ, "pattern.dilated.segments");
    bad.segments = some;
    bad.dilated_heads = (ra_dilated_heads)7;
    refuses(&bad, SEQ, "pattern.dilated.heads");
    bad.dilated_heads = RA_HEADS_ALL;
    bad.branch_count = 0;
    refuses(&bad, SEQ, "pattern.dilated: needs one rate per segment length, and at least one");
}

Test(pattern_refusals, blocks_have_a_size_and_options_within_their_bounds)
{
    static const double densities[] = {-0.1, 1.1, NAN};
    static const int64_t none[] = {32, 0};
    ra_pattern_config good = ra_pattern_config_dense(), bad;
    good.blocks_kind = RA_BLOCKS_DILATED_SPARSE;
    good.block_size = 16;
    bad = good;
    bad.block_size = 0;
    refuses(&bad, SEQ, "pattern.blocks.size: must be at least 1");
    bad = good;
    bad.block_size = 1;
    refuses(&bad, (int64_t)INT32_MAX + 1, "pattern.blocks.size: too small");
    bad = good;
    bad.block_width = -1;
    refuses(&bad, SEQ, "pattern.blocks.width");
    bad = good;
    bad.blocks_kind = (ra_blocks_kind)7;
    refuses(&bad, SEQ, "pattern.blocks.kind");
    bad = good;
    bad.block_rates = none;
    bad.block_rate_count = -1;
    refuses(&bad, SEQ, "pattern.blocks: rates");
    bad = good;
    bad.blocks_kind = RA_BLOCKS_LIST;
    bad.block_pair_count = -1;
    refuses(&bad, SEQ, "pattern.blocks: rates and pairs");
    bad = good;
    bad.block_globals = -1;
    refuses(&bad, SEQ, "pattern.blocks.globals");
    for (int i = 0; i < 3; ++i) {
        bad = good;
        bad.block_density = densities[i];
        refuses(&bad, SEQ, "pattern.blocks.density");
    }
    bad = good;
    bad.block_rates = none;
    bad.block_rate_count = 2;
    refuses(&bad, SEQ, "pattern.blocks.rates");
}

Test(pattern_refusals, listed_blocks_are_there_and_within_the_sequence)
{
    static const int32_t pairs[][2] = {{4, 0}, {0, 4}, {-1, 0}, {0, -1}};
    ra_pattern_config bad = ra_pattern_config_dense();
    bad.blocks_kind = RA_BLOCKS_LIST;
    bad.block_size = 16;
    bad.block_pair_count = 1;
    refuses(&bad, SEQ, "pattern.blocks: kind list needs the pairs");
    for (int i = 0; i < 4; ++i) {
        bad.block_pairs = &pairs[i];
        refuses(&bad, SEQ, "pattern.blocks: a listed pair lies outside");
    }
}
