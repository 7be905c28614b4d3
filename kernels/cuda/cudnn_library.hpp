// cuDNN, loaded. One of a process; tests make their own.
#pragma once
#include <map>
#include <mutex>
#include <utility>

#include "kernels/cuda/cudnn_choice.hpp"

namespace flow::cuda::dnn {

class Library {
 public:
  /// Loads `path`; empty: libcudnn.so.9, where it is.
  explicit Library(const std::string& path);
  ~Library();
  Library(const Library&) = delete;

  bool works() const { return problem_.empty(); }
  /// Why it does not work, or its version.
  std::string text() const;
  const std::string& problem() const { return problem_; }
  const Calls& calls() const { return calls_; }

  int run(Stream& stream, int device, const Convolution& convolution);

 private:
  struct Choice {
    bool is_there = false;
    int algorithm = 0, math = 0;
    size_t workspace = 0;
  };
  struct Call;

  void load(const std::string& path);
  Handle handle_of(int device);
  Choice& choice_of(Handle handle, int device, const Numbers& numbers, const Call& call);
  Choice choose(Handle handle, const Numbers& numbers, const Call& call) const;

  Calls calls_;
  std::string problem_;
  std::mutex mutex_;               // of what follows, and of the handles' streams
  std::map<int, Handle> handles_;  // by device; null: cuDNN does not work there
  std::map<std::pair<int, Numbers>, Choice> choices_;
};

/// The numbers of one call as cuDNN's own.
struct Descriptors {
  explicit Descriptors(const Calls& calls) : calls(calls) {}
  Descriptors(const Descriptors&) = delete;
  ~Descriptors();
  bool make(const Numbers& numbers);

  const Calls& calls;
  Descriptor x = nullptr, y = nullptr, bias = nullptr;
  Descriptor w = nullptr, convolution = nullptr, activation = nullptr;
};

}  // namespace flow::cuda::dnn
