// Fused chains compiled by NVRTC: the code, and what happens where it cannot be compiled or loaded.
#include <catch2/catch.hpp>
#include <string>

#include "kernels/jit/fused_kernel.hpp"
#include "kernels/jit/fused_source.hpp"
#include "kernels/shared/launch.hpp"
#include "tests/kernels/jit/chains.hpp"
#include "tests/kernels/jit/folder.hpp"

using namespace flow;
using namespace flow::jit;
using namespace flow::kernels;

namespace {

constexpr DType kTypes[] = {DType::f32, DType::f64, DType::f16, DType::bf16};
constexpr int kNewerArch = 999;  // of which the code is PTX

std::string ptx_of(const FusedElementwise& chain, DType dtype) {
  CompileRequest order{"chain", fused_source(chain, dtype, fused_pack(dtype), "chain"),
                       fused_options(), kNewerArch, fused_headers()};
  auto output = compile_cached(order, Cache(""));
  REQUIRE(output.ok());
  INFO(output->log);
  REQUIRE(output->ok);
  REQUIRE(output->image.is_ptx);
  return output->image.bytes;
}

int count_of(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) count++;
  return count;
}

FusedElementwise product_and_sum() {
  FusedElementwise chain;
  chain.inputs = 2;
  chain.steps = 2;
  chain.step[0] = {FusedStep::binary, static_cast<uint8_t>(Binary::mul), 0, 1, 3};
  chain.step[1] = {
      FusedStep::number, static_cast<uint8_t>(Binary::add), kFusedInputs + 3, 0, 0, 0.5};
  return chain;
}

// A driver that counts its calls, and fails at loading or not.
int loads, launches, load_code;
unsigned grid_x;
int driver_text(int, const char** text) {
  *text = "no";
  return 0;
}
Driver counting_driver() {
  loads = launches = load_code = 0;
  Driver driver;
  driver.GetErrorName = driver.GetErrorString = driver_text;
  driver.ModuleLoadDataEx = [](void**, const void*, unsigned, int*, void**) {
    loads++;
    return load_code;
  };
  driver.ModuleGetFunction = [](void** function, void*, const char* name) {
    CHECK(std::string(name) == "flow_fused");
    *function = &loads;
    return 0;
  };
  driver.FuncGetAttribute = [](int* value, int, void*) {
    *value = 1024;
    return 0;
  };
  driver.LaunchKernel = [](void*, unsigned x, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, void*, void**, void**) {
    launches++;
    grid_x = x;
    return 0;
  };
  return driver;
}

struct Call {
  FusedElementwise chain = product_and_sum();
  std::vector<float> memory;
  View views[3];
  int device = 0, compilations = 0;

  explicit Call(int64_t count, int device_)
      : memory(static_cast<size_t>(count) * 3 + 4), device(device_) {
    auto at = (reinterpret_cast<uintptr_t>(memory.data()) + 15) / 16 * 16;
    for (auto& view : views) {
      view = dense(DType::f32, Shape{count}, reinterpret_cast<void*>(at));
      at += static_cast<size_t>(count) * sizeof(float);
    }
  }
  bool run(const Driver& driver, int arch = 90) {
    return launch_fused(
        driver, {chain, views, views[2], device, nullptr},
        [&] {
          compilations++;
          return arch;
        },
        [] { return Cache(""); });
  }
};

}  // namespace

TEST_CASE("all fused chains are compiled") {
  if (!has_compiler()) return;
  std::vector<FusedElementwise> chains = all_chains();
  for (DType dtype : kTypes)
    for (size_t i = dtype == DType::f32 ? 0 : chains.size() - 1; i < chains.size(); i++) {
      INFO(fused_source(chains[i], dtype, fused_pack(dtype), "chain"));
      std::string code = ptx_of(chains[i], dtype);
      CHECK(code.find(".visible .entry chain(") != std::string::npos);
    }
}

TEST_CASE("a fused chain accesses 16 bytes at once and keeps its values in registers") {
  if (!has_compiler()) return;
  FusedElementwise chain = all_chains().back();
  for (DType dtype : kTypes) {
    std::string code = ptx_of(chain, dtype);
    std::string vector = dtype == DType::f64 ? "ld.global.v2" : "ld.global.v4";
    CHECK(count_of(code, vector) >= chain.inputs);
    CHECK(count_of(code, "st.global.wb.v4") >= 1);
    CHECK(count_of(code, ".local") == 0);
  }
}

TEST_CASE("a product and a sum of a fused chain are rounded separately") {
  if (!has_compiler()) return;
  for (DType dtype : kTypes) CHECK(count_of(ptx_of(product_and_sum(), dtype), "fma.rn") == 0);
}

TEST_CASE("chains that differ only in numbers have the same source") {
  FusedElementwise chain = product_and_sum(), other = chain;
  other.step[1].x = 7;
  CHECK(fused_source(chain, DType::f32, 4, "c") == fused_source(other, DType::f32, 4, "c"));
  CHECK(fused_numbers(other) == std::vector<double>{7});
}

TEST_CASE("a chain of many costly operations is interpreted") {
  FusedElementwise chain = all_chains().front();
  chain.steps = 0;
  for (int8_t i = 0; i < 20; i++)
    chain.step[chain.steps++] = {FusedStep::unary, static_cast<uint8_t>(Unary::sin),
                                 static_cast<int8_t>(i == 0 ? 0 : kFusedInputs + (i - 1) % 2), 0,
                                 static_cast<int8_t>(i % 2)};
  CHECK_FALSE(fused_compiles_fast(chain, 4));
  chain.steps = 8;
  CHECK(fused_compiles_fast(chain, 4));
}

TEST_CASE("a fused kernel is loaded once per device, and launched for each call") {
  if (!has_compiler()) return;
  Driver driver = counting_driver();
  Call small(1000, 1), call(1 << 18, 1);
  CHECK_FALSE(small.run(driver));  // its launch takes as long as the interpreter
  CHECK(small.compilations == 0);
  CHECK(call.run(driver));
  CHECK(grid_x == (1 << 18) / 4 / kBlockThreads);
  call.chain.step[1].x = 9;
  CHECK(call.run(driver));
  CHECK(small.run(driver));  // now it is loaded
  CHECK(loads == 1);
  CHECK(launches == 3);
  CHECK(call.compilations == 1);
  call.device = 2;
  CHECK(call.run(driver));
  CHECK(loads == 2);
}

TEST_CASE("where a chain cannot be compiled or loaded, nothing is launched or tried again") {
  Driver driver = counting_driver();
  Call unknown(1 << 18, 3);
  CHECK_FALSE(unknown.run(driver, 0));
  CHECK_FALSE(unknown.run(driver, 90));
  CHECK(unknown.compilations == 1);
  Call ancient(1 << 18, 4);
  CHECK_FALSE(ancient.run(driver, 20));
  load_code = 200;
  Call broken(1 << 18, 5);
  CHECK_FALSE(broken.run(driver));
  CHECK_FALSE(broken.run(driver));
  CHECK(loads == (has_compiler() ? 1 : 0));
  CHECK(launches == 0);
}
