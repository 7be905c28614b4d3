// Named ranges of a thread's time in the profile of an NVTX tool, such as Nsight Systems.
#pragma once
#include <concepts>
#include <string>

namespace flow {

/// Whether a tool records the ranges of this process. The first call loads the library that
/// NVTX_INJECTION64_PATH names. Always false in a build without NVTX.
bool has_profiler();

/// A range from its construction to its destruction, in NVTX's domain `flow`. The ranges of a
/// thread are nested. Without a tool it costs one call and computes no name.
class ProfilerRange {
 public:
  explicit ProfilerRange(const char* name) : is_open_(has_profiler()) {
    if (is_open_) open(name);
  }
  /// `name()` is a string; its first kNameMax bytes are used.
  template <std::invocable Name>
  explicit ProfilerRange(Name name) : is_open_(has_profiler()) {
    if (is_open_) open(name());
  }
  ~ProfilerRange() {
    if (is_open_) close();
  }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

  static constexpr size_t kNameMax = 200;

 private:
  static void open(const std::string& name);
  static void close();

  const bool is_open_;
};

}  // namespace flow
