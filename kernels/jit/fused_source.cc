#include "kernels/jit/fused_source.hpp"

#include <fmt/format.h>

#include "kernels/shared/launch.hpp"

namespace flow::jit {

using kernels::Binary;
using kernels::FusedElementwise;
using kernels::FusedStep;
using kernels::kFusedInputs;
using kernels::Unary;

// Written by embed.cmake: the files of this source tree.
const std::vector<std::pair<std::string, std::string>>& embedded_headers();

namespace {

// What the headers need of the standard library, which NVRTC does not have.
constexpr const char* kStandard = R"(#pragma once
using int8_t = signed char;
using int16_t = short;
using int32_t = int;
using int64_t = long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long;
using uintptr_t = unsigned long;
#define __builtin_memcpy memcpy
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
namespace std {
using size_t = decltype(sizeof(0));
class string;
class string_view;
template <typename T, T number> struct integral_constant { static constexpr T value = number; };
template <typename A, typename B> constexpr bool is_same_v = false;
template <typename A> constexpr bool is_same_v<A, A> = true;
template <typename T> constexpr bool is_floating_point_v = is_same_v<T, float> || is_same_v<T, double>;
template <typename T> constexpr bool is_integral_v = false;
template <> inline constexpr bool is_integral_v<bool> = true;
template <> inline constexpr bool is_integral_v<signed char> = true;
template <> inline constexpr bool is_integral_v<unsigned char> = true;
template <> inline constexpr bool is_integral_v<short> = true;
template <> inline constexpr bool is_integral_v<unsigned short> = true;
template <> inline constexpr bool is_integral_v<int> = true;
template <> inline constexpr bool is_integral_v<unsigned> = true;
template <> inline constexpr bool is_integral_v<long> = true;
template <> inline constexpr bool is_integral_v<unsigned long> = true;
template <typename T> constexpr bool is_signed_v = T(-1) < T(0);
template <bool first, typename A, typename B> struct conditional { using type = A; };
template <typename A, typename B> struct conditional<false, A, B> { using type = B; };
template <bool first, typename A, typename B> using conditional_t = typename conditional<first, A, B>::type;
template <typename T> struct make_unsigned { using type = T; };
template <> struct make_unsigned<signed char> { using type = unsigned char; };
template <> struct make_unsigned<short> { using type = unsigned short; };
template <> struct make_unsigned<int> { using type = unsigned; };
template <> struct make_unsigned<long> { using type = unsigned long; };
template <typename T> using make_unsigned_t = typename make_unsigned<T>::type;
using ::ceil;
using ::copysign;
using ::cos;
using ::erf;
using ::exp;
using ::expm1;
using ::fabs;
using ::floor;
using ::fmod;
using ::log;
using ::log1p;
using ::nextafter;
using ::pow;
using ::rint;
using ::sin;
using ::sqrt;
using ::tanh;
}
)";

constexpr const char* kStandardNames[] = {"cmath",  "cstddef", "cstdint",     "initializer_list",
                                          "limits", "string",  "string_view", "type_traits"};

// kernels/cuda/launch.cuh for the device: what element.cuh needs of it.
constexpr const char* kLaunch = R"(#pragma once
#include "kernels/shared/index_math.hpp"
#include "kernels/shared/launch.hpp"
#include "kernels/shared/types.hpp"
#define FLOW_DEVICE __device__ __forceinline__
#define FLOW_UNROLL _Pragma("unroll")
namespace flow::cuda {
using namespace kernels;
struct Stream;
constexpr int kDone = 0;
FLOW_DEVICE int64_t thread_of_grid() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
FLOW_DEVICE int64_t threads_of_grid() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }
}
)";

const char* type_name(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "double";
    case DType::f16:
      return "Half";
    case DType::bf16:
      return "Brain";
    default:
      return "float";
  }
}

constexpr int kCostlyMax = 64;  // for sin in bf16 that is 3 s

bool is_costly(const FusedStep& step) {
  if (step.kind == FusedStep::clamp) return false;
  if (step.kind == FusedStep::unary) {
    auto op = static_cast<Unary>(step.op);
    return op > Unary::relu && op < Unary::floor;
  }
  auto op = static_cast<Binary>(step.op);
  return op == Binary::div || op == Binary::pow || op == Binary::floor_div || op == Binary::mod;
}

// The steps of a chain as statements: step i defines `s<i>`.
class FusedText {
 public:
  explicit FusedText(const FusedElementwise& fused) : fused_(fused) {}

  std::string statements() {
    std::string text;
    for (int i = 0; i < fused_.steps; i++) {
      const FusedStep& step = fused_.step[i];
      text += fmt::format("    [[maybe_unused]] const C s{} = {};\n", i, value_of(step));
      if (i + 1 < fused_.steps) temporaries_[step.to] = i;
    }
    return text;
  }

