// Reports before anything else runs that the processor is too old for this build, which would
// otherwise crash on an illegal instruction. Compiled for the x86-64 baseline, without the library,
// because even formatting may use missing instructions.

#include "sim/cli/process/cpu_features.hpp"

#if defined(__x86_64__)

#include <cstddef>

#include <cpuid.h>
#include <unistd.h>

namespace kvsim {
namespace {

constexpr std::size_t kLongestMessage = 512;

struct Message {
  char text[kLongestMessage] = {};
  std::size_t length = 0;

  void add(const char* word) {
    while (*word != '\0' && length < kLongestMessage) text[length++] = *word++;
  }
};

/// Bit `bit` of ecx in a leaf of cpuid, for features that clang's __builtin_cpu_supports does not
/// name.
bool in_ecx(unsigned leaf, unsigned bit) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(leaf, &a, &b, &c, &d) != 0 && (c >> bit & 1U) != 0;
}

/// Exit status. check_cpu has priority 101, before the constructors of the library and other files.
constexpr int kBadInput = 2;

__attribute__((constructor(101))) void check_cpu() {
  __builtin_cpu_init();
  struct Feature {
    const char* name;
    bool there;
  };
  // In the order of CpuFeature.
  const Feature features[kCpuFeatures] = {
      {"sse3", __builtin_cpu_supports("sse3") != 0},
      {"ssse3", __builtin_cpu_supports("ssse3") != 0},
      {"sse4.1", __builtin_cpu_supports("sse4.1") != 0},
      {"sse4.2", __builtin_cpu_supports("sse4.2") != 0},
      {"popcnt", __builtin_cpu_supports("popcnt") != 0},
      {"avx", __builtin_cpu_supports("avx") != 0},
      {"avx2", __builtin_cpu_supports("avx2") != 0},
      {"bmi", __builtin_cpu_supports("bmi") != 0},
      {"bmi2", __builtin_cpu_supports("bmi2") != 0},
      {"fma", __builtin_cpu_supports("fma") != 0},
      {"f16c", in_ecx(1, 29)},
      {"lzcnt", in_ecx(0x80000001, 5)},
      {"avx512f", __builtin_cpu_supports("avx512f") != 0},
      {"avx512bw", __builtin_cpu_supports("avx512bw") != 0},
      {"avx512cd", __builtin_cpu_supports("avx512cd") != 0},
      {"avx512dq", __builtin_cpu_supports("avx512dq") != 0},
      {"avx512vl", __builtin_cpu_supports("avx512vl") != 0},
  };
  Message message;
  message.add("kvsim: this build needs a processor of level " KVSIM_ARCH_NAME " (missing:");
  bool all = true;
  for (unsigned i = 0; i < kCpuFeatures; ++i) {
    if ((kCpuNeeds >> i & 1U) == 0 || features[i].there) continue;
    message.add(all ? " " : ", ");
    message.add(features[i].name);
    all = false;
  }
  if (all) return;
  message.add("); rebuild with -DKVSIM_ARCH=x86-64\n");
  if (write(2, message.text, message.length) < 0) _exit(kBadInput);
  _exit(kBadInput);
}

}  // namespace
}  // namespace kvsim

#endif
