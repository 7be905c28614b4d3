// NVRTC's functions, declared here as in its manual, so that a build needs no header of CUDA.
#include "kernels/jit/compiler.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "engine/base/cuda_libraries.hpp"

namespace flow::jit {

namespace fs = std::filesystem;

namespace {

constexpr int kSuccess = 0, kInvalidOption = 5, kCompilation = 6;  // nvrtcResult
constexpr size_t kImageMax = size_t{64} << 20;
constexpr size_t kLogMax = size_t{1} << 20;
constexpr int kArchsMax = 1000;

using ScriptKernel = void*;

struct NvrtcCalls {
  const char* (*GetErrorString)(int);
  int (*Version)(int* major, int* minor);
  int (*GetNumSupportedArchs)(int*);
  int (*GetSupportedArchs)(int*);
  int (*CreateProgram)(ScriptKernel*, const char* text, const char* name, int headers,
                       const char* const* sources, const char* const* names);
  int (*DestroyProgram)(ScriptKernel*);
  int (*CompileProgram)(ScriptKernel, int count, const char* const* options);
  int (*GetPTXSize)(ScriptKernel, size_t*);
  int (*GetPTX)(ScriptKernel, char*);
  int (*GetCUBINSize)(ScriptKernel, size_t*);
  int (*GetCUBIN)(ScriptKernel, char*);
  int (*GetProgramLogSize)(ScriptKernel, size_t*);
  int (*GetProgramLog)(ScriptKernel, char*);
  int (*AddNameExpression)(ScriptKernel, const char*);
  int (*GetLoweredName)(ScriptKernel, const char*, const char**);
};

NvrtcCalls calls{};  // filled once, by Compiler::load

Error failed(const char* what, int code) {
  return environment_error(fmt::format("NVRTC failed to {}: {}", what, calls.GetErrorString(code)));
}

class NvrtcProgramScope {
 public:
  ~NvrtcProgramScope() {
    if (program_ != nullptr) calls.DestroyProgram(&program_);
  }
  NvrtcProgramScope() = default;
  NvrtcProgramScope(const NvrtcProgramScope&) = delete;
  NvrtcProgramScope& operator=(const NvrtcProgramScope&) = delete;

  Status create(const CompileRequest& order) {
    std::vector<const char*> names, texts;
    for (const auto& [name, text] : order.headers) {
      names.push_back(name.c_str());
      texts.push_back(text.c_str());
    }
    int code = calls.CreateProgram(&program_, order.text.c_str(), order.name.c_str(),
                                   static_cast<int>(names.size()), texts.data(), names.data());
    if (code == kSuccess) code = calls.AddNameExpression(program_, order.name.c_str());
    return code == kSuccess ? Status() : failed("read the source", code);
  }

  int compile(const std::vector<std::string>& options) {
    std::vector<const char*> given;
    for (const std::string& each : options) given.push_back(each.c_str());
    return calls.CompileProgram(program_, static_cast<int>(given.size()), given.data());
  }

  Result<std::string> read(const char* what, int (*size_of)(ScriptKernel, size_t*),
                           int (*get)(ScriptKernel, char*), size_t size_max) {
    size_t size = 0;
    int code = size_of(program_, &size);
    if (code == kSuccess && size > size_max)
      return environment_error(
          fmt::format("NVRTC's {} has {} bytes: at most {}", what, size, size_max));
    std::string bytes(size, '\0');
    if (code == kSuccess) code = get(program_, bytes.data());
    if (code != kSuccess) return failed(fmt::format("return its {}", what).c_str(), code);
    return bytes;
  }

  Result<std::string> log() {
    auto read_log = read("log", calls.GetProgramLogSize, calls.GetProgramLog, kLogMax);
    if (read_log.ok()) read_log->resize(std::min(read_log->size(), read_log->find('\0')));
    return read_log;
  }

  Result<KernelImage> image(const CompileRequest& order, bool is_ptx) {
    KernelImage image;
    image.is_ptx = is_ptx;
    const char* entry = nullptr;
    int code = calls.GetLoweredName(program_, order.name.c_str(), &entry);
    if (code != kSuccess) return failed("return the function's name", code);
    image.entry = entry;
    auto bytes = is_ptx ? read("PTX", calls.GetPTXSize, calls.GetPTX, kImageMax)
                        : read("code", calls.GetCUBINSize, calls.GetCUBIN, kImageMax);
    if (!bytes.ok()) return bytes.error();
    image.bytes = std::move(*bytes);
    return image;
  }

