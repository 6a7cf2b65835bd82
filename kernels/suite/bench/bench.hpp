#pragma once

// Building blocks of the suite's cases: one source for both executors.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/suite/bench/array.hpp"
#include "kernels/suite/bench/result.hpp"
#include "models/math/counter_random.hpp"
#include "models/math/half.hpp"
#ifdef __CUDACC__
#include <cuda_profiler_api.h>

#include "kernels/suite/bench/timing.hpp"
#endif

namespace kvsim::KVSIM_EXECUTOR {

/// Word type of a storage type, its rounding error (half an ulp relative to 1), and host
/// conversions.
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

/// Calls act(begin, end) for parts that cover [0, n), in parallel if n is large.
template <class Act>
void for_parts(std::size_t n, Act act) {
  constexpr std::size_t kMin = std::size_t{1} << 20U;
  const std::size_t max = std::max(1U, std::thread::hardware_concurrency());
  const std::size_t parts = std::clamp<std::size_t>(n / kMin, 1, max);
  std::vector<std::thread> others;
  for (std::size_t i = 1; i < parts; ++i) {
    others.emplace_back(act, n * i / parts, n * (i + 1) / parts);
  }
  act(0, n / parts);
  for (std::thread& other : others) other.join();
}

template <class T>
std::vector<T> store_all(const std::vector<float>& values) {
  std::vector<T> result(values.size());
  for_parts(values.size(), [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) result[i] = Stored<T>::of(values[i]);
  });
  return result;
}
template <class T>
std::vector<float> values_of(const std::vector<T>& stored) {
  std::vector<float> result;
  result.reserve(stored.size());
  for (const T x : stored) result.push_back(Stored<T>::value(x));
  return result;
}

/// One kernel at one shape: its memory, its launch and its expected results.
class Case {
 public:
  Case(std::uint64_t key, kernels::KernelResult& result) : key_{key}, result_{result} {}

  /// Draws numbers uniform in (low, high), rounded to T; each call returns different numbers.
  template <class T = float>
  std::vector<float> draw(std::int64_t n, double low = -1, double high = 1) {
    const std::uint64_t key = counter_key({key_, ++draws_});
    std::vector<float> values(static_cast<std::size_t>(n));
    for_parts(values.size(), [&](std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) {
        values[i] = Stored<T>::value(
            Stored<T>::of(static_cast<float>(low + (high - low) * counter_uniform(key, i))));
      }
    });
    return values;
  }

  /// Returns memory with the lifetime of the case.
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
  /// Returns host memory that a kernel reads and writes over the link.
  template <class T>
  HostArray<T>& host_input(const char* name, const std::vector<T>& values) {
    auto array =
        std::make_shared<HostArray<T>>(machine_, name, static_cast<std::int64_t>(values.size()));
    memory_.push_back(array);
    array->upload(values);
    return *array;
  }
  /// Returns the numbers stored as T.
  template <class T>
  Array<T>& numbers(const char* name, const std::vector<float>& values) {
    return input(name, store_all<T>(values));
  }

  /// The stream for launches that prepare inputs, which are neither counted nor timed.
  [[nodiscard]] Stream stream() { return stream_of(machine_); }

  /// Runs `launch(Stream)` once, and again if it is timed. It must hold spans and shapes by value.
  template <class Launch>
  void run(const kernels::KernelTraffic& model, Launch launch) {
    result_.model = model;
#ifdef __CUDACC__
    if (profiled_) profile(launch);
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

#ifdef __CUDACC__
  /// The same for library kernels, which are not profiled because their number is unknown.
  template <class Launch>
  void run_library(const kernels::KernelTraffic& model, Launch launch) {
    if (profiled_) throw NotWanted{};
    run(model, launch);
  }
#endif

  /// Whether the case is only timed: large sizes on a GPU, whose reference would take longer than
  /// everything else. Marks the result as not compared.
  [[nodiscard]] bool timed_alone() {
#ifdef __CUDACC__
    if (result_.model.loaded + result_.model.stored >= kernels::kProfiledBytes) {
      result_.compared = false;
    }
#endif
    return !result_.compared;
  }

  /// Skips the case because a requirement is missing.
  void skip(const std::string& reason) { result_.skipped = reason; }
  [[nodiscard]] bool skipped() const { return !result_.skipped.empty(); }

  /// Records the relative error: largest |got - expected| over the largest |expected|.
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
  /// Requires equal bits.
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

  /// Thrown to leave a case after its launch, or before it.
  struct Profiled {};
  struct NotWanted {};
  void profile_only() { profiled_ = true; }
#endif

 private:
#ifdef __CUDACC__
  /// Runs only the launch, under a profiler.
  template <class Launch>
  void profile(Launch launch) {
    if (result_.model.loaded + result_.model.stored < kernels::kProfiledBytes) throw NotWanted{};
    check_cuda(cudaDeviceSynchronize(), "a kernel", __FILE__, __LINE__);
    check_cuda(cudaProfilerStart(), "cudaProfilerStart", __FILE__, __LINE__);
    launch(stream_of(machine_));
    check_cuda(cudaDeviceSynchronize(), "a kernel", __FILE__, __LINE__);
    check_cuda(cudaProfilerStop(), "cudaProfilerStop", __FILE__, __LINE__);
    throw Profiled{};
  }
  bool profiled_ = false;
#endif
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

  /// Whether to add sizes worth timing, which are too slow for the simulator.
  [[nodiscard]] bool large() const { return options_.timed; }

  /// Adds one case, `body(Case&)`.
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
#ifdef __CUDACC__
      if (options_.profiled) one.profile_only();
      try {
        body(one);
      } catch (const Case::Profiled&) {
        results_.push_back(std::move(result));
        return;
      } catch (const Case::NotWanted&) {
        return;
      }
      if (options_.timed && result.pass && !one.skipped()) one.time();
#else
      body(one);
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
