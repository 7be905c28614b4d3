// A fake libcuda.so.1: it accepts NVRTC's code, finds the function's name in it, and runs the host
// function of that name below, thread by thread.
#include <elf.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "kernels/jit/fused_walk.hpp"

namespace {

struct Thread {
  long long index, count;  // of all threads of the launch
};

template <typename T>
T at(void** parameters, int i) {
  T value;
  std::memcpy(&value, parameters[i], sizeof value);
  return value;
}

void saxpy(Thread thread, void** p) {
  auto a = at<float>(p, 0);
  auto *x = at<const float*>(p, 1), *y = at<const float*>(p, 2);
  auto* out = at<float*>(p, 3);
  auto n = at<long long>(p, 4);
  for (long long i = thread.index; i < n; i += thread.count) out[i] = a * x[i] + y[i];
}

void twice(Thread thread, void** p) {
  auto* x = at<double*>(p, 0);
  auto n = at<int>(p, 1);
  if (thread.index < n) x[thread.index] *= 2;
}

void row_sums(Thread thread, void** p) {
  auto* x = at<const float*>(p, 0);
  auto* sums = at<float*>(p, 1);
  auto* longest = at<long long*>(p, 2);
  auto rows = at<long long>(p, 3), columns = at<long long>(p, 4);
  if (thread.index >= rows) return;
  sums[thread.index] = 0;
  for (long long i = 0; i < columns; i++) sums[thread.index] += x[thread.index * columns + i];
  if (thread.index == 0) *longest = columns;
}

void every_type(Thread thread, void** p) {
  if (thread.index != 0) return;
  auto* out = at<double*>(p, 6);
  out[0] = at<float>(p, 0);
  out[1] = at<double>(p, 1);
  out[2] = at<int>(p, 2);
  out[3] = static_cast<double>(at<long long>(p, 3));
  out[4] = at<unsigned char>(p, 4);
  out[5] = at<bool>(p, 5);
}

// The chain x * y + number, of dense operands.
void flow_fused(Thread thread, void** p) {
  auto number = at<float>(p, 0);
  const auto& walk = *static_cast<const flow::jit::FusedWalk<3>*>(p[1]);
  auto *x = reinterpret_cast<const float*>(walk.data[0]),
       *y = reinterpret_cast<const float*>(walk.data[1]);
  auto* out = reinterpret_cast<float*>(walk.data[2]);
  for (long long i = thread.index; i < walk.all; i += thread.count) {
    float product = x[i] * y[i];
    out[i] = product + number;
  }
}

struct LoadedFunction {
  const char* name;
  void (*run)(Thread, void**);
};
const LoadedFunction kFunctions[] = {{"saxpy", saxpy},
                                     {"twice", twice},
                                     {"row_sums", row_sums},
                                     {"every_type", every_type},
                                     {"flow_fused", flow_fused}};

constexpr int kInvalidImage = 200, kNotFound = 500, kThreadsMax = 256 * 3;
std::string launched;  // one line per launch

struct Module {
  std::string code;
};
std::vector<std::unique_ptr<Module>> modules;

// The bytes of an ELF file; the size follows from its headers.
std::string elf_of(const void* image) {
  const auto& head = *static_cast<const Elf64_Ehdr*>(image);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0) return "";
  size_t end = head.e_shoff + size_t{head.e_shnum} * head.e_shentsize;
  return {static_cast<const char*>(image), end};
}

}  // namespace

extern "C" {

const char* fake_launched() { return launched.c_str(); }
void fake_forget() { launched.clear(); }
int fake_modules() { return static_cast<int>(modules.size()); }

int cuGetErrorName(int code, const char** name) {
  *name = code == kNotFound ? "CUDA_ERROR_NOT_FOUND" : "CUDA_ERROR_INVALID_IMAGE";
  return 0;
}
int cuGetErrorString(int code, const char** text) {
  *text = code == kNotFound ? "named symbol not found" : "device kernel image is invalid";
  return 0;
}
int cuModuleLoadDataEx(void** module, const void* image, unsigned, int*, void**) {
  std::string code = elf_of(image);
  if (code.empty()) return kInvalidImage;
  modules.push_back(std::make_unique<Module>(Module{std::move(code)}));
  *module = modules.back().get();
  return 0;
}
int cuModuleGetFunction(void** function, void* module, const char* name) {
  std::string wanted = std::string(name) + '\0';
  if (static_cast<Module*>(module)->code.find(wanted) == std::string::npos) return kNotFound;
  for (const LoadedFunction& each : kFunctions) {
    if (wanted.find(each.name) == std::string::npos) continue;
    *function = const_cast<LoadedFunction*>(&each);
    return 0;
  }
  return kNotFound;
}
int cuFuncGetAttribute(int* value, int, void*) {
  *value = kThreadsMax;
  return 0;
}
int cuFuncSetAttribute(void* function, int attribute, int value) {
  launched += std::string(static_cast<LoadedFunction*>(function)->name) + " attribute " +
              std::to_string(attribute) + " = " + std::to_string(value) + "\n";
  return 0;
}
int cuLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void* stream, void** parameters, void**) {
  const auto& own = *static_cast<LoadedFunction*>(function);
  char line[200];
  std::snprintf(line, sizeof line, "%s grid %u %u %u block %u %u %u shared %u%s\n", own.name, gx,
                gy, gz, bx, by, bz, shared, stream == nullptr ? " no stream" : "");
  launched += line;
  long long count = 1LL * gx * gy * gz * bx * by * bz;
  for (long long i = 0; i < count; i++) own.run({i, count}, parameters);
  return 0;
}

}  // extern "C"
