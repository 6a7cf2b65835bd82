// Compiled with the build's -march, whose macros define the features that the compiler may use.

#include "sim/cli/process/cpu_features.hpp"

namespace kvsim {

extern const unsigned kCpuNeeds = 0U
#ifdef __SSE3__
                                  | 1U << kSse3
#endif
#ifdef __SSSE3__
                                  | 1U << kSsse3
#endif
#ifdef __SSE4_1__
                                  | 1U << kSse41
#endif
#ifdef __SSE4_2__
                                  | 1U << kSse42
#endif
#ifdef __POPCNT__
                                  | 1U << kPopcnt
#endif
#ifdef __AVX__
                                  | 1U << kAvx
#endif
#ifdef __AVX2__
                                  | 1U << kAvx2
#endif
#ifdef __BMI__
                                  | 1U << kBmi
#endif
#ifdef __BMI2__
                                  | 1U << kBmi2
#endif
#ifdef __FMA__
                                  | 1U << kFma
#endif
#ifdef __F16C__
                                  | 1U << kF16c
#endif
#ifdef __LZCNT__
                                  | 1U << kLzcnt
#endif
#ifdef __AVX512F__
                                  | 1U << kAvx512f
#endif
#ifdef __AVX512BW__
                                  | 1U << kAvx512bw
#endif
#ifdef __AVX512CD__
                                  | 1U << kAvx512cd
#endif
#ifdef __AVX512DQ__
                                  | 1U << kAvx512dq
#endif
#ifdef __AVX512VL__
                                  | 1U << kAvx512vl
#endif
    ;

}  // namespace kvsim
