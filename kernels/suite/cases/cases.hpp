#pragma once

#include "kernels/suite/bench/bench.hpp"

// The cases of each kernel: one function per kernel, in cases_NAME.cu; suite.cu lists them.

namespace kvsim::KVSIM_EXECUTOR {

void stream_read_cases(Bench& bench);
void stream_write_cases(Bench& bench);
void stream_copy_cases(Bench& bench);
void stream_triad_cases(Bench& bench);
void decode_attention_cases(Bench& bench);
void paged_attention_cases(Bench& bench);
void decode_kivi_cases(Bench& bench);
void decode_folded_cases(Bench& bench);
void decode_fp8_cases(Bench& bench);
void kivi_quantise_keys_cases(Bench& bench);
void kivi_quantise_values_cases(Bench& bench);
void quantise_fp8_cases(Bench& bench);
void quantise_token_head_cases(Bench& bench);
void quantise_int4_cases(Bench& bench);
void quantise_nvfp4_cases(Bench& bench);
void quantise_turboquant_cases(Bench& bench);
void rotate_rows_cases(Bench& bench);
void decode_token_head_cases(Bench& bench);
void decode_int4_cases(Bench& bench);
void decode_nvfp4_cases(Bench& bench);
void decode_turboquant_cases(Bench& bench);
void prefill_score_cases(Bench& bench);
void eager_score_cases(Bench& bench);
void slerp_cases(Bench& bench);
void zip_merge_cases(Bench& bench);
void residual_merge_cases(Bench& bench);
void nearest_key_cases(Bench& bench);
void cosine_merge_cases(Bench& bench);
void spread_value_cases(Bench& bench);
void linear_score_cases(Bench& bench);
void mlp_score_cases(Bench& bench);
void gemm_cases(Bench& bench);
void gemv_cases(Bench& bench);
void library_gemm_cases(Bench& bench);
void score_row_cases(Bench& bench);
void update_scores_cases(Bench& bench);
void log_average_cases(Bench& bench);
void fuse_window_cases(Bench& bench);
void argmin_cases(Bench& bench);
void top_cases(Bench& bench);
void threshold_cases(Bench& bench);
void retain_cases(Bench& bench);
void gather_cases(Bench& bench);
void gather_page_cases(Bench& bench);
void fetch_cases(Bench& bench);
void offload_cases(Bench& bench);
void lazy_page_cases(Bench& bench);
void append_cases(Bench& bench);
void concat_cases(Bench& bench);
void move_cases(Bench& bench);
void softmax_cases(Bench& bench);
void rms_norm_cases(Bench& bench);
void rotate_cases(Bench& bench);
void gate_cases(Bench& bench);
void add_cases(Bench& bench);
void open_slot_cases(Bench& bench);
void choose_victim_cases(Bench& bench);
void count_bias_cases(Bench& bench);
void fill_cases(Bench& bench);
void copy_value_cases(Bench& bench);

}  // namespace kvsim::KVSIM_EXECUTOR
