#pragma once

// What the cases of the suite are written with: one source for both executors.

#include <cmath>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/suite/array.hpp"
#include "kernels/suite/result.hpp"
#include "models/math/counter_random.hpp"
#include "models/math/half.hpp"
#ifdef __CUDACC__
#include "kernels/suite/timing.hpp"
#endif

namespace kvsim::KVSIM_EXECUTOR {

/// The word of a storage type, half an ulp of it relative to 1, and conversions on the host.
template <class T>
struct Stored {
  static constexpr const char* kName = "fp32";
  static constexpr double kRounding = 0x1p-24;
  static T of(float x) { return x; }
  static float value(T x) { return x; }
};
template <>
struct Stored<kv::Half> {
  static constexpr const char* kName = "fp16";
  static constexpr double kRounding = 0x1p-11;
  static kv::Half of(float x) { return {float_to_fp16(x)}; }
  static float value(kv::Half x) { return fp16_to_float(x.bits); }
};
template <>
struct Stored<kv::BFloat16> {
  static constexpr const char* kName = "bf16";
  static constexpr double kRounding = 0x1p-8;
  static kv::BFloat16 of(float x) { return {float_to_bf16(x)}; }
  static float value(kv::BFloat16 x) { return bf16_to_float(x.bits); }
};

template <class T>
std::vector<T> store_all(const std::vector<float>& values) {
  std::vector<T> result;
  result.reserve(values.size());
  for (const float x : values) result.push_back(Stored<T>::of(x));
  return result;
}
template <class T>
std::vector<float> values_of(const std::vector<T>& stored) {
  std::vector<float> result;
  result.reserve(stored.size());
  for (const T x : stored) result.push_back(Stored<T>::value(x));
  return result;
}

/// One kernel at one shape: its memory, its launch, what is expected of it.
class Case {
 public:
  Case(std::uint64_t key, kernels::KernelResult& result) : key_{key}, result_{result} {}

  /// Uniform in (low, high), rounded to T; other numbers at every call.
  template <class T = float>
  std::vector<float> draw(std::int64_t n, double low = -1, double high = 1) {
    const std::uint64_t key = counter_key({key_, ++draws_});
    std::vector<float> values(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = Stored<T>::value(
          Stored<T>::of(static_cast<float>(low + (high - low) * counter_uniform(key, i))));
    }
    return values;
  }

  /// Memory that lives as long as the case.
  template <class T>
  Array<T>& output(const char* name, std::int64_t n) {
    auto array = std::make_shared<Array<T>>(machine_, name, n);
    memory_.push_back(array);
    return *array;
  }
  template <class T>
  Array<T>& input(const char* name, const std::vector<T>& values) {
    Array<T>& array = output<T>(name, static_cast<std::int64_t>(values.size()));
    if (!values.empty()) array.upload(values);
    return array;
  }
  /// Memory of the host that a kernel reads and writes over the link.
  template <class T>
  HostArray<T>& host_input(const char* name, const std::vector<T>& values) {
    auto array =
        std::make_shared<HostArray<T>>(machine_, name, static_cast<std::int64_t>(values.size()));
    memory_.push_back(array);
    array->upload(values);
    return *array;
  }
  /// Numbers as T stores them.
  template <class T>
  Array<T>& numbers(const char* name, const std::vector<float>& values) {
    return input(name, store_all<T>(values));
  }

  /// For launches that prepare inputs: neither counted nor timed.
  [[nodiscard]] Stream stream() { return stream_of(machine_); }

  /// Runs `launch(Stream)` once, and again where it is timed: it holds spans and shapes by value.
  template <class Launch>
  void run(const kernels::KernelTraffic& model, Launch launch) {
    result_.model = model;
#ifdef __CUDACC__
    launch(stream_of(machine_));
    check_cuda(cudaDeviceSynchronize(), "a kernel", __FILE__, __LINE__);
#else
    const cuda_sim::Counters before = machine_.counters();
    launch(stream_of(machine_));
    const cuda_sim::Counters counted = difference(machine_.counters(), before);
    result_.counted = {Bytes{counted.loaded_bytes}, Bytes{counted.stored_bytes}, counted.atomics,
                       counted.launches};
    if (!(*result_.counted == model)) fail("its counted bytes are not the formula's");
#endif
    launch_ = [launch = std::move(launch)](Stream stream) { launch(stream); };
  }

