// Requires x86-64-v3; the program must exit before main.

#include <cstdio>

#include "sim/cli/process/cpu_features.hpp"

namespace kvsim {
extern const unsigned kCpuNeeds = 1U << kSse42 | 1U << kAvx2 | 1U << kFma | 1U << kBmi2;
}

int main() { std::puts("main was reached"); }
