/* A method of kvsim in a shared library, in C or any language with C functions:
 *
 *     cc -shared -fPIC -O2 -o libmine.so mine.c
 *     kvsim replay --method-lib ./libmine.so --method mine --budget 0.2 --trace T.safetensors
 *
 * The library scores the tokens of a prompt, layer by layer. kvsim keeps the tokens with the
 * highest scores of each KV head, as many as the budget allows; the older token wins ties.
 * Tokens generated later are appended.
 *
 * This header uses only the C language. KVSIM_METHOD_ABI changes with every incompatible change.
 */
#ifndef KVSIM_METHOD_H
#define KVSIM_METHOD_H

#include <stddef.h>
#include <stdint.h>

#define KVSIM_METHOD_ABI 1

#if defined(__GNUC__)
#define KVSIM_METHOD_EXPORT __attribute__((visibility("default")))
#else
#define KVSIM_METHOD_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif
/* NOLINTBEGIN(readability-identifier-naming): C names */

/* The prompt of one layer. All vectors are float32 and contiguous; they are valid during the call.
 */
struct kvsim_score_input {
  int32_t layer;      /* from 0 */
  int32_t n_layers;   /* of the model */
  int32_t n_heads;    /* query heads, a multiple of n_kv_heads */
  int32_t n_kv_heads; /* heads that store keys and values */
  int32_t head_dim;
  int32_t reserved;         /* 0 */
  int64_t tokens;           /* of the prompt */
  double scale;             /* factor of attention logits, usually 1 / sqrt(head_dim) */
  double ratio;             /* share of the prompt that is removed, in [0, 1) */
  uint64_t seed;            /* of the run, for random scores */
  const float* const* keys; /* [n_kv_heads] of [tokens, head_dim], after RoPE */
  const float* const* values;  /* [n_kv_heads] of [tokens, head_dim] */
  const float* const* queries; /* [n_heads] of [tokens, head_dim], after RoPE, not scaled */
  const double* params;        /* in the order of kvsim_method_params */
};

/* A parameter, set by `--param NAME=NUMBER`. */
struct kvsim_method_param {
  const char* name;
  double default_value;
  const char* help;
};

/* Number of times that a kernel for the scores reads the prompt's vectors; determines its time. */
struct kvsim_method_passes {
  double keys, values, queries;
};

/* Required. */

/* Returns KVSIM_METHOD_ABI. */
KVSIM_METHOD_EXPORT int kvsim_method_abi(void);

/* Returns the method's name: unlike that of any kvsim method, without blank, '+', '=' or ','. */
KVSIM_METHOD_EXPORT const char* kvsim_method_name(void);

/* Writes finite scores [n_kv_heads, tokens] and returns 0. Otherwise writes a reason, ended by 0,
 * to `error`, which has `error_size` bytes, and returns another number: kvsim reports it and exits.
 * The scores must depend only on `input`: layers come in any order. Calls never overlap, but come
 * from several threads. */
KVSIM_METHOD_EXPORT int kvsim_method_score(const struct kvsim_score_input* input, double* scores,
                                           char* error, size_t error_size);

/* Optional. */

/* Returns the `*count` parameters. Without this function there are none. */
KVSIM_METHOD_EXPORT const struct kvsim_method_param* kvsim_method_params(size_t* count);

/* Without this function the scores have no cost. */
KVSIM_METHOD_EXPORT const struct kvsim_method_passes* kvsim_method_count_passes(void);

/* NOLINTEND(readability-identifier-naming) */
#ifdef __cplusplus
}
#endif

#endif /* KVSIM_METHOD_H */
