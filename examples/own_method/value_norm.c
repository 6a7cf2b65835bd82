/* A method of kvsim in C: tokens with large values, after the first ones.
 *
 *     cc -shared -fPIC -O2 -I sim/own -o libvalue_norm.so examples/own_method/value_norm.c -lm
 */
#include <math.h>
#include <stdio.h>

#include "kvsim_method.h"

int kvsim_method_abi(void) { return KVSIM_METHOD_ABI; }

const char* kvsim_method_name(void) { return "value-norm"; }

const struct kvsim_method_param* kvsim_method_params(size_t* count) {
  static const struct kvsim_method_param params[] = {{"sinks", 4, "first tokens that are kept"}};
  *count = 1;
  return params;
}

const struct kvsim_method_passes* kvsim_method_count_passes(void) {
  static const struct kvsim_method_passes passes = {0, 1, 0}; /* values once */
  return &passes;
}

int kvsim_method_score(const struct kvsim_score_input* input, double* scores, char* error,
                       size_t error_size) {
  const double sinks = input->params[0];
  if (sinks < 0) {
    snprintf(error, error_size, "sinks: expected at least 0, got %g", sinks);
    return 1;
  }
  for (int32_t head = 0; head < input->n_kv_heads; ++head) {
    for (int64_t token = 0; token < input->tokens; ++token) {
      const float* value = input->values[head] + token * input->head_dim;
      double sum = 0;
      for (int32_t i = 0; i < input->head_dim; ++i) sum += (double)value[i] * value[i];
      scores[head * input->tokens + token] = (double)token < sinks ? 1e30 : sqrt(sum);
    }
  }
  return 0;
}
