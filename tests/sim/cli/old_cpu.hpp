// Simulates a processor without AVX2 and FMA (tests/cli.cmake includes it before cpu_check.cpp).
#pragma once

#include <string_view>

constexpr int pretend_cpu_supports(std::string_view feature) {
  return feature != "avx2" && feature != "fma";
}
#define __builtin_cpu_supports(feature) pretend_cpu_supports(feature)
