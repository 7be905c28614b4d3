// A kernel's signature as a script writes it, one entry for each C++ parameter, in their order:
//
//   "a: f32, x: in f32, y: out f32 like x, n: count of y"
//
// `a: f32` is a number; `in`, `out` and `inout` are tensors; `count of y` and `size 1 of y` are
// numbers that the call fills in. The text is untrusted: for any text, parsing returns a signature
// or an Error.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flow/dtype.hpp"
#include "flow/result.hpp"

namespace flow::jit {

constexpr size_t kSignatureMax = 16 << 10;  // bytes
constexpr size_t kParametersMax = 128;

enum class ParameterRole : uint8_t { number, in, out, inout, size };

struct KernelParameter {
  std::string name;
  ParameterRole role = ParameterRole::number;
  DType dtype = DType::f32;
  // out: the parameter whose shape it has, -1 if a function computes it; size: the measured
  // parameter
  int of = -1;
  int dim = 0;  // size: of this dimension, from 1; 0: number of elements
  bool is_tensor() const {
    return role == ParameterRole::in || role == ParameterRole::out || role == ParameterRole::inout;
  }
  /// Whether the caller passes it.
  bool is_given() const { return role != ParameterRole::out && role != ParameterRole::size; }
};

struct KernelSignature {
  std::vector<KernelParameter> parameters;

  int find(std::string_view name) const;  // -1 if there is none
  int count(ParameterRole role) const;
  /// "(a, x)": the parameters that a caller passes.
  std::string given_text() const;
};

/// The Error describes the mistake and how to correct it.
Result<KernelSignature> parse_signature(std::string_view text);

/// "y: out f32 like x": the entry in canonical form.
std::string text_of(const KernelSignature& signature, const KernelParameter& parameter);
std::string text_of(const KernelSignature& signature);

}  // namespace flow::jit
