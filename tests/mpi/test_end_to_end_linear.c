/*
 * Linear attention the whole way: a safetensors file in, `mpirun -n R ringattn run`, a safetensors
 * file out, every element of it against the float64 oracle.
 */
#include "support/oracle_linear.h"
#include "support/random_pattern.h"
#include "tool/command_runner.h"
#include "tool/safetensors.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>

TestSuite(end_to_end_linear, .init = command_folder_make, .fini = command_folder_remove,
          .timeout = 200);

enum { TENSORS = 4 };

typedef struct job {
    oracle_shape shape;
    ra_dtype dtype;
    int64_t counts[TENSORS]; /* q k v do; o dq dk dv have those of q q k v */
    void *stored[TENSORS];
    double *values[TENSORS], *want[TENSORS];
} job;

static const char *const dtype_texts[] = {[RA_F32] = "F32", [RA_F16] = "F16", [RA_BF16] = "BF16"};

static bool is_narrow(int tensor)
{
    return tensor == 1 || tensor == 2;
}

static void draw_job(job *j, test_rng *rng, ra_dtype dtype)
{
    int32_t const kv = (int32_t)test_rng_between(rng, 1, 3);
    j->dtype = dtype;
    j->shape = (oracle_shape){.batch = test_rng_between(rng, 1, 2),
                              .n = test_rng_between(rng, 20, 300),
                              .heads = kv * (int32_t)test_rng_between(rng, 1, 3),
                              .kv_heads = kv,
                              .dim = (int32_t)test_rng_between(rng, 1, 80)};
    for (int i = 0; i < TENSORS; ++i) {
        int32_t const heads = is_narrow(i) ? kv : j->shape.heads;
        j->counts[i] = j->shape.batch * j->shape.n * heads * j->shape.dim;
        j->stored[i] = malloc((size_t)j->counts[i] * sizeof(float));
        j->values[i] = malloc((size_t)j->counts[i] * sizeof(double));
        oracle_fill(&rng->state, dtype, 1, j->counts[i], j->stored[i], j->values[i]);
    }
    for (int i = 0; i < TENSORS; ++i)
        j->want[i] = malloc((size_t)j->counts[i < 2 ? 0 : 1] * sizeof(double));
}

static void free_job(job *j)
{
    for (int i = 0; i < TENSORS; ++i) {
        free(j->stored[i]);
        free(j->values[i]);
        free(j->want[i]);
    }
}

static const char *path_in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", command_folder, name);
    return path;
}

static void write_inputs(const job *j)
{
    static const char *const names[] = {"q", "k", "v", "do"};
    const oracle_shape *s = &j->shape;
    ra_tensor_info infos[TENSORS];
    ra_tensor_writer *writer;
    ra_file_error error;
    for (int i = 0; i < TENSORS; ++i) {
        infos[i] = (ra_tensor_info){
            .dims = 4, .shape = {s->batch, s->n, is_narrow(i) ? s->kv_heads : s->heads, s->dim}};
        snprintf(infos[i].name, sizeof(infos[i].name), "%s", names[i]);
        snprintf(infos[i].dtype, sizeof(infos[i].dtype), "%s", dtype_texts[j->dtype]);
    }
    cr_assert_eq(ra_tensor_writer_open(path_in_folder("in.safetensors"), "test", true, infos,
                                       TENSORS, &writer, &error),
                 RA_OK);
    for (int i = 0; i < TENSORS; ++i)
        cr_assert_eq(ra_tensor_writer_put(writer, &infos[i], 0, j->stored[i],
                                          (size_t)infos[i].bytes, &error),
                     RA_OK);
    cr_assert_eq(ra_tensor_writer_rename(writer, &error), RA_OK);
    ra_tensor_writer_destroy(writer);
}

static void check_outputs(const job *j, bool backward, const char *about)
{
    static const char *const names[] = {"o", "dq", "dk", "dv"};
    ra_tensor_file *file;
    cr_assert_eq(ra_tensor_file_open(path_in_folder("out.safetensors"), &file), RA_OK, "%s", about);
    cr_expect_null(ra_tensor_file_find(file, "lse"), "%s: it has no lse", about);
    for (int i = 0; i < TENSORS; ++i) {
        const ra_tensor_info *info = ra_tensor_file_find(file, names[i]);
        cr_assert_eq(info != NULL, i == 0 || backward, "%s: %s", about, names[i]);
        if (info == NULL)
            continue;
        int64_t const count = j->counts[i < 2 ? 0 : 1];
        void *const got = malloc((size_t)info->bytes);
        cr_assert_eq(info->bytes, count * (int64_t)ra_dtype_bytes(j->dtype));
        cr_assert_eq(ra_tensor_read(file, info, 0, got, (size_t)info->bytes), RA_OK);
        double const error =
            oracle_floored_error(j->dtype, got, j->want[i], count, i == 1 || i == 2 ? 0.05 : 1e-9);
        double const bound =
            i == 0 ? oracle_output_bound(j->dtype) : oracle_gradient_bound(j->dtype, j->shape.dim);
        cr_assert(error <= bound, "%s: %s is off by %g", about, names[i], error);
        free(got);
    }
    ra_tensor_file_close(file);
}

static void run_case(uint64_t seed, int ranks, const char *kind, const char *method, ra_dtype dtype)
{
    bool const causal = kind[6] != '\0', backward = method == NULL;
    job j = {0};
    char line[400], about[160];
    command_result *const result = malloc(sizeof(*result));
    test_rng rng = {seed};
    draw_job(&j, &rng, dtype);
    write_inputs(&j);
    oracle_linear(
        &j.shape, causal,
        &(oracle_inputs){j.values[0], j.values[1], j.values[2], backward ? j.values[3] : NULL},
        &(oracle_outputs){j.want[0], NULL, j.want[1], j.want[2], j.want[3]});
    snprintf(about, sizeof(about), "seed %llu, %s %s, %d ranks", (unsigned long long)seed, kind,
             backward ? "with backward" : method, ranks);
    snprintf(line, sizeof(line),
             "run --input in.safetensors --output out.safetensors --verify --set attention.kind=%s"
             " --set compute.threads=1%s%s%s",
             kind, backward ? "" : " --set attention.linear_method=", backward ? "" : method,
             backward ? " --backward" : "");
    command_run(result, ranks, line);
    cr_assert_eq(result->code, 0, "%s: exit %d\n%s\n%s", about, result->code, result->out,
                 result->err);
    cr_expect_eq(command_count_lines(result->out, "linear attention"), 1, "%s", result->out);
    check_outputs(&j, backward, about);
    free_job(&j);
    free(result);
}

Test(end_to_end_linear, every_kind_and_method_matches_the_oracle_on_any_ranks)
{
    static const int rank_counts[] = {0, 2, 3, 4};
    for (int i = 0; i < 4; ++i) {
        uint64_t const seed = 20261121 + 10 * (uint64_t)i;
        int const ranks = rank_counts[i];
        run_case(seed, ranks, "linear", NULL, (ra_dtype)(i % 3));
        run_case(seed + 1, ranks, "linear_causal", NULL, (ra_dtype)((i + 1) % 3));
        run_case(seed + 2, ranks, "linear_causal", i % 2 == 0 ? "recurrent" : "cumsum",
                 (ra_dtype)((i + 2) % 3));
    }
}
