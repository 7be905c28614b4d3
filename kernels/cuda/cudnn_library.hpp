// cuDNN, loaded. One per process; tests make their own.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/cuda/cudnn_attention_graph.hpp"
#include "kernels/cuda/cudnn_choice.hpp"

namespace flow::cuda::dnn {

/// How often a failure that may pass, such as of a full GPU, is tried again.
constexpr int kTriesMax = 4;

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
  /// Null if cuDNN does not work there. Makes none while the stream is recording.
  CudnnHandle handle_of(const Stream& stream, int device);
  AlgorithmChoice& choice_of(CudnnHandle handle, int device, const Numbers& numbers,
                             const Call& call);
  AlgorithmChoice choose(CudnnHandle handle, const Numbers& numbers, const Call& call) const;

  enum class AttentionState { unsettled, ready, refused };
  struct AttentionEntry {
    AttentionState state = AttentionState::unsettled;
    std::unique_ptr<AttentionPlan> plan;
    int tries = 0;  // that failed
  };
  struct AttentionRun;

  AttentionEntry* entry_of(const Stream& stream, int device, const AttentionNumbers& numbers);
  int settle(Stream& stream, int device, const AttentionNumbers& numbers, AttentionEntry& entry);
  void make_plan(CudnnHandle handle, int device, const AttentionNumbers& numbers,
                 AttentionEntry& entry);
  static void put_off(AttentionEntry& entry, const AttentionNumbers& numbers,
                      const std::string& why);
  void distrust(const AttentionNumbers& numbers, const std::string& problem);
  int run(Stream& stream, int device, const AttentionCall& call, AttentionEntry& entry);

  DnnCalls calls_;
  std::string path_, problem_;
  std::mutex mutex_;  // guards the members below and the handles' streams
  struct DeviceHandle {
    CudnnHandle handle = nullptr;
    int tries = 0;  // that failed
  };
  std::map<int, DeviceHandle> handles_;  // by device
  std::map<std::pair<int, Numbers>, AlgorithmChoice> choices_;
  std::map<std::pair<int, AttentionNumbers>, AttentionEntry> plans_;
  bool plans_are_full_ = false;
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
