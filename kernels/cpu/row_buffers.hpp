// Rows in the compute type. Rows of f16 and bf16 are converted into a buffer of their part of the
// work, and so are rows that are written with non-temporal stores.
#pragma once
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/elementwise.hpp"

namespace flow::cpu {

/// How rows are split: each part is done by one thread and has its own buffers.
struct RowParts {
  int64_t rows = 0, parts = 1;
  RowParts(const Stream& stream, int64_t row_count, int64_t columns, int64_t grain)
      : rows(row_count) {
    int64_t least = std::max<int64_t>(1, grain / std::max<int64_t>(1, columns));
    parts = std::max<int64_t>(1, std::min<int64_t>(stream.threads, rows / least));
  }
  /// Calls f(part, first, last).
  template <typename F>
  void run(const Stream& stream, F f) const {
    if (rows == 0) return;
    parallel_for(stream.threads, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; part++)
        f(part, rows * part / parts, rows * (part + 1) / parts);
    });
  }
};

/// The rows of one view.
class RowBuffer {
 public:
  /// `can_stream`: all of it is written and none of it is read.
  RowBuffer(Scratch& scratch, const RowParts& parts, const View& view, bool can_stream = false)
      : view_(view), columns_(view.shape.last()) {
    streams_ = can_stream && !is_small(view.dtype) && is_beyond_caches(view.bytes());
    size_ = size_of_kind(kind_of(view.dtype));
    if (!is_small(view.dtype) && !streams_) return;
    stride_ = (columns_ * static_cast<int64_t>(size_) + 63) / 64 * 64;
    buffer_ = scratch.take<char>(parts.parts * stride_);
    fits_ = buffer_ != nullptr || parts.parts * stride_ == 0;
  }
  bool fits() const { return fits_; }

  const void* read(int64_t part, int64_t row) const {
    return load_converted(view_.dtype, row_at(view_, row), 1, columns_, buffer_of(part));
  }
  /// The destination to write; write() then stores it.
  void* target(int64_t part, int64_t row) const {
    return buffer_ != nullptr ? buffer_of(part) : row_at(view_, row);
  }
  void write(int64_t part, int64_t row) const {
    if (buffer_ == nullptr) return;
    if (streams_) {
      stream_out(buffer_of(part), row_at(view_, row), static_cast<size_t>(columns_) * size_);
    } else {
      store_converted(view_.dtype, buffer_of(part), row_at(view_, row), 1, columns_);
    }
  }

 private:
  char* buffer_of(int64_t part) const { return buffer_ + part * stride_; }

  const View& view_;
  int64_t columns_ = 0, stride_ = 0;
  size_t size_ = 4;
  bool streams_ = false, fits_ = true;
  char* buffer_ = nullptr;
};

/// One number per row: f32, or f64 for f64.
inline double statistic(const View& view, int64_t row) {
  const char* at = row_at(view, row, 0);
  return view.dtype == DType::f64 ? *reinterpret_cast<const double*>(at)
                                  : *reinterpret_cast<const float*>(at);
}
inline void set_statistic(const View& view, int64_t row, double value) {
  char* at = row_at(view, row, 0);
  if (view.dtype == DType::f64) {
    *reinterpret_cast<double*>(at) = value;
  } else {
    *reinterpret_cast<float*>(at) = static_cast<float>(value);
  }
}

}  // namespace flow::cpu
