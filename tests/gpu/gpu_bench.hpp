// Memory and calls on the GPU for the programs of this folder. An error of the device ends the
// program.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/device.hpp"
#include "kernels/table.hpp"

namespace flow::gpu {

template <typename T>
T must(Result<T> result) {
  if (result) return std::move(*result);
  fmt::print("{}\n", result.error().message);
  std::exit(1);
}
inline void must(Status status) {
  if (status) return;
  fmt::print("{}\n", status.error().message);
  std::exit(1);
}

/// Device memory, freed by the destructor.
class Room {
 public:
  Room(size_t bytes, void* stream)
      : data_(must(cuda::allocate(std::max<size_t>(bytes, 256), stream))), stream_(stream) {}
  Room(const Room&) = delete;
  ~Room() { must(cuda::release(data_, stream_)); }
  char* data() const { return data_; }

 private:
  char* data_;
  void* stream_;
};

/// Operands on the device, and the scratch that calls share.
class Bench {
 public:
  explicit Bench(void* native, size_t scratch_bytes = size_t{1} << 30)
      : scratch_(scratch_bytes, native) {
    stream.native = native;
    stream.scratch = {scratch_.data(), scratch_bytes, 0, 0};
  }
  kernels::View random(DType dtype, const kernels::Shape& shape) {
    kernels::View view = empty(dtype, shape);
    must_be(table.normal(stream, view, 1, 0, 0, 1));
    return view;
  }
  kernels::View empty(DType dtype, const kernels::Shape& shape) {
    kernels::View view = kernels::dense(dtype, shape, nullptr);
    rooms_.push_back(std::make_unique<Room>(view.bytes(), stream.native));
    view.data = rooms_.back()->data();
    return view;
  }
  /// Waits, and frees the operands.
  void clear() {
    must(cuda::wait_for(stream.native));
    rooms_.clear();
  }
  /// `code` is of a call of `table`.
  void must_be(int code) {
    stream.scratch.used = 0;
    if (code == kernels::kDone) return;
    fmt::print("error {}: {}\n", code, code > 0 ? table.error_text(code) : "rejected");
    std::exit(1);
  }
  /// The bytes of a dense view.
  std::vector<char> bytes_of(const kernels::View& view) {
    std::vector<char> bytes(view.bytes());
    must(cuda::copy_to_host(bytes.data(), view.data, bytes.size(), stream.native));
    must(cuda::wait_for(stream.native));
    return bytes;
  }

  const kernels::Kernels& table = *kernels::cuda_kernels();
  kernels::Stream stream;

 private:
  Room scratch_;
  std::vector<std::unique_ptr<Room>> rooms_;
};

/// Seconds per call: the lowest of 5 averages over 10 calls, after one call to warm up.
inline double time_of(void* stream, const std::function<void()>& call) {
  using Clock = std::chrono::steady_clock;
  call();
  must(cuda::wait_for(stream));
  double best = 1e9;
  for (int round = 0; round < 5; round++) {
    constexpr int times = 10;
    auto start = Clock::now();
    for (int i = 0; i < times; i++) call();
    must(cuda::wait_for(stream));
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count() / times);
  }
  return best;
}

inline double time_of(Bench& b, const std::function<int()>& call) {
  return time_of(b.stream.native, [&] { b.must_be(call()); });
}

}  // namespace flow::gpu
