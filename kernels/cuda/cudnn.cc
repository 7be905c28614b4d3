// cuDNN, loaded by the first convolution or attention: its parts take hundreds of megabytes.
#include "kernels/cuda/cudnn.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

#include "engine/base/cuda_libraries.hpp"
#include "kernels/cuda/cudnn_device.hpp"
#include "kernels/cuda/cudnn_library.hpp"
#include "kernels/cuda/errors.hpp"
#include "kernels/cuda/own_products.hpp"

namespace flow::cuda {
namespace dnn {
namespace {

constexpr int kOffersMax = 32;
constexpr size_t kChoicesMax = 4096;

// A factor of the result, in the compute type.
struct Factor {
  Factor(int compute, double value)
      : wide(value), narrow(static_cast<float>(value)), is_wide(compute == kDouble) {}
  const void* at() const { return is_wide ? static_cast<const void*>(&wide) : &narrow; }
  double wide;
  float narrow;
  bool is_wide;
};

}  // namespace

ConvolutionDescriptors::~ConvolutionDescriptors() {
  for (CudnnDescriptor each : {x, y, bias})
    if (each) calls.DestroyTensorDescriptor(each);
  if (w) calls.DestroyFilterDescriptor(w);
  if (convolution) calls.DestroyConvolutionDescriptor(convolution);
  if (activation) calls.DestroyActivationDescriptor(activation);
}

bool ConvolutionDescriptors::make(const Numbers& n) {
  auto tensor = [&](CudnnDescriptor& to, const int(&shape)[4]) {
    return calls.CreateTensorDescriptor(&to) == kSuccess &&
           calls.SetTensor4dDescriptor(to, kNchw, n.type, shape[0], shape[1], shape[2], shape[3]) ==
               kSuccess;
  };
  if (!tensor(x, n.x) || !tensor(y, n.y) || calls.CreateFilterDescriptor(&w) != kSuccess ||
      calls.SetFilter4dDescriptor(w, n.type, kNchw, n.w[0], n.w[1], n.w[2], n.w[3]) != kSuccess ||
      calls.CreateConvolutionDescriptor(&convolution) != kSuccess ||
      calls.SetConvolution2dDescriptor(convolution, n.padding[0], n.padding[1], n.stride[0],
                                       n.stride[1], n.dilation[0], n.dilation[1], kCrossCorrelation,
                                       n.compute) != kSuccess ||
      calls.SetConvolutionGroupCount(convolution, n.groups) != kSuccess ||
      calls.SetConvolutionMathType(convolution, math_of(n)) != kSuccess)
    return false;
  if (!n.has_bias) return true;
  return tensor(bias, {1, n.y[1], 1, 1}) &&
         calls.CreateActivationDescriptor(&activation) == kSuccess &&
         calls.SetActivationDescriptor(activation, kActivationIdentity, kNotPropagateNan, 0) ==
             kSuccess;
}

// One of the three directions, with its descriptors in the order of its functions' parameters.
struct DnnLibrary::Call {
  const DnnCalls& calls;
  const ConvolutionDescriptors& d;
  const Numbers& n;

