#include "engine/serve/declared_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "engine/serve/oip_datatypes.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

constexpr size_t kShownMax = 256;  // bytes of a name in an error

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

bool is_shape(const std::vector<int64_t>& declared, const std::vector<int64_t>& shape) {
  return std::equal(declared.begin(), declared.end(), shape.begin(), shape.end(),
                    [](int64_t size, int64_t actual) { return size == -1 || size == actual; });
}

/// What is wrong with the tensors, named `kind`; "" if nothing is. `datatype_of_entry(entry)` is
/// the Datatype of one of them.
template <typename DatatypeOf>
std::string problem(const char* kind, const std::vector<TensorSpec>& declared,
                    const Tensors& tensors, const DatatypeOf& datatype_of_entry) {
  if (declared.empty()) return "";
  for (const TensorSpec& spec : declared) {
    auto found = tensors.find(spec.name);
    if (found == tensors.end()) return fmt::format("the {} `{}` is missing", kind, spec.name);
    const Tensor& tensor = found->second;
    std::string_view datatype = datatype_of_entry(*found).name;
    if (datatype != spec.datatype)
      return fmt::format("the {} `{}` is {}, but {} is declared", kind, spec.name, datatype,
                         spec.datatype);
    if (!is_shape(spec.shape, tensor.shape))
      return fmt::format("the {} `{}` has the shape {}, but {} is declared", kind, spec.name,
                         shape_text(tensor.shape), shape_text(spec.shape));
  }
  for (const auto& [name, tensor] : tensors) {
    auto named = [&name = name](const TensorSpec& spec) { return spec.name == name; };
    if (std::none_of(declared.begin(), declared.end(), named))
      return fmt::format("the {} `{}` is not declared", kind, cut_text(to_utf8(name), kShownMax));
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

Status check_inputs(const std::vector<TensorSpec>& declared, const InferRequest& request) {
  auto given = [&](const auto& entry) -> const Datatype& {
    auto found = request.datatypes.find(entry.first);
    FLOW_CHECK(found != request.datatypes.end());
    return *found->second;
  };
  std::string what = problem("input", declared, request.inputs, given);
  if (what.empty()) return {};
  return user_error(what);
}

Status check_outputs(const std::vector<TensorSpec>& declared, const Tensors& outputs) {
  auto of_tensor = [](const auto& entry) -> const Datatype& {
    return datatype_of(entry.second.dtype);
  };
  std::string what = problem("output", declared, outputs, of_tensor);
  if (what.empty()) return {};
  return Error{ErrorKind::task, "`predict` returned something else than is declared: " + what};
}

}  // namespace flow
