// Libraries that break kvsim_method.h in one way each.

#include <cmath>

#include "kvsim_method.h"

int kvsim_method_abi(void) {
#ifdef KVSIM_FAULT_abi
  return KVSIM_METHOD_ABI + 6;
#else
  return KVSIM_METHOD_ABI;
#endif
}

#ifndef KVSIM_FAULT_no_name
const char* kvsim_method_name(void) {
#ifdef KVSIM_FAULT_clash
  return "snapkv";
#else
  return "broken";
#endif
}
#endif

#ifndef KVSIM_FAULT_no_score
int kvsim_method_score(const struct kvsim_score_input* input, double* scores, char* /*error*/,
                       size_t /*error_size*/) {
  for (int64_t i = 0; i < input->n_kv_heads * input->tokens; ++i) scores[i] = 1;
  scores[input->tokens + 2] = std::nan("");
  return 0;
}
#endif
