/*
 * Not a test: what a chain of tensor-core products loses with its length; docs/gpus.md has the
 * figures. Terms are exp(N(0, 1)) times values of deviation 1, both rounded to float16, and added
 * to one float32: cut once per 16 of them, as the tests' emulator does, and after the models of
 * Khattak and Mikaitis (arXiv:2512.07004), in which products are cut as well, where they are
 * aligned to the largest: 16 at a time with two bits more than float32 (H100, H200), or 8 with one
 * (A100). Errors are relative, over CHAINS sums.
 */
#include "support/oracle.h"
#include "support/tensor_core.h"

#include <math.h>
#include <stdio.h>

enum { CHAINS = 64, STEP = 16, LEAST = 1 << 14, MOST = 1 << 19, MODELS = 3 };

typedef struct chain {
    float sum[MODELS];
    double exact;
} chain;

static double to_f16(double value)
{
    uint16_t stored = 0;
    ra_dtype_store(RA_F16, &stored, 0, (float)value);
    return (double)ra_dtype_load(RA_F16, &stored, 0);
}

static float add_aligned(float sum, const double *terms, int count, int extra_bits)
{
    double largest = fabs((double)sum);
    int exponent = 0;
    for (int i = 0; i < count; ++i)
        largest = fmax(largest, fabs(terms[i]));
    (void)frexp(largest, &exponent);
    double const unit = ldexp(1, exponent - 24 - extra_bits);
    double units = trunc((double)sum / unit);
    for (int i = 0; i < count; ++i)
        units += trunc(terms[i] / unit);
    return tensor_core_cut(units * unit);
}

static void add_step(chain *c, const double terms[STEP])
{
    double all = 0;
    for (int i = 0; i < STEP; ++i)
        all += terms[i];
    c->exact += all;
    c->sum[0] = tensor_core_cut((double)c->sum[0] + all);
    c->sum[1] = add_aligned(c->sum[1], terms, 16, 2);
    c->sum[2] = add_aligned(add_aligned(c->sum[2], terms, 8, 1), terms + 8, 8, 1);
}

static void print_errors(const chain *chains, double mean, int terms)
{
    double wrong[MODELS] = {0}, norm = 0;
    for (int i = 0; i < CHAINS; ++i) {
        norm += chains[i].exact * chains[i].exact;
        for (int m = 0; m < MODELS; ++m)
            wrong[m] += pow((double)chains[i].sum[m] - chains[i].exact, 2);
    }
    printf("%4g %7d %10.1e %10.1e %10.1e\n", mean, terms, sqrt(wrong[0] / norm),
           sqrt(wrong[1] / norm), sqrt(wrong[2] / norm));
}

int main(void)
{
    uint64_t random = 1;
    printf("mean   terms   emulated  H100/H200       A100\n");
    for (int mean = 0; mean <= 1; ++mean) {
        static chain chains[CHAINS];
        for (int i = 0; i < CHAINS; ++i)
            chains[i] = (chain){.exact = 0};
        for (int n = STEP; n <= MOST; n += STEP) {
            double weights[STEP], values[STEP], terms[STEP];
            oracle_fill(&random, RA_F32, 1, STEP, NULL, weights);
            for (int k = 0; k < STEP; ++k)
                weights[k] = to_f16(exp(weights[k]));
            for (int i = 0; i < CHAINS; ++i) {
                oracle_fill(&random, RA_F32, 1, STEP, NULL, values);
                for (int k = 0; k < STEP; ++k)
                    terms[k] = weights[k] * to_f16(mean + values[k]);
                add_step(&chains[i], terms);
            }
            if (n >= LEAST && (n & (n - 1)) == 0)
                print_errors(chains, mean, n);
        }
    }
    return 0;
}
