// Compiling with NVRTC, which needs no GPU: code, errors with the script's lines, and the cache.
#include <catch2/catch.hpp>
#include <fstream>

#include "kernels/jit/program.hpp"
#include "tests/kernels/jit/folder.hpp"

using namespace flow;
using namespace flow::jit;
namespace fs = std::filesystem;

namespace {

KernelSource source_of(const std::string& text,
                       const std::string& signature = "x: inout f32, n: count of x",
                       std::vector<std::string> options = {}) {
  KernelSource source;
  source.name = std::string("f");
  source.text = text;
  source.signature = *parse_signature(signature);
  source.options = std::move(options);
  source.file = "pipeline.lua";
  source.line = 17;
  return source;
}

constexpr const char* kGood = R"(
__global__ void f(float* x, long long n) {
  long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
  if (i < n) x[i] *= 2;
}
)";

std::string problem_of(const KernelSource& source, int arch = 90) {
  auto image = ScriptKernel(source).image(arch, Cache("/proc/nowhere"));
  return image.ok() ? "none" : image.error().message;
}

}  // namespace

TEST_CASE("a source includes the compiler's headers and no other file") {
  for (const char* good :
       {"", "#include <cuda_fp16.h>\nint x;", "// #include \"a.h\"", "# include\t<cub/cub.cuh>",
        "/*\n#include \"a.h\"\n*/", "#include <cuda_fp16.h>  // \"a.h\"",
        "// a \\\n#include \"a.h\"", "int include = 1'000 / 2'0;\n#define A(x) #x",
        "#ifdef __has_include\n#endif",
        "#if defined(__has_include) && __has_include(<cuda/std/cstdint>)\n#endif",
        "const char* s = \"\\\"\\n#include \\\"a.h\\\"\";", "#", "#include <a.h>\r\nint x;"}) {
    INFO(good);
    CHECK(check_includes(good).ok());
  }
  for (const char* bad : {"#include \"a.h\"",
                          "int x;\n  # include <a/../../b.h>",
                          "#include </etc/passwd>",
                          "#include WHAT",
                          "#include_next <a.h>",
                          "#include",
                          "%:include \"a.h\"",
                          "?\?=include \"a.h\"",
                          "#/**/include \"a.h\"",
                          "#inc\\\nlude \"a.h\"",
                          "#inc\\\r\nlude \"a.h\"",
                          "#inc?\?/\nlude \"a.h\"",
                          "// ?\?/\n#include \"a.h\"",
                          "/* \n */ # /* */ include \"a.h\"",
                          "\f\v#include \"a.h\"",
                          "#include <\\\n/a.h>",
                          "#include <.\\\n./a.h>",
                          "#import \"a.h\"",
                          "#import <a.h>",
                          "#embed \"a.h\"",
                          "#if __has_include(\"a.h\")\n#endif",
                          "#if __has_include(</a.h>)\n#endif",
                          "#if __has_include(WHAT)\n#endif",
                          "#define HAS __has_include",
                          "#if __has_include_next(<a.h>)\n#endif",
                          "#if __has_embed(\"a.h\")\n#endif",
                          "auto* s = R\"(/*)\";\n#include \"a.h\"",
                          "auto* s = R\"x( \")x\"\n#include \"a.h\"",
                          "auto* s = R\"(\n/*\n)\";\n#include \"a.h\"",
                          "int x = 1'0;  // '\n#include \"a.h\"",
                          "auto* s = \"\\\" /*\";\n#include \"a.h\"",
                          "// don't /*\n#include \"a.h\"",
                          "#define Q '\n#include \"a.h\"",
                          "#if 0\nR\"(\n#endif\n#include \"a.h\""}) {
    INFO(bad);
    CHECK_FALSE(check_includes(bad).ok());
  }
  CHECK_THAT(check_includes("int x;\n#include \"a.h\"").error().message,
             Catch::StartsWith("line 2 of its source, `#include \"a.h\"`, reads a file"));
}

