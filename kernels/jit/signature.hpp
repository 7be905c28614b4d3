// A kernel's signature as a script writes it, one entry for each C++ parameter, in their order:
//
//   "a: f32, x: in f32, y: out f32 like x, n: count of y"
//
// `a: f32` is a number; `in`, `out` and `inout` are tensors; `count of y` and `size 1 of y` are
// numbers that the call fills in. The text is a person's: whatever it is, parsing ends with a
// signature or an Error.
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

enum class Role : uint8_t { number, in, out, inout, size };

struct Parameter {
  std::string name;
  Role role = Role::number;
  DType dtype = DType::f32;
  int of = -1;  // out: the parameter whose shape it has, -1 where a function says; size: the one
                // that is measured
  int dim = 0;  // size: of this dimension, from 1; 0: how many elements
  bool is_tensor() const { return role == Role::in || role == Role::out || role == Role::inout; }
  bool is_given() const { return role != Role::out && role != Role::size; }  // by the caller
};

struct Signature {
  std::vector<Parameter> parameters;

  int find(std::string_view name) const;  // -1 where there is none
  int count(Role role) const;
  /// "(a, x)": what a call takes.
  std::string given_text() const;
};

/// An Error says what is wrong and what to write.
Result<Signature> parse_signature(std::string_view text);

/// "y: out f32 like x": the entry in one form.
std::string text_of(const Signature& signature, const Parameter& parameter);
std::string text_of(const Signature& signature);

}  // namespace flow::jit
