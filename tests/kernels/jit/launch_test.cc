// The arguments of a launch at the driver: sizes, shared memory, stream, and each parameter's
// bytes.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "engine/base/profiler_range.hpp"
#include "kernels/jit/call.hpp"
#include "tests/kernels/jit/folder.hpp"

using namespace flow;
using namespace flow::jit;
using tensors::Number;
using tensors::Tensor;

namespace {

struct LaunchRecord {
  std::vector<unsigned> sizes;  // grid, block, shared
  void* stream = nullptr;
  std::vector<uint64_t> words;  // 8 bytes per parameter, for the first `wanted` parameters
  size_t wanted = 0;
  std::vector<int> attributes;
  int answer = 0;
};
LaunchRecord launched;

int error_name(int, const char** name) {
  *name = "CUDA_ERROR_INVALID_VALUE";
  return 0;
}
int error_string(int, const char** text) {
  *text = "invalid argument";
  return 0;
}
int set_attribute(void*, int attribute, int value) {
  launched.attributes.insert(launched.attributes.end(), {attribute, value});
  return launched.answer;
}
int launch_kernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                  unsigned bz, unsigned shared, void* stream, void** parameters, void** extra) {
  CHECK(extra == nullptr);
  launched.sizes = {gx, gy, gz, bx, by, bz, shared};
  launched.stream = stream;
  launched.words.clear();
  for (size_t i = 0; i < launched.wanted; i++) {
    uint64_t word;
    std::memcpy(&word, parameters[i], sizeof word);
    launched.words.push_back(word);
  }
  return launched.answer;
}

Driver recording() {
  launched = {};
  Driver driver;
  driver.GetErrorName = error_name;
  driver.GetErrorString = error_string;
  driver.FuncSetAttribute = set_attribute;
  driver.LaunchKernel = launch_kernel;
  return driver;
}

KernelSource source_of(const std::string& signature) {
  KernelSource source;
  source.name = std::string("f");
  source.signature = *parse_signature(signature);
  return source;
}

template <typename T>
uint64_t word_of(T value) {
  uint64_t word = 0;
  std::memcpy(&word, &value, sizeof value);
  return word;
}

int stream;

}  // namespace

TEST_CASE("each parameter reaches the driver with the bytes of its C++ type") {
  Driver driver = recording();
  KernelSource source = source_of(
      "a: f32, b: f64, c: i32, d: i64, e: u8, g: bool, x: in i32, y: out f64 like x, n: count of "
      "y, m: "
      "i32 size 2 of x");
  KernelLaunch call(source);
  const Number numbers[] = {Number::of(0.5),          Number::of(-0.25),
                            Number::of(int64_t{-7}),  Number::of(INT64_MIN),
                            Number::of(int64_t{255}), Number::of(int64_t{1})};
  for (size_t at = 0; at < 6; at++) call.set_number(at, numbers[at]);
  Tensor x = Tensor::zeros(DType::i32, {3, 5}), y = Tensor::empty(DType::f64, {3, 5});
  call.set_tensor(6, x);
  call.set_tensor(7, y);
  launched.wanted = 10;
  LoadedFunction function;
  function.threads_max = 1024;
  call.run(driver, function, call.grid_over_elements(4, 1), &stream);
  CHECK(launched.words == std::vector<uint64_t>{word_of(0.5f), word_of(-0.25), word_of(-7),
                                                word_of(INT64_MIN), 255, 1, word_of(x.view().data),
                                                word_of(y.view().data), 15, 5});
  CHECK(launched.sizes == std::vector<unsigned>{4, 1, 1, 4, 1, 1, 0});
  CHECK(launched.stream == &stream);
}

