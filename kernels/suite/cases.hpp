#pragma once

#include "kernels/suite/bench.hpp"

// The cases of each kernel: one function a kernel, in cases_NAME.cu; suite.cu lists them.

namespace kvsim::KVSIM_EXECUTOR {

void stream_read_cases(Bench& bench);
void stream_write_cases(Bench& bench);
void stream_copy_cases(Bench& bench);
void stream_triad_cases(Bench& bench);
void decode_attention_cases(Bench& bench);
void score_row_cases(Bench& bench);
void update_scores_cases(Bench& bench);
void argmin_cases(Bench& bench);
void top_cases(Bench& bench);
void gather_cases(Bench& bench);

}  // namespace kvsim::KVSIM_EXECUTOR