  /// Norm of the error: largest |got - expected| over the largest |expected|.
  template <class A, class B>
  void compare(const char* what, const std::vector<A>& got, const std::vector<B>& expected,
               double allowed) {
    if (got.size() != expected.size()) return fail(std::string{what} + ": another size");
    double error = 0;
    double size = 1e-30;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto is = static_cast<double>(got[i]);
      const auto should_be = static_cast<double>(expected[i]);
      const double off = is == should_be ? 0.0 : std::abs(is - should_be);  // infinities too
      if (!(off <= error)) error = off;                                     // a NaN too
      if (std::isnan(off)) break;
      if (std::isfinite(should_be)) size = std::max(size, std::abs(should_be));
    }
    error /= size;
    if (!(error <= allowed)) fail(std::string{what} + " is wrong");
    const bool nearer = result_.allowed == 0 || error * result_.allowed > result_.error * allowed;
    if (nearer || std::isnan(error)) {
      result_.error = error;
      result_.allowed = allowed;
    }
  }
  /// Equal bits.
  template <class A>
  void compare_exactly(const char* what, const std::vector<A>& got,
                       const std::vector<A>& expected) {
    if (got == expected) return;
    compare(what, got, expected, 0);
  }

  void fail(const std::string& problem) {
    result_.pass = false;
    if (result_.problem.empty()) result_.problem = problem;
  }

#ifdef __CUDACC__
  void time() {
    if (launch_) result_.timing = time_launch(launch_);
  }
#endif

 private:
  Machine machine_;
  std::uint64_t key_;
  std::uint64_t draws_ = 0;
  kernels::KernelResult& result_;
  std::vector<std::shared_ptr<void>> memory_;
  std::function<void(Stream)> launch_;
};

/// Collects the cases of one kernel.
class Bench {
 public:
  Bench(const kernels::SuiteOptions& options, std::string name, std::string family,
        std::vector<kernels::KernelResult>& results)
      : options_{options}, name_{std::move(name)}, family_{std::move(family)}, results_{results} {}

  /// True where sizes worth timing are asked for, which the simulator would take long for.
  [[nodiscard]] bool large() const { return options_.timed; }

  /// `body(Case&)` is one case.
  template <class Body>
  void add(std::string shape, const char* dtype, Body body) {
    kernels::KernelResult result;
    result.name = name_;
    result.shape = std::move(shape);
    result.dtype = dtype;
    result.family = family_;
    std::uint64_t key = options_.seed;
    for (const char c : name_) key = counter_key({key, static_cast<std::uint64_t>(c)});
    try {
      Case one{counter_key({key, cases_++}), result};
      body(one);
#ifdef __CUDACC__
      if (options_.timed && result.pass) one.time();
#endif
    } catch (const std::exception& fault) {
      result.pass = false;
      result.problem = fault.what();
    }
    results_.push_back(std::move(result));
  }

 private:
  const kernels::SuiteOptions& options_;
  std::string name_, family_;
  std::uint64_t cases_ = 0;
  std::vector<kernels::KernelResult>& results_;
};

/// The first `used` elements of each of `n` rows of `stride`.
template <class T>
std::vector<T> download_rows(const Array<T>& array, std::int64_t n, std::int64_t stride,
                             std::int64_t used) {
  std::vector<T> result;
  for (std::int64_t r = 0; r < n; ++r) {
    const std::vector<T> row = array.download(r * stride, used);
    result.insert(result.end(), row.begin(), row.end());
  }
  return result;
}

inline std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
inline std::string text(std::int64_t n) { return std::to_string(n); }

}  // namespace kvsim::KVSIM_EXECUTOR
