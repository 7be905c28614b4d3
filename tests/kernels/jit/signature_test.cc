// Signatures with one entry per C++ parameter, and the errors of invalid ones.
#include "kernels/jit/signature.hpp"

#include <catch2/catch.hpp>

using namespace flow;
using namespace flow::jit;

namespace {

std::string problem_of(std::string_view text) {
  auto parsed = parse_signature(text);
  return parsed.ok() ? "none" : parsed.error().message;
}

}  // namespace

TEST_CASE("a signature names the source of each parameter") {
  auto parsed = parse_signature(
      " a:f32,x :in bf16 , y: out  f64 like x,\n z: inout u8, w: out bool, b: bool, n: count of y, "
      "m: i32 size 2 of x, k: i64 count of w");
  REQUIRE(parsed.ok());
  CHECK(text_of(*parsed) ==
        "a: f32, x: in bf16, y: out f64 like x, z: inout u8, w: out bool, b: bool, n: count of y, "
        "m: i32 size 2 of x, k: count of w");
  CHECK(parsed->given_text() == "(a, x, z, b)");
  CHECK(parsed->count(ParameterRole::out) == 2);
  CHECK(parsed->parameters[2].of == 1);
  CHECK(parsed->parameters[7].dim == 2);
  CHECK(parsed->parameters[7].dtype == DType::i32);
  CHECK(parsed->parameters[6].dtype == DType::i64);
  auto again = parse_signature(text_of(*parsed));
  REQUIRE(again.ok());
  CHECK(text_of(*again) == text_of(*parsed));
}

TEST_CASE("the error of a signature names the defect and the correction") {
  const std::pair<const char*, const char*> cases[] = {
      {"", "an entry is empty: entries are separated by one comma, `a: f32, x: in f32`"},
      {"x: inout f32,",
       "an entry is empty: entries are separated by one comma, `a: f32, x: in f32`"},
      {"x inout f32",
       "`x inout f32` has no colon: an entry is `name: what it is`, such as `x: in f32`"},
      {"1x: f32",
       "`1x: f32` has an invalid name: it needs up to 100 letters, digits and _, no digit first"},
      {"x:", "`x:` lacks its kind: a type, or `in`, `out` or `inout` and a type"},
      {"x: float",
       "`x: float` has the type `float`: there are f32, f64, f16, bf16, i64, i32, u8 and bool"},
      {"x: f16", "`x: f16` is a number of a type that only tensors have: take f32"},
      {"x: f32 y", "`x: f32 y` has more text after its type"},
      {"x: in", "`x: in` lacks its type: `in f32`"},
      {"x: in f32 like x",
       "`x: in f32 like x` has more text after its type: only `out f32 like x` does"},
      {"x: out f32 like y",
       "`x: out f32 like y` names `y`, which is not a tensor of the signature"},
      {"x: out f32, y: out f32 like x",
       "`y: out f32 like x` has the shape of another `out`: name an `in` or `inout`"},
      {"a: f32, n: count of a",
       "`n: count of a` names `a`, which is not a tensor of the signature"},
      {"x: inout f32, n: count x",
       "`n: count x` is not a size: write `n: count of x` or `n: size 1 of x`"},
      {"x: inout f32, n: size 9 of x", "`n: size 9 of x` names no dimension: they are 1 to 8"},
      {"x: inout f32, n: size 1x of x", "`n: size 1x of x` names no dimension: they are 1 to 8"},
      {"x: inout f32, x: f32", "`x: f32` has the name of an earlier entry"},
      {"x: in f32", "it has no result: it needs an `out` or an `inout`"}};
  for (const auto& [text, problem] : cases) CHECK(problem_of(text) == problem);
  std::string many = "x: inout f32";
  for (int i = 1; i < 128; i++) many += ", a" + std::to_string(i) + ": f32";
  CHECK(problem_of(many) == "none");
  CHECK(problem_of(many + ", b: f32") == "it has 129 entries: at most 128");
  CHECK(problem_of(std::string(kSignatureMax + 1, ' ')) == "it has 16385 bytes: at most 16384");
}