// ctest runs this program with the tool of tests/executor, if there is NVTX.
TEST_CASE("a launch is a range in a profile, and the copies around it are ranges in it") {
  bool wants_profiler = std::getenv("NVTX_INJECTION64_PATH") != nullptr;
  CHECK(has_profiler() == wants_profiler);
  if (!has_profiler()) return;
  Folder folder;
  std::string path = folder.path + "/ranges";
  Driver driver = recording();
  KernelSource source = source_of("x: inout f64");
  Tensor all = Tensor::zeros(DType::f64, {3, 2});
  KernelLaunch call(source);
  call.set_tensor(0, Tensor(kernels::swap_dims(all.view(), 0, 1), all.storage()));
  LoadedFunction function;
  function.threads_max = 1024;
  ::setenv("FLOW_TEST_RANGES", path.c_str(), 1);
  call.run(driver, function, Grid{}, &stream);
  ::unsetenv("FLOW_TEST_RANGES");
  std::ifstream file(path);
  std::string ranges;
  for (std::string line; std::getline(file, line);) ranges += line.substr(line.find(' ')) + ";";
  CHECK(ranges == " push f; push copy; pop; push copy; pop; pop;");
}

TEST_CASE("a grid covers the elements of the first result, and an empty one starts nothing") {
  Driver driver = recording();
  KernelSource source = source_of("z: inout f32, x: in f32, y: out f32");
  KernelLaunch call(source);
  call.set_tensor(0, Tensor::zeros(DType::f32, {7}));
  call.set_tensor(1, Tensor::zeros(DType::f32, {1}));
  call.set_tensor(2, Tensor::zeros(DType::f32, {1000}));
  CHECK(call.grid_over_elements(256, 1).blocks[0] == 4);
  CHECK(call.grid_over_elements(250, 1).blocks[0] == 4);
  CHECK(call.grid_over_elements(256, 4).blocks[0] == 1);
  CHECK(call.grid_over_elements(256, 2).blocks[0] == 2);
  call.set_tensor(2, Tensor::zeros(DType::f32, {0, 3}));
  Grid grid = call.grid_over_elements(256, 1);
  CHECK(grid.blocks[0] == 0);
  LoadedFunction function;
  function.threads_max = 1024;
  call.run(driver, function, grid, &stream);
  CHECK(launched.sizes.empty());
}

TEST_CASE("an input with gaps is made dense, and an inout is written back through its gaps") {
  Driver driver = recording();
  // Doubles the numbers that the first parameter points to, as a kernel would.
  driver.LaunchKernel = [](void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                           unsigned, void*, void** parameters, void**) {
    auto* x = *static_cast<double**>(parameters[0]);
    const auto* add = *static_cast<const double**>(parameters[1]);
    for (int i = 0; i < 6; i++) x[i] = 2 * x[i] + add[i];
    return 0;
  };
  KernelSource source = source_of("x: inout f64, add: in f64");
  Tensor all = Tensor::zeros(DType::f64, {3, 2}), more = Tensor::zeros(DType::f64, {3, 2});
  for (int i = 0; i < 6; i++) {
    all.view().at<double>()[i] = i;
    more.view().at<double>()[i] = 100 * i;
  }
  kernels::View turned = kernels::swap_dims(all.view(), 0, 1);
  KernelLaunch call(source);
  call.set_tensor(0, Tensor(turned, all.storage()));
  call.set_tensor(1, Tensor(kernels::swap_dims(more.view(), 0, 1), more.storage()));
  LoadedFunction function;
  function.threads_max = 1024;
  call.run(driver, function, call.grid_over_elements(256, 1), &stream);
  for (int i = 0; i < 6; i++) CHECK(all.view().at<double>()[i] == 102 * i);
}