TEST_CASE("NVRTC makes code for the GPUs that it knows, and PTX for newer ones") {
  if (!has_compiler()) return;
  Folder folder;
  for (int arch : {80, 90}) {
    auto image = ScriptKernel(source_of(kGood)).image(arch, Cache(folder.path));
    REQUIRE(image.ok());
    CHECK_FALSE(image->is_ptx);
    CHECK(image->entry == "_Z1fPfx");
    CHECK(image->bytes.substr(0, 4) == "\177ELF");
  }
  auto young = ScriptKernel(source_of(kGood)).image(999, Cache(folder.path));
  REQUIRE(young.ok());
  CHECK(young->is_ptx);
  CHECK(young->bytes.find(".visible .entry _Z1fPfx") != std::string::npos);
  CHECK_THAT(problem_of(source_of(kGood), 20),
             Catch::Contains("cannot compile for sm_20: the oldest"));
  std::string in_c = std::string("extern \"C\" ") + (kGood + 1);
  CHECK(ScriptKernel(source_of(in_c)).image(90, Cache(folder.path))->entry == "f");
}

TEST_CASE("a compiler's errors have the script's lines, and warnings are left out") {
  if (!has_compiler()) return;
  CHECK(problem_of(source_of("__global__ void f(float* x, long long n) {\n  int unused;\n"
                             "  x[0] = foo;\n}\n")) ==
        "the kernel `f` can't be compiled for sm_90:\n"
        "pipeline.lua:19: error: identifier \"foo\" is undefined\n"
        "    x[0] = foo;\n"
        "           ^");
  CHECK_THAT(problem_of(source_of("#include <nothing.h>\n")),
             Catch::Contains("pipeline.lua:17: catastrophic error: cannot open source file"));
  CHECK_THAT(problem_of(source_of("#error much\n\n\n" + std::string(kGood))),
             Catch::Contains("pipeline.lua:17: ") && Catch::Contains("much"));
  std::string many = "__global__ void f(float* x, long long n) {\n";
  for (int i = 0; i < 15; i++) many += "  unknown" + std::to_string(i) + ";\n";
  std::string problem = problem_of(source_of(many + "}\n"));
  CHECK_THAT(problem, Catch::Contains("pipeline.lua:27: ") && Catch::Contains("\n(5 more)"));
  CHECK(problem.find("pipeline.lua:28") == std::string::npos);
}

TEST_CASE("a function whose parameters do not match the signature is rejected by the compiler") {
  if (!has_compiler()) return;
  auto problem = [](const std::string& function, const std::string& signature) {
    std::string text = problem_of(source_of(function, signature));
    return text.substr(std::min(text.size(), text.find('\n') + 1));
  };
  std::string start = "pipeline.lua:17: error: ";
  std::string other = start + "parameter 1 of the function `f` is not what the signature says: ";
  CHECK(problem("__global__ void f(double* x) {}", "x: inout f32") ==
        other + "`x: inout f32` is float*");
  CHECK(problem("__global__ void f(float x) {}", "x: inout f32") ==
        other + "`x: inout f32` is float*");
  CHECK(problem("__global__ void f(int n, int* x) {}", "n: i64, x: inout i32") ==
        other + "`n: i64` is long long");
  CHECK(problem("__global__ void f(bool b, bool* x) {}", "b: u8, x: inout bool") ==
        other + "`b: u8` is unsigned char");
  // A kernel that could change an `in` would change a tensor that others hold.
  CHECK(problem("__global__ void f(float* x, float* y) {}", "x: in f32, y: out f32 like x") ==
        other + "`x: in f32` is const float*");
  CHECK(problem("__global__ void f(const float* x) {}", "x: inout f32") ==
        other + "`x: inout f32` is float*");
  CHECK(problem("__global__ void f(float* x) {}", "x: inout f32, n: count of x") ==
        start + "the function `f` has another number of parameters than its signature, 2");
  for (const char* none : {"__global__ void g(float* x) {}", "__device__ void f(float* x) {}",
                           "template <typename T> __global__ void f(T* x) {}", "",
                           "__global__ void f(float* x) {} __global__ void f(int* x) {}"})
    CHECK_THAT(problem(none, "x: inout f32"),
               Catch::StartsWith(start + "the source does not have exactly one function `f`: a "
                                         "kernel's name is that of a `__global__` function"));
}

