// fused_chains source FILE.cc: the sources of all chains, for the emulator, with a table of them.
// fused_chains cubins FOLDER: compiles some of them by NVRTC; exit status 77 if it is not here.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "kernels/jit/cache.hpp"
#include "kernels/jit/fused_source.hpp"
#include "tests/kernels/jit/chains.hpp"

using namespace flow;
using namespace flow::jit;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};

int write_source(const std::string& path) {
  std::string text = "#include \"tests/kernels/emulator/fused_table.hpp\"\n", table;
  std::vector<kernels::FusedElementwise> chains = all_chains();
  for (size_t i = 0; i < chains.size(); i++)
    for (DType dtype : kTypes)
      for (int width : {fused_pack(dtype), 1}) {
        bool is_last = i + 1 == chains.size();  // the others are computed in f32 and f64 alone
        if (!is_last && (width == 1 || (dtype != DType::f32 && dtype != DType::f64))) continue;
        std::string name = fmt::format("chain{}_{}_{}", i, dtype_name(dtype), width);
        text += fused_source(chains[i], dtype, width, name);
        table += fmt::format(
            "    {{{}, flow::DType::{}, {}, flow::suite::run_chain<{}, {}, flow::cuda::Numbers_{}, "
            "{}>}},\n",
            i, dtype_name(dtype), width, chains[i].inputs + 1, width, name, name);
      }
  text += fmt::format(
      "const std::vector<flow::suite::GeneratedChain>& flow::suite::generated_chains() {{\n"
      "  static const std::vector<GeneratedChain> all = {{\n{}  }};\n  return all;\n}}\n",
      table);
  std::ofstream(path, std::ios::binary) << text;
  return 0;
}

int write_cubins(const std::string& folder) {
  if (auto compiler = Compiler::get(); !compiler.ok()) {
    std::printf("skipped: %s\n", compiler.error().message.c_str());
    return 77;
  }
  std::vector<kernels::FusedElementwise> chains = all_chains();
  constexpr kernels::Unary kShown[] = {kernels::Unary::exp, kernels::Unary::gelu_tanh,
                                       kernels::Unary::sin};
  std::vector<size_t> shown{chains.size() - 1};
  for (kernels::Unary op : kShown) shown.push_back(static_cast<size_t>(op));
  for (int arch : {80, 90})
    for (DType dtype : kTypes)
      for (size_t i : shown) {
        std::string name = fmt::format("fused_{}_{}_kernel", i, dtype_name(dtype));
        CompileRequest order{name, fused_source(chains[i], dtype, fused_pack(dtype), name),
                             fused_options(), arch, fused_headers()};
        auto output = compile_cached(order, Cache(""));
        if (!output.ok() || !output->ok || output->image.is_ptx) {
          std::printf("%s for sm_%d: %s\n", name.c_str(), arch,
                      output.ok() ? output->log.c_str() : output.error().message.c_str());
          return 1;
        }
        std::ofstream(fmt::format("{}/{}_{}.cubin", folder, name, arch), std::ios::binary)
            << output->image.bytes;
      }
  return 0;
}

}  // namespace

int main(int count, char** words) {
  std::string what = count == 3 ? words[1] : "";
  if (what == "source") return write_source(words[2]);
  if (what == "cubins") return write_cubins(words[2]);
  std::fprintf(stderr, "usage: fused_chains source FILE.cc | cubins FOLDER\n");
  return 2;
}