TEST_CASE("shared memory above the default is requested once, impossible sizes are rejected") {
  Driver driver = recording();
  LoadedFunction function;
  function.threads_max = 512;
  std::vector<void*> none;
  Grid grid;
  grid.shared = 48 << 10;
  REQUIRE(launch(driver, function, grid, &stream, none).ok());
  CHECK(launched.attributes.empty());
  grid.shared = (48 << 10) + 1;
  for (int i = 0; i < 2; i++) REQUIRE(launch(driver, function, grid, &stream, none).ok());
  CHECK(launched.attributes == std::vector<int>{8, (48 << 10) + 1});
  CHECK(launched.sizes.back() == (48 << 10) + 1);

  auto problem = [&](Grid wrong) {
    launched.sizes.clear();
    Status done = launch(driver, function, wrong, &stream, none);
    CHECK(launched.sizes.empty());
    return done.ok() ? std::string("none") : done.error().message;
  };
  grid = {};
  grid.threads[0] = 513;
  CHECK(problem(grid) ==
        "a block of 513 threads: its use of registers limits it to 512; make `block` "
        "smaller, "
        "or give the option --maxrregcount");
  grid.threads[0] = 33;
  grid.threads[1] = 32;
  CHECK_THAT(problem(grid),
             Catch::StartsWith("a block of 33 x 32 x 1 threads: a GPU takes 1 to 1024"));
  grid = {};
  grid.threads[2] = 65;
  CHECK_THAT(problem(grid), Catch::StartsWith("a block of 256 x 1 x 65 threads"));
  grid = {};
  grid.threads[1] = 0;
  CHECK_THAT(problem(grid), Catch::StartsWith("a block of 256 x 0 x 1 threads"));
  grid = {};
  grid.blocks[1] = 65536;
  CHECK_THAT(problem(grid), Catch::StartsWith("a grid of 1 x 65536 x 1 blocks: a GPU takes up to"));
  grid.blocks[1] = -1;
  CHECK_THAT(problem(grid), Catch::StartsWith("a grid of 1 x -1 x 1 blocks"));
  grid = {};
  grid.blocks[0] = int64_t{1} << 31;
  CHECK_THAT(problem(grid), Catch::StartsWith("a grid of 2147483648 x 1 x 1 blocks"));
  grid = {};
  grid.shared = -1;
  CHECK_THAT(problem(grid), Catch::StartsWith("-1 bytes of shared memory"));
  launched.answer = 1;
  grid = {};
  Status done = launch(driver, function, grid, &stream, none);
  CHECK(done.error().message ==
        "the GPU's driver can't start it: invalid argument (CUDA_ERROR_INVALID_VALUE)");
}

TEST_CASE("an argument that does not match its parameter is rejected with a message") {
  KernelSource source =
      source_of("a: i32, b: u8, x: in f32, y: out f32 like x, n: i32 size 3 of x");
  KernelLaunch call(source);
  call.set_number(0, Number::of(int64_t{INT32_MAX}));
  CHECK_THROWS_WITH(call.set_number(0, Number::of(int64_t{INT32_MAX} + 1)),
                    "`a` of the kernel `f` is i32, not 2147483648");
  CHECK_THROWS_WITH(call.set_number(0, Number::of(1.5)), "`a` of the kernel `f` is i32, not 1.5");
  CHECK_THROWS_WITH(call.set_number(1, Number::of(int64_t{-1})),
                    "`b` of the kernel `f` is u8, not -1");
  CHECK_THROWS_WITH(call.set_tensor(2, Tensor::zeros(DType::f64, {2})),
                    "`x` of the kernel `f` is f32, not tensor f64 [2]: give it x:to(\"f32\")");
  call.set_tensor(2, Tensor::zeros(DType::f32, {2}));
  call.set_tensor(3, Tensor::zeros(DType::f32, {2}));
  Driver driver = recording();
  LoadedFunction function;
  function.threads_max = 1024;
  CHECK_THROWS_WITH(call.run(driver, function, Grid{}, &stream),
                    "`x` of the kernel `f` has no dimension 3: it is tensor f32 [2]");
  Tensor shape_of_two = Tensor::zeros(DType::f32, {3});
  kernels::Shape two{2};
  CHECK_THROWS_WITH(call.check_result(3, shape_of_two, &two),
                    "the fallback of the kernel `f` gave tensor f32 [3] for `y`, which is f32 [2]");
}
