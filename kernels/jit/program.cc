#include "kernels/jit/program.hpp"

#include <fmt/format.h>

#include <charconv>
#include <mutex>
#include <utility>

namespace flow::jit {
namespace {

constexpr size_t kFunctionsMax = 4096;  // per process
constexpr int kArchMax = 9999;

// A module is never unloaded: a launched kernel may still run.
struct FunctionTable {
  std::mutex mutex;
  std::map<std::pair<Digest, int>, LoadedFunction> functions;  // by image and device
};

FunctionTable& function_table() {
  static auto* made = new FunctionTable;
  return *made;
}

}  // namespace

Result<KernelImage> ScriptKernel::image(int arch, const Cache& cache) const {
  auto compiler = Compiler::get();
  if (!compiler.ok())
    return environment_error(fmt::format("the kernel `{}` can't be compiled: {}", source_.name,
                                         compiler.error().message));
  CompileRequest order{source_.name, compiler_text(source_), source_.options, arch};
  auto output = compile_cached(order, cache);
  if (!output.ok()) return output.error();
  if (!output->ok)
    return user_error(fmt::format("the kernel `{}` can't be compiled for sm_{}:\n{}", source_.name,
                                  arch, error_text(source_, output->log)));
  return std::move(output->image);
}

LoadedFunction* ScriptKernel::loaded(int device) const {
  auto found = functions_.find(device);
  return found == functions_.end() ? nullptr : found->second;
}

Result<LoadedFunction*> ScriptKernel::load(const Driver& driver, int device, int arch,
                                           const Cache& cache) {
  auto code = image(arch, cache);
  if (!code.ok()) return code.error();
  std::pair<Digest, int> key{sha256(code->entry + '\0' + code->bytes), device};
  std::lock_guard<std::mutex> hold(function_table().mutex);
  auto& all = function_table().functions;
  auto at = all.find(key);
  if (at == all.end()) {
    if (all.size() >= kFunctionsMax)
      return user_error(fmt::format(
          "the kernel `{}` can't be loaded: this process has {} kernels, and that is the most; "
          "make them once, where the script loads, and not for each call",
          source_.name, all.size()));
    auto function = load_function(driver, *code);
    if (!function.ok())
      return Error{function.error().kind,
                   fmt::format("the kernel `{}`: {}", source_.name, function.error().message)};
    at = all.emplace(key, *function).first;
  }
  functions_[device] = &at->second;
  return &at->second;
}

int parse_arch(std::string_view text) {
  if (text.starts_with("sm_")) text.remove_prefix(3);
  int arch = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), arch);
  bool good = error == std::errc() && end == text.data() + text.size() && arch > 0;
  return good && arch <= kArchMax ? arch : 0;
}

}  // namespace flow::jit
