// Requests and responses of the Open Inference Protocol as text, and the elements of their tensors.
#pragma once
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "engine/serve/oip.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

template <typename T>
std::vector<T> tensor_items(const Tensor& tensor) {
  std::vector<T> all(tensor.data->size() / sizeof(T));
  std::memcpy(all.data(), tensor.data->data(), all.size() * sizeof(T));
  return all;
}

inline InferRequest parsed_request(const std::string& body,
                                   std::optional<uint64_t> json_bytes = {}) {
  auto request = parse_infer_request(body, json_bytes);
  INFO((request.ok() ? "" : request.error().message));
  REQUIRE(request.ok());
  return *request;
}

inline Tensors parsed_inputs(const std::string& body) { return parsed_request(body).inputs; }

inline std::string body_refusal(const std::string& body, std::optional<uint64_t> json_bytes = {}) {
  auto request = parse_infer_request(body, json_bytes);
  if (request.ok()) return "accepted";
  CHECK(request.error().kind == ErrorKind::user);
  CHECK(is_utf8(request.error().message));
  return request.error().message;
}

inline std::string one_input(const std::string& fields) {
  return "{\"inputs\":[{" + fields + "}]}";
}

template <typename T>
Tensor tensor_with(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = std::make_shared<const std::string>(std::move(bytes));
  return tensor;
}

template <typename T>
std::string raw_bytes(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

inline std::string binary_input(const std::string& name, const std::string& type, size_t count,
                                size_t bytes) {
  return fmt::format(
      R"({{"name":"{}","shape":[{}],"datatype":"{}","parameters":{{"binary_data_size":{}}}}})",
      name, count, type, bytes);
}

inline std::string printed_response(const Tensors& outputs, const InferRequest& request = {}) {
  auto response = print_infer_response("m", request, outputs);
  INFO((response.ok() ? "" : response.error().message));
  REQUIRE(response.ok());
  CHECK(response->json_bytes == 0);
  return response->body;
}

}  // namespace flow
