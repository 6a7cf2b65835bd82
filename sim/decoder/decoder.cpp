#include "sim/decoder/decoder.hpp"

#include <algorithm>
#include <cmath>

#include <Eigen/Core>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstRows = Eigen::Map<const RowMajor>;
using Rows = Eigen::Map<RowMajor>;

ConstRows matrix_of(const Matrix& m) { return {m.data.data(), m.rows, m.columns}; }

std::size_t index(std::int64_t n) { return static_cast<std::size_t>(n); }

/// Computes the RMS norm of each row of `width` elements, times `weight`.
void rms_norm(std::span<const float> in, std::span<const float> weight, double epsilon,
              std::span<float> out) {
  const std::size_t width = weight.size();
  for (std::size_t first = 0; first < in.size(); first += width) {
    double squares = 0;
    for (std::size_t j = 0; j < width; ++j) {
      squares += static_cast<double>(in[first + j]) * static_cast<double>(in[first + j]);
    }
    const auto scale =
        static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(width) + epsilon));
    for (std::size_t j = 0; j < width; ++j) out[first + j] = in[first + j] * scale * weight[j];
  }
}

RowMajor linear(ConstRows in, const Matrix& weight, std::span<const float> bias) {
  RowMajor out = in * matrix_of(weight).transpose();
  if (!bias.empty()) {
    out.rowwise() +=
        Eigen::Map<const Eigen::RowVectorXf>(bias.data(), static_cast<Eigen::Index>(bias.size()));
  }
  return out;
}

}  // namespace

std::vector<float> Decoder::embed(std::span<const std::int32_t> tokens) const {
  const auto d = index(shape().d_model);
  std::vector<float> out;
  out.reserve(tokens.size() * d);
  for (const std::int32_t id : tokens) {
    KVSIM_CHECK(id >= 0 && id < shape().vocab, "token {} of a vocabulary of {}", id, shape().vocab);
    const auto row = weights_.embedding.data.begin() + static_cast<std::ptrdiff_t>(index(id) * d);
    out.insert(out.end(), row, row + static_cast<std::ptrdiff_t>(d));
  }
  return out;
}

std::vector<float> Decoder::normed(std::int32_t layer, std::span<const float> rows) const {
  std::vector<float> out(rows.size());
  rms_norm(rows, weights_.layers[index(layer)].input_norm, shape().norm_epsilon, out);
  return out;
}

void Decoder::project(std::int32_t layer, const std::vector<float>& normed, std::int64_t first,
                      std::int64_t tokens, TraceLayer& out) const {
  const DecoderLayer& w = weights_.layers[index(layer)];
  const DecoderShape& s = shape();
  const std::int64_t n = static_cast<std::int64_t>(normed.size()) / s.d_model;
  const ConstRows in{normed.data(), n, s.d_model};
  const auto d = index(s.head_dim);
  std::vector<float> row(d);
  // Writes by head, with the norm of heads and the rotation by position if the tensor has them.
  const auto write = [&](const RowMajor& from, std::int32_t heads, std::span<const float> norm,
                         bool rotates, std::vector<float>& to) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int32_t h = 0; h < heads; ++h) {
        std::copy_n(from.data() + i * from.cols() + std::int64_t{h} * s.head_dim, d, row.begin());
        if (!norm.empty()) rms_norm(row, norm, s.norm_epsilon, row);
        if (rotates) {
          for (std::size_t j = 0; j < d / 2; ++j) {
            const double angle = static_cast<double>(first + i) * s.inv_freq[j];
            const auto c = static_cast<float>(std::cos(angle));
            const auto sine = static_cast<float>(std::sin(angle));
            const float a = row[j];
            const float b = row[j + d / 2];
            row[j] = a * c - b * sine;
            row[j + d / 2] = b * c + a * sine;
          }
        }
        std::copy(row.begin(), row.end(),
                  to.begin() + static_cast<std::ptrdiff_t>(index(h * tokens + first + i) * d));
      }
    }
  };
  write(linear(in, w.q, w.q_bias), s.n_heads, w.q_norm, true, out.q);
  write(linear(in, w.k, w.k_bias), s.n_kv_heads, w.k_norm, true, out.k);
  write(linear(in, w.v, w.v_bias), s.n_kv_heads, {}, false, out.v);
}

void Decoder::finish(std::int32_t layer, std::span<const float> attention,
                     std::span<float> rows) const {
  const DecoderLayer& w = weights_.layers[index(layer)];
  const std::int64_t n = static_cast<std::int64_t>(rows.size()) / shape().d_model;
  Rows x{rows.data(), n, shape().d_model};
  x += linear({attention.data(), n, w.o.columns}, w.o, w.o_bias);
  RowMajor middle(n, shape().d_model);
  rms_norm(rows, w.output_norm, shape().norm_epsilon, {middle.data(), rows.size()});
  const ConstRows in{middle.data(), n, shape().d_model};
  RowMajor gate = linear(in, w.gate, w.gate_bias);
  gate.array() /= 1.0F + (-gate.array()).exp();
  gate.array() *= linear(in, w.up, w.up_bias).array();
  x += linear({gate.data(), n, gate.cols()}, w.down, w.down_bias);
}

std::vector<float> Decoder::logits(std::span<const float> rows) const {
  const std::int64_t n = static_cast<std::int64_t>(rows.size()) / shape().d_model;
  std::vector<float> normed(rows.size());
  rms_norm(rows, weights_.final_norm, shape().norm_epsilon, normed);
  const Matrix& head = weights_.head.data.empty() ? weights_.embedding : weights_.head;
  std::vector<float> out(index(n * shape().vocab));
  Rows{out.data(), n, shape().vocab} = linear({normed.data(), n, shape().d_model}, head, {});
  return out;
}

std::vector<float> Decoder::attend(const TraceLayer& layer, std::int64_t first, std::int64_t n,
                                   std::int64_t tokens, std::int64_t oldest) const {
  constexpr std::int64_t kTile = 128;  // query rows per tile
  const DecoderShape& s = shape();
  const std::int64_t group = s.n_heads / s.n_kv_heads;
  const std::int64_t d = s.head_dim;
  const std::int64_t width = s.n_heads * d;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  std::vector<float> out(index(n * width));
  RowMajor scores;
  for (std::int64_t h = 0; h < s.n_heads; ++h) {
    const float* q = layer.q.data() + (h * tokens + first) * d;
    const float* k = layer.k.data() + (h / group * tokens + oldest) * d;
    const float* v = layer.v.data() + (h / group * tokens + oldest) * d;
    for (std::int64_t at = 0; at < n; at += kTile) {
      const std::int64_t rows = std::min(kTile, n - at);
      const std::int64_t keys = first - oldest + at + rows;
      scores.noalias() = ConstRows{q + at * d, rows, d} * ConstRows{k, keys, d}.transpose() * scale;
      for (std::int64_t i = 0; i < rows; ++i) {
        auto row = scores.row(i).head(first - oldest + at + i + 1);
        row.array() = (row.array() - row.maxCoeff()).exp();
        row /= row.sum();
        scores.row(i).tail(keys - row.size()).setZero();
      }
      Eigen::Map<RowMajor, 0, Eigen::OuterStride<>>{out.data() + at * width + h * d, rows, d,
                                                    Eigen::OuterStride<>{width}}
          .noalias() = scores * ConstRows{v, keys, d};
    }
  }
  return out;
}

}  // namespace kvsim
