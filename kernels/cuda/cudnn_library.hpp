// cuDNN, loaded. One per process; tests make their own.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/cuda/cudnn_attention_graph.hpp"
#include "kernels/cuda/cudnn_choice.hpp"

namespace flow::cuda::dnn {

class DnnLibrary {
 public:
  /// Loads `path`; empty: the libcudnn.so.9 that the search for NVIDIA's libraries finds.
  explicit DnnLibrary(const std::string& path);
  ~DnnLibrary();
  DnnLibrary(const DnnLibrary&) = delete;

  bool works() const { return problem_.empty(); }
  /// Why it does not work, or its version.
  std::string text() const;
  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }  // of the loaded file
  const DnnCalls& calls() const { return calls_; }

  int run(Stream& stream, int device, const Convolution& convolution);

  // cudnn_attention.cc
  int run(Stream& stream, int device, const AttentionCall& call);
  /// Why it is not used for attention any more; empty: it is.
  std::string attention_problem();

 private:
  struct AlgorithmChoice {
    bool is_there = false;
    int algorithm = 0, math = 0;
    size_t workspace = 0;
  };
  struct Call;

  void load(const std::string& path);
  CudnnHandle handle_of(int device);
  AlgorithmChoice& choice_of(CudnnHandle handle, int device, const Numbers& numbers,
                             const Call& call);
  AlgorithmChoice choose(CudnnHandle handle, const Numbers& numbers, const Call& call) const;

  AttentionPlan& plan_of(CudnnHandle handle, int device, const AttentionNumbers& numbers);
  struct AttentionRun;

  DnnCalls calls_;
  std::string path_, problem_;
  std::mutex mutex_;                    // guards the members below and the handles' streams
  std::map<int, CudnnHandle> handles_;  // by device; null: cuDNN does not work there
  std::map<std::pair<int, Numbers>, AlgorithmChoice> choices_;
  std::map<std::pair<int, AttentionNumbers>, std::unique_ptr<AttentionPlan>> plans_;
  std::string attention_problem_;
};

/// The library of this process, or null with the code to return: kUnsupported if it is not to be
/// used, or cannot be.
DnnLibrary* library_in_use(int& code);

/// The numbers of one call as cuDNN's descriptors.
struct ConvolutionDescriptors {
  explicit ConvolutionDescriptors(const DnnCalls& calls) : calls(calls) {}
  ConvolutionDescriptors(const ConvolutionDescriptors&) = delete;
  ~ConvolutionDescriptors();
  bool make(const Numbers& numbers);

  const DnnCalls& calls;
  CudnnDescriptor x = nullptr, y = nullptr, bias = nullptr;
  CudnnDescriptor w = nullptr, convolution = nullptr, activation = nullptr;
};

}  // namespace flow::cuda::dnn