  int offers(CudnnHandle handle, int& count, AlgorithmPerf* offers) const {
    switch (n.way) {
      case ConvolutionDirection::forward:
        return calls.GetConvolutionForwardAlgorithm_v7(handle, d.x, d.w, d.convolution, d.y,
                                                       kOffersMax, &count, offers);
      case ConvolutionDirection::backward_input:
        return calls.GetConvolutionBackwardDataAlgorithm_v7(handle, d.w, d.y, d.convolution, d.x,
                                                            kOffersMax, &count, offers);
      default:
        return calls.GetConvolutionBackwardFilterAlgorithm_v7(handle, d.x, d.y, d.convolution, d.w,
                                                              kOffersMax, &count, offers);
    }
  }
  int workspace(CudnnHandle handle, int algorithm, size_t& bytes) const {
    switch (n.way) {
      case ConvolutionDirection::forward:
        return calls.GetConvolutionForwardWorkspaceSize(handle, d.x, d.w, d.convolution, d.y,
                                                        algorithm, &bytes);
      case ConvolutionDirection::backward_input:
        return calls.GetConvolutionBackwardDataWorkspaceSize(handle, d.w, d.y, d.convolution, d.x,
                                                             algorithm, &bytes);
      default:
        return calls.GetConvolutionBackwardFilterWorkspaceSize(handle, d.x, d.y, d.convolution, d.w,
                                                               algorithm, &bytes);
    }
  }
  int run(CudnnHandle handle, const Convolution& v, int algorithm, void* room, size_t bytes) const {
    Factor one(n.compute, 1), zero(n.compute, 0);
    switch (n.way) {
      case ConvolutionDirection::forward:
        // The bias is added to the sum before rounding: rounded once, also for halves. z is unused
        // and may not be null.
        if (n.has_bias)
          return calls.ConvolutionBiasActivationForward(
              handle, one.at(), d.x, v.x.data, d.w, v.w.data, d.convolution, algorithm, room, bytes,
              zero.at(), d.y, v.y.data, d.bias, v.bias->data, d.activation, d.y, v.y.data);
        return calls.ConvolutionForward(handle, one.at(), d.x, v.x.data, d.w, v.w.data,
                                        d.convolution, algorithm, room, bytes, zero.at(), d.y,
                                        v.y.data);
      case ConvolutionDirection::backward_input:
        return calls.ConvolutionBackwardData(handle, one.at(), d.w, v.w.data, d.y, v.y.data,
                                             d.convolution, algorithm, room, bytes, zero.at(), d.x,
                                             v.x.data);
      default:
        return calls.ConvolutionBackwardFilter(handle, one.at(), d.x, v.x.data, d.y, v.y.data,
                                               d.convolution, algorithm, room, bytes, zero.at(),
                                               d.w, v.w.data);
    }
  }
};

DnnLibrary::DnnLibrary(const std::string& path) {
  load(path);
  if (!problem_.empty()) calls_ = {};
}

DnnLibrary::~DnnLibrary() {
  plans_.clear();
  for (auto& [device, each] : handles_)
    if (each.handle) calls_.Destroy(each.handle);
}

void DnnLibrary::load(const std::string& path) {
  void* file = nullptr;
  if (!path.empty()) {
    file = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    path_ = path;
    if (!file) problem_ = dlerror();
  } else {
    LoadedCudaLibrary loaded = load_cuda_library({"", {"libcudnn.so.9"}});
    file = loaded.handle;
    path_ = loaded.path;
    problem_ = loaded.problem;
  }
  if (!file) return;
  auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(file, name));
    if (!function) problem_ = std::string("it has no ") + name;
  };
  find(calls_.GetVersion, "cudnnGetVersion");
  find(calls_.GetErrorString, "cudnnGetErrorString");
#define FLOW_DNN(name, ...) find(calls_.name, "cudnn" #name);
  FLOW_DNN_CALLS(FLOW_DNN)
#undef FLOW_DNN
  if (!problem_.empty()) return;
  size_t version = calls_.GetVersion();
  if (version / 10000 != kMajorVersion)
    problem_ = "its version is " + std::to_string(version) + ": flow knows cuDNN " +
               std::to_string(kMajorVersion);
}

std::string DnnLibrary::text() const {
  if (!works()) return problem_;
  size_t version = calls_.GetVersion();
  return "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

// A driver that is too old stays too old, but a full GPU may look the same.
CudnnHandle DnnLibrary::handle_of(const Stream& stream, int device) {
  DeviceHandle& own = handles_[device];
  if (own.handle || own.tries >= kTriesMax || is_recording(stream)) return own.handle;
  int status = calls_.Create(&own.handle);
  if (status == kSuccess) return own.handle;
  own.handle = nullptr;
  if (own.tries++ == 0)
    warn_attempt(text() + " does not start on GPU " + std::to_string(device) + ": " +
                 calls_.GetErrorString(status) + ". flow's own kernels are used");
  return nullptr;
}

DnnLibrary::AlgorithmChoice DnnLibrary::choose(CudnnHandle handle, const Numbers& numbers,
                                               const Call& call) const {
  AlgorithmPerf offers[kOffersMax]{};
  int count = 0;
  if (call.offers(handle, count, offers) != kSuccess) return {};
  for (int i = next_algorithm(numbers, offers, count, 0); i >= 0;
       i = next_algorithm(numbers, offers, count, i + 1)) {
    AlgorithmChoice choice{true, offers[i].algorithm, math_of(numbers, offers[i]), 0};
    // Queries again, with the math mode that is used.
    if (calls_.SetConvolutionMathType(call.d.convolution, choice.math) == kSuccess &&
        call.workspace(handle, choice.algorithm, choice.workspace) == kSuccess &&
        choice.workspace <= kWorkspaceMax)
      return choice;
  }
  return {};
}

DnnLibrary::AlgorithmChoice& DnnLibrary::choice_of(CudnnHandle handle, int device,
                                                   const Numbers& numbers, const Call& call) {
  std::pair<int, Numbers> key{device, numbers};
  auto found = choices_.find(key);
  if (found != choices_.end()) return found->second;
  if (choices_.size() >= kChoicesMax) choices_.clear();
  return choices_[key] = choose(handle, numbers, call);
}

int DnnLibrary::run(Stream& stream, int device, const Convolution& convolution) {
  Numbers numbers;
  if (!works() || !numbers_of(convolution, numbers)) return kUnsupported;
  numbers.reduces = numbers.type == kFloat && stream.precision != MatmulPrecision::highest;
  ConvolutionDescriptors descriptors(calls_);
  if (!descriptors.make(numbers)) return kUnsupported;
  Call call{calls_, descriptors, numbers};

  std::lock_guard hold(mutex_);
  CudnnHandle handle = handle_of(stream, device);
  if (!handle) return kUnsupported;
  AlgorithmChoice& choice = choice_of(handle, device, numbers, call);
  if (!choice.is_there) return kUnsupported;
  size_t used = stream.scratch.used;
  char* room = nullptr;
  if (choice.workspace > 0) {
    room = stream.scratch.take<char>(static_cast<int64_t>(choice.workspace));
    if (!room) return kNeedsScratch;
  }
  int status = calls_.SetStream(handle, stream.native);
  if (status == kSuccess)
    status = calls_.SetConvolutionMathType(descriptors.convolution, choice.math);
  if (status == kSuccess)
    status = on_device(
        [&] { return call.run(handle, convolution, choice.algorithm, room, choice.workspace); });
  if (is_refusal(status)) {  // nothing was queued on the stream yet
    choice.is_there = false;
    stream.scratch.used = used;
    return kUnsupported;
  }
  return status == kSuccess ? kDone : kDnnErrors + status;
}

}  // namespace dnn