TEST_CASE("a source may define any macro, and end anywhere") {
  if (!has_compiler()) return;
  std::string macros =
      "#define T float\n#define value 1\n#define count x\n#define P\n#define at [\n";
  std::string function = "__global__ void f(T* x, long long n) { x[0] = n; }";
  CHECK(problem_of(source_of(macros + function, "x: inout f32, n: count of x",
                             {"-Dlist", "-DL=3", "-DNumber=int"})) == "none");
  CHECK(problem_of(source_of(macros + function + " // the end \\")) == "none");
  CHECK_THAT(problem_of(source_of(macros + function + " /* the end")),
             Catch::Contains("pipeline.lua:22: "));
}

TEST_CASE("every type of a signature is the C++ type that the reference names") {
  if (!has_compiler()) return;
  CHECK(problem_of(
            source_of("__global__ void f(float a, double b, long long c, int d, unsigned char e, "
                      "bool g, float* __restrict__ x, const double* y, unsigned* z, char* w, "
                      "bool* v, const long* u, float4* t) {}",
                      "a: f32, b: f64, c: i64, d: i32, e: u8, g: bool, x: inout f32, y: in "
                      "f64, z: inout i32, w: inout u8, v: inout bool, u: in i64, t: inout "
                      "f32")) == "none");
  // If the whole toolkit is installed, CUDA's headers are next to NVRTC.
  std::string half =
      problem_of(source_of("#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
                           "__global__ void f(const __half* x, __nv_bfloat16* y) { y[0] = "
                           "__float2bfloat16(__half2float(x[0])); }",
                           "x: in f16, y: out bf16 like x"));
  if (half.find("cannot open source file") == std::string::npos) CHECK(half == "none");
}

TEST_CASE("options reach the compiler, except those that would read other files") {
  for (const char* good : {"-DN=3", "--define-macro=N", "--use_fast_math", "--maxrregcount=32",
                           "--std=c++20", "--fmad=false", "-lineinfo", "-G"})
    CHECK(check_option(good).ok());
  for (const char* bad : {"-I/tmp", "-DHAS=__has_include", "--include-path=/tmp", "-include",
                          "--gpu-architecture=sm_80", "-D", "", "-o", "--maxrregcount=1000",
                          "--maxrregcount=x", "@file", "-rdc=true"})
    CHECK_FALSE(check_option(bad).ok());
  if (!has_compiler()) return;
  std::string text = "__global__ void f(float* x, long long n) { x[0] = VALUE; }";
  CHECK_THAT(problem_of(source_of(text)), Catch::Contains("\"VALUE\" is undefined"));
  CHECK(problem_of(source_of(text, "x: inout f32, n: count of x", {"-DVALUE=3"})) == "none");
}

TEST_CASE("compiled code is found by its content, and compiled again if it is broken") {
  if (!has_compiler()) return;
  Folder folder;
  Cache cache(folder.path);
  ScriptKernel program(source_of(kGood));
  std::string compiled = program.image(90, cache)->bytes;
  REQUIRE(std::distance(fs::directory_iterator(folder.path), {}) == 1);
  fs::path file = fs::directory_iterator(folder.path)->path();
  Digest key;
  REQUIRE(Digest::parse_hex(file.filename().string(), key));
  cache.keep(key, {false, "_Z1fPfx", "another's"});
  CHECK(program.image(90, cache)->bytes == "another's");  // it was not compiled
  std::ofstream(file, std::ios::binary | std::ios::in).seekp(60).put('!');
  CHECK(program.image(90, cache)->bytes == compiled);
  CHECK(cache.find(key)->bytes == compiled);
  // Another source, option or GPU has another file.
  REQUIRE(program.image(80, cache).ok());
  REQUIRE(ScriptKernel(source_of(std::string(kGood) + " ")).image(90, cache).ok());
  REQUIRE(
      ScriptKernel(source_of(kGood, "x: inout f32, n: count of x", {"-DN"})).image(90, cache).ok());
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 4);
  // A failed compilation leaves no file.
  CHECK_FALSE(ScriptKernel(source_of("!")).image(90, cache).ok());
  CHECK(std::distance(fs::directory_iterator(folder.path), {}) == 4);
}

TEST_CASE("an architecture is a number, with or without sm_") {
  CHECK(parse_arch("sm_90") == 90);
  CHECK(parse_arch("100") == 100);
  for (const char* bad : {"", "sm_", "sm_90a", "-1", "0", "99999", "90 "})
    CHECK(parse_arch(bad) == 0);
}