 private:
  std::string value_of(const FusedStep& step) {
    std::string a = operand(step.a);
    switch (step.kind) {
      case FusedStep::unary:
        return fmt::format("unary_of<Unary::{}>({})", name_of(static_cast<Unary>(step.op)), a);
      case FusedStep::binary:
        return binary(step, a, operand(step.b));
      case FusedStep::number:
        return binary(step, a, number());
      case FusedStep::reversed:
        return binary(step, number(), a);
      case FusedStep::clamp:
        break;
    }
    std::string low = number();
    return fmt::format("clamp_of<C>({}, {}, {})", a, low, number());
  }
  static std::string binary(const FusedStep& step, const std::string& a, const std::string& b) {
    return fmt::format("binary_of<Binary::{}, C>({}, {})", name_of(static_cast<Binary>(step.op)), a,
                       b);
  }
  std::string operand(int at) const {
    if (at < kFusedInputs) return fmt::format("in{}[j]", at);
    return fmt::format("s{}", temporaries_[at - kFusedInputs]);
  }
  std::string number() { return fmt::format("number.at[{}]", numbers_++); }

  const FusedElementwise& fused_;
  int temporaries_[kernels::kFusedTemporaries] = {};  // the step whose value each holds
  int numbers_ = 0;
};

}  // namespace

int fused_pack(DType dtype) { return static_cast<int>(16 / dtype_size(dtype)); }

bool fused_compiles_fast(const FusedElementwise& fused, int width) {
  int costly = 0;
  for (int i = 0; i < fused.steps; i++) costly += is_costly(fused.step[i]);
  return costly * width <= kCostlyMax;
}

std::vector<double> fused_numbers(const FusedElementwise& fused) {
  std::vector<double> numbers;
  for (int i = 0; i < fused.steps; i++) {
    const FusedStep& step = fused.step[i];
    bool has_one = step.kind == FusedStep::number || step.kind == FusedStep::reversed;
    if (has_one || step.kind == FusedStep::clamp) numbers.push_back(step.x);
    if (step.kind == FusedStep::clamp) numbers.push_back(step.y);
  }
  return numbers;
}

std::string fused_source(const FusedElementwise& fused, DType dtype, int width,
                         const std::string& name) {
  std::string inputs, reads;
  for (int i = 0; i < fused.inputs; i++) {
    inputs += fmt::format("in{}[width], ", i);
    reads += fmt::format("  spots[{0}].read_as<T>(in{0});\n", i);
  }
  size_t numbers = fused_numbers(fused).size();
  return fmt::format(R"(#include "kernels/cuda/element.cuh"
#include "kernels/jit/fused_walk.hpp"
namespace flow::cuda {{
struct Numbers_{name} {{ Compute<{type}> at[{numbers}]; }};
template <int width>
FLOW_DEVICE void run_{name}(const Numbers_{name}& number, const ElementPosition (&spots)[{operands}]) {{
  using T = {type};
  using C = Compute<T>;
  C {inputs}out[width];
{reads}  FLOW_UNROLL
  for (int j = 0; j < width; j++) {{
{statements}    out[j] = s{last};
  }}
  spots[{result}].write_as<T>(out);
}}
}}
extern "C" __global__ void __launch_bounds__({threads})
{name}(flow::cuda::Numbers_{name} number, flow::jit::FusedWalk<{operands}> walk) {{
  using namespace flow::cuda;
  ElementPosition spots[{operands}];
  for (int k = 0; k < {operands}; k++) spots[k] = {{walk.data[k], 0, walk.repeats[k]}};
  int64_t offset[{operands}];
  for (int64_t i = thread_of_grid(); i < walk.index_math.count; i += threads_of_grid()) {{
    walk.index_math.at(i, offset);
    for (int k = 0; k < {operands}; k++) spots[k].offset = offset[k];
    run_{name}<{width}>(number, spots);
  }}
  for (int64_t i = walk.single + thread_of_grid(); i < walk.all; i += threads_of_grid()) {{
    for (int k = 0; k < {operands}; k++) spots[k].offset = walk.repeats[k] ? 0 : i;
    run_{name}<1>(number, spots);
  }}
}}
)",
                     fmt::arg("name", name), fmt::arg("type", type_name(dtype)),
                     fmt::arg("numbers", numbers == 0 ? 1 : numbers),
                     fmt::arg("operands", fused.inputs + 1), fmt::arg("inputs", inputs),
                     fmt::arg("reads", reads),
                     fmt::arg("statements", FusedText(fused).statements()),
                     fmt::arg("last", fused.steps - 1), fmt::arg("result", fused.inputs),
                     fmt::arg("threads", kernels::kBlockThreads), fmt::arg("width", width));
}

const std::vector<std::pair<std::string, std::string>>& fused_headers() {
  static const auto* made = [] {
    auto* headers = new std::vector(embedded_headers());
    headers->emplace_back("flow/result.hpp",
                          "#pragma once\nnamespace flow {\n"
                          "[[noreturn]] void check_failed(const char*, const char*, int);\n}\n");
    headers->emplace_back("kernels/cuda/launch.cuh", kLaunch);
    headers->emplace_back("flow_standard", kStandard);
    for (const char* name : kStandardNames)
      headers->emplace_back(name, "#include \"flow_standard\"\n");
    return headers;
  }();
  return *made;
}

const std::vector<std::string>& fused_options() {
  static const auto* options = new std::vector<std::string>{"--std=c++20", "--fmad=false",
                                                            "--device-as-default-execution-space"};
  return *options;
}

}  // namespace flow::jit