namespace {

std::atomic<bool> cudnn_is_asked{true};
std::atomic<int64_t> cudnn_asked{0}, cudnn_done{0};

// The library that the environment names.
struct CudnnName {
  std::string path;
  bool is_named = false, is_off = false;

  CudnnName() {
    const char* text = std::getenv(kCudnnVariable);
    is_named = text != nullptr && *text != 0;
    if (is_named) path = text;
    is_off = path == "off";
#ifdef FLOW_EMULATE  // the machine's library would need a GPU
    if (!is_named) is_off = true;
#endif
  }
};

const CudnnName& cudnn_name() {
  static const CudnnName name;
  return name;
}

// Never unloaded: at exit the driver may be unloaded first.
dnn::DnnLibrary& cudnn_library() {
  static auto* library = new dnn::DnnLibrary(cudnn_name().path);
  return *library;
}

}  // namespace

dnn::DnnLibrary* dnn::library_in_use(int& code) {
  code = kUnsupported;
  if (!cudnn_is_asked || cudnn_name().is_off) return nullptr;
  DnnLibrary& library = cudnn_library();
  if (library.works()) return &library;
  if (cudnn_name().is_named) code = kDnnErrors;
  return nullptr;
}

int convolve_by_cudnn(Stream& stream, const Convolution& convolution) {
  int code = kDone;
  dnn::DnnLibrary* library = dnn::library_in_use(code);
  if (!library) return code;
  int device = 0;
  if (int error = dnn::current_device(device)) return error;
  code = library->run(stream, device, convolution);
  if (code == kNeedsScratch) return code;
  cudnn_asked++;
  if (code == kDone) cudnn_done++;
  return code;
}

const char* cudnn_error_text(int code) {
  static thread_local std::string text;
  if (code == kAttentionVariableError) {
    const char* value = std::getenv(kAttentionVariable);
    text = std::string("the environment has ") + kAttentionVariable + "=" + (value ? value : "") +
           ": its only value is `own`";
    return text.c_str();
  }
  const dnn::DnnLibrary& library = cudnn_library();
  if (!library.works())
    text = std::string("the library that ") + kCudnnVariable +
           " names cannot be used: " + library.problem();
  else
    text = std::string("cuDNN failed in an operation that it had accepted: ") +
           library.calls().GetErrorString(code - kDnnErrors);
  return text.c_str();
}

CudnnUse cudnn_use() {
  if (cudnn_name().is_off)
    return {false, true, true, std::string("disabled by ") + kCudnnVariable, 0, 0, ""};
  return {cudnn_library().works(), false,       cudnn_name().is_named,
          cudnn_library().text(),  cudnn_asked, cudnn_done,
          cudnn_library().path()};
}

void use_cudnn(bool is_asked) { cudnn_is_asked = is_asked; }

}  // namespace flow::cuda