 private:
  ScriptKernel program_ = nullptr;
};

bool is_ptx_option(const std::string& option) {
  return option.starts_with("--gpu-architecture=compute_");
}

}  // namespace

Result<const Compiler*> Compiler::get() {
  static const Result<Compiler> loaded = load();
  if (!loaded.ok()) return loaded.error();
  return &*loaded;
}

Result<Compiler> Compiler::load() {
  LoadedCudaLibrary library =
      load_cuda_library({kNvrtcVariable, {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"}});
  if (library.is_off) return environment_error("NVRTC, which compiles it, is " + library.problem);
  if (library.handle == nullptr && library.is_named)
    return environment_error(fmt::format("the library that {} names cannot be used: {}",
                                         kNvrtcVariable, library.problem));
  if (library.handle == nullptr)
    return environment_error(
        fmt::format("NVRTC, which compiles it, was not found: install libnvrtc of CUDA 13 or 12, "
                    "name it by {}, or set CUDA_HOME to the folder of the CUDA toolkit: {}",
                    kNvrtcVariable, library.problem));
  Compiler compiler;
  compiler.path_ = library.path;
  FLOW_TRY(compiler.find_calls(library.handle));
  int count = 0;
  calls.Version(&compiler.major_, &compiler.minor_);
  if (calls.GetNumSupportedArchs(&count) == kSuccess && count > 0 && count <= kArchsMax) {
    compiler.archs_.resize(static_cast<size_t>(count));
    calls.GetSupportedArchs(compiler.archs_.data());
    std::sort(compiler.archs_.begin(), compiler.archs_.end());
  }
  compiler.find_headers();
  compiler.version_ = fmt::format("{}.{}", compiler.major_, compiler.minor_);
  for (const std::string& folder : compiler.includes_) compiler.version_ += " " + folder;
  return compiler;
}

Status Compiler::find_calls(void* library) {
  std::string missing;
  auto find = [&](auto& call, const char* name) {
    call = reinterpret_cast<std::remove_reference_t<decltype(call)>>(::dlsym(library, name));
    if (call == nullptr) missing = name;
  };
#define FLOW_NVRTC(name) find(calls.name, "nvrtc" #name)
  FLOW_NVRTC(GetErrorString);
  FLOW_NVRTC(Version);
  FLOW_NVRTC(GetNumSupportedArchs);
  FLOW_NVRTC(GetSupportedArchs);
  FLOW_NVRTC(CreateProgram);
  FLOW_NVRTC(DestroyProgram);
  FLOW_NVRTC(CompileProgram);
  FLOW_NVRTC(GetPTXSize);
  FLOW_NVRTC(GetPTX);
  FLOW_NVRTC(GetCUBINSize);
  FLOW_NVRTC(GetCUBIN);
  FLOW_NVRTC(GetProgramLogSize);
  FLOW_NVRTC(GetProgramLog);
  FLOW_NVRTC(AddNameExpression);
  FLOW_NVRTC(GetLoweredName);
#undef FLOW_NVRTC
  if (missing.empty()) return {};
  return environment_error(
      fmt::format("NVRTC is too old: it has no {}; install that of CUDA 13 or 12", missing));
}

// cuda_fp16.h and similar headers are near the library; NVRTC has no default folder for them.
void Compiler::find_headers() {
  std::vector<fs::path> folders{fs::path(path_).parent_path().parent_path() / "include"};
  for (const std::string& folder : cuda_header_folders(CudaSearch::of_process()))
    folders.emplace_back(folder);
  for (const fs::path& folder : folders) {
    if (::access((folder / "cuda_fp16.h").c_str(), R_OK) != 0) continue;
    includes_.push_back(folder.string());
    if (::access((folder / "cccl").c_str(), R_OK) == 0)
      includes_.push_back((folder / "cccl").string());
    return;
  }
}

Result<std::vector<std::string>> Compiler::options_of(const CompileRequest& order) const {
  auto next = std::upper_bound(archs_.begin(), archs_.end(), order.arch);
  if (next == archs_.begin())
    return environment_error(
        fmt::format("NVRTC {}.{} cannot compile for sm_{}: the oldest that it supports is sm_{}",
                    major_, minor_, order.arch, archs_.empty() ? 0 : archs_.front()));
  int known = *std::prev(next);
  std::vector<std::string> options{
      fmt::format("--gpu-architecture={}_{}", known == order.arch ? "sm" : "compute", known)};
  if (order.headers.empty())
    for (const std::string& folder : includes_) options.push_back("--include-path=" + folder);
  options.insert(options.end(), order.options.begin(), order.options.end());
  return options;
}

Result<CompileResult> Compiler::compile(const CompileRequest& order) const {
  auto options = options_of(order);
  if (!options.ok()) return options.error();
  NvrtcProgramScope program;
  FLOW_TRY(program.create(order));
  int code = program.compile(*options);
  CompileResult output;
  output.ok = code == kSuccess;
  if (!output.ok) {
    if (code != kCompilation && code != kInvalidOption) return failed("compile", code);
    auto log = program.log();
    if (!log.ok()) return log.error();
    output.log = std::move(*log);
    return output;
  }
  auto image = program.image(order, is_ptx_option(options->front()));
  if (!image.ok()) return image.error();
  output.image = std::move(*image);
  return output;
}

}  // namespace flow::jit
