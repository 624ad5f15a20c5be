/* What tests of tensor files share: a folder, a pool, configurations, input files. */
#ifndef RINGATTN_TESTS_TENSOR_FIXTURE_H
#define RINGATTN_TESTS_TENSOR_FIXTURE_H

#include "support/captured_log.h"
#include "tool/config.h"
#include "tool/safetensors.h"

extern captured_log said;
extern char folder[64];
extern ra_pool *pool;

/* A fresh folder, a pool without limit, and the log captured. */
void fixture_begin(void);
/* Fails the test where the pool has not got everything back. */
void fixture_end(void);

/* A path in the folder; valid until the second call after it. */
const char *in_folder(const char *name);
int entries_in_folder(void);

/* A configuration from YAML in printf form; fails the test where it is refused. */
ra_config parse_config(const char *format, ...) RA_PRINTF(1, 2);

/* Rows of these ranges, of the fixture's pool. */
ra_rowset rowset(const ra_range *ranges, int count);

ra_tensor_info describe(const char *name, const char *dtype, int dims, const int64_t *shape);
/* Write a file; byte x of every tensor is fixture_byte(its number, x), or comes from data[i]. */
void write_tensors(const char *path, ra_tensor_info *infos, const void *const *data, int count);
unsigned char fixture_byte(int tensor, int64_t at);

#endif
