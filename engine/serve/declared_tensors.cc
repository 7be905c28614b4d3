#include "engine/serve/declared_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

bool is_shape(const std::vector<int64_t>& declared, const std::vector<int64_t>& shape) {
  return std::equal(declared.begin(), declared.end(), shape.begin(), shape.end(),
                    [](int64_t size, int64_t actual) { return size == -1 || size == actual; });
}

/// What is wrong with the tensors, named `kind`; "" if nothing is.
std::string problem(const char* kind, const std::vector<TensorSpec>& declared,
                    const Tensors& tensors) {
  if (declared.empty()) return "";
  for (const TensorSpec& spec : declared) {
    auto found = tensors.find(spec.name);
    if (found == tensors.end()) return fmt::format("the {} `{}` is missing", kind, spec.name);
    const Tensor& tensor = found->second;
    const Datatype* datatype = find_datatype(spec.datatype);
    if (datatype == nullptr || datatype->dtype != tensor.dtype)
      return fmt::format("the {} `{}` is {}, but {} is declared", kind, spec.name,
                         datatype_of(tensor.dtype).name, spec.datatype);
    if (!is_shape(spec.shape, tensor.shape))
      return fmt::format("the {} `{}` has the shape {}, but {} is declared", kind, spec.name,
                         shape_text(tensor.shape), shape_text(spec.shape));
  }
  for (const auto& [name, tensor] : tensors) {
    auto named = [&name = name](const TensorSpec& spec) { return spec.name == name; };
    if (std::none_of(declared.begin(), declared.end(), named))
      return fmt::format("the {} `{}` is not declared", kind, to_utf8(name));
  }
  return "";
}

}  // namespace

std::string tensors_json(const std::vector<TensorSpec>& declared) {
  std::string json = "[";
  for (const TensorSpec& spec : declared) {
    if (json.size() > 1) json += ',';
    json += fmt::format(R"({{"name":{},"datatype":"{}","shape":{}}})", to_json(Value(spec.name)),
                        spec.datatype, shape_text(spec.shape));
  }
  return json + "]";
}

Status check_inputs(const std::vector<TensorSpec>& declared, const Tensors& inputs) {
  std::string what = problem("input", declared, inputs);
  if (what.empty()) return {};
  return user_error(what);
}

Status check_outputs(const std::vector<TensorSpec>& declared, const Tensors& outputs) {
  std::string what = problem("output", declared, outputs);
  if (what.empty()) return {};
  return Error{ErrorKind::task, "`predict` returned something else than is declared: " + what};
}

}  // namespace flow
