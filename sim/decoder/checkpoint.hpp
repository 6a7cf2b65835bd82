#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// Shape and constants of a decoder of the Llama family: Llama, Mistral, Qwen2, Qwen3.
struct DecoderShape {
  std::string model;  // folder name, for messages
  std::int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::int64_t d_model = 0, d_ff = 0, vocab = 0;
  std::int64_t max_positions = 0;
  double norm_epsilon = 0;
  double rope_theta = 0;
  bool scales_rope = false;      // whether angles of positions differ from theta^(-2j/d)
  std::vector<double> inv_freq;  // [head_dim / 2], angle per position of pair (j, j + d/2)
};

/// A matrix [rows, columns] in fp32, row-major, as the weight of a linear layer: y = W x.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> data;
};

/// Weights of one layer. Vectors that the model does not have are empty.
struct DecoderLayer {
  std::vector<float> input_norm, output_norm;  // [d_model]; before attention and before the MLP
  Matrix q, k, v, o, gate, up, down;
  std::vector<float> q_bias, k_bias, v_bias, o_bias;
  std::vector<float> gate_bias, up_bias, down_bias;
  std::vector<float> q_norm, k_norm;  // [head_dim]
};

struct Checkpoint {
  DecoderShape shape;
  Matrix embedding;  // [vocab, d_model]
  std::vector<DecoderLayer> layers;
  std::vector<float> final_norm;  // [d_model]
  Matrix head;                    // [vocab, d_model]; empty: same as the embedding
};

/// Reads a Hugging Face folder: config.json and model.safetensors, in one file or in the shards of
/// model.safetensors.index.json. Converts tensors in fp32, bf16 or fp16 to fp32.
///
/// Errors: InputError for an architecture outside the Llama family, a missing tensor or one whose
/// shape differs from the configuration, a tensor that the configuration does not imply (it would
/// not be read), and weights that need more than `memory` in fp32.
[[nodiscard]] Checkpoint read_checkpoint(const std::filesystem::path& folder, Bytes memory);

}  // namespace kvsim
