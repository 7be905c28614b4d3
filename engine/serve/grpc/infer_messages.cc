// Small parts of a message are encoded by protobuf. The tensors of a response are not copied: a
// message is a list of slices, and a field of bytes may come after all others.
#include "engine/serve/grpc/infer_messages.hpp"

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/serve/oip.hpp"
#include "engine/serve/oip_data.hpp"
#include "engine/serve/request_parameters.hpp"
#include "engine/serve/service_metadata.hpp"
#include "engine/value/byte_elements.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;
using inference::InferTensorContents;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

constexpr size_t kCopiedMax = 4096;  // bytes of a tensor that are cheaper copied than shared

// ---- Requests ----

/// The fields of contents, for errors.
const char* const kContentFields[] = {"bool_contents", "int_contents",    "int64_contents",
                                      "uint_contents", "uint64_contents", "fp32_contents",
                                      "fp64_contents", "bytes_contents"};

/// The first of them that has values, other than `except`; null if there is none.
const char* filled_field(const InferTensorContents& contents, std::string_view except) {
  int sizes[] = {contents.bool_contents_size(),   contents.int_contents_size(),
                 contents.int64_contents_size(),  contents.uint_contents_size(),
                 contents.uint64_contents_size(), contents.fp32_contents_size(),
                 contents.fp64_contents_size(),   contents.bytes_contents_size()};
  for (size_t i = 0; i < std::size(sizes); i++) {
    if (sizes[i] > 0 && kContentFields[i] != except) return kContentFields[i];
  }
  return nullptr;
}

Error wrong_count(const InputHead& input, const char* field, size_t count) {
  return user_error(fmt::format("{}.contents.{} has {} values, its shape needs {}", input.place,
                                field, count, input.count));
}

/// Values of one field as the elements of the tensor.
template <typename To, typename Values>
Result<Bytes> elements(const InputHead& input, const char* field, const Values& values) {
  if (const auto size = static_cast<size_t>(values.size()); size != input.count)
    return wrong_count(input, field, size);
  auto bytes = std::make_shared<std::string>(input.count * sizeof(To), '\0');
  for (size_t i = 0; i < input.count; i++) {
    auto value = values.Get(static_cast<int>(i));
    if constexpr (std::is_integral_v<To>) {
      const Datatype& type = *input.datatype;
      if (std::cmp_less(value, type.min) || std::cmp_greater(value, type.max))
        return user_error(fmt::format("{}.contents.{}[{}] of `{}` is {}, but {} holds {}",
                                      input.place, field, i, input.name, value, type.name,
                                      type.values));
    }
    To element = static_cast<To>(value);
    std::memcpy(bytes->data() + i * sizeof element, &element, sizeof element);
  }
  return Bytes(std::move(bytes));
}

Result<Bytes> byte_elements(const InputHead& input, const InferTensorContents& contents) {
  const auto& values = contents.bytes_contents();
  if (const auto size = static_cast<size_t>(values.size()); size != input.count)
    return wrong_count(input, "bytes_contents", size);
  auto bytes = std::make_shared<std::string>();
  for (const std::string& value : values) append_element(*bytes, value);
  return Bytes(std::move(bytes));
}

Result<Bytes> flags(const InputHead& input, const InferTensorContents& contents) {
  const auto& values = contents.bool_contents();
  if (const auto size = static_cast<size_t>(values.size()); size != input.count)
    return wrong_count(input, "bool_contents", size);
  auto bytes = std::make_shared<std::string>(input.count, '\0');
  for (size_t i = 0; i < input.count; i++)
    (*bytes)[i] = values.Get(static_cast<int>(i)) ? '\1' : '\0';
  return Bytes(std::move(bytes));
}

/// The field that holds values of a datatype; null for those that are only sent raw.
const char* field_of(const Datatype& type) {
  std::string_view name = type.name;
  if (name == "BOOL") return "bool_contents";
  if (name == "INT8" || name == "INT16" || name == "INT32") return "int_contents";
  if (name == "INT64") return "int64_contents";
  if (name == "UINT8" || name == "UINT16" || name == "UINT32") return "uint_contents";
  if (name == "UINT64") return "uint64_contents";
  if (name == "FP32") return "fp32_contents";
  if (name == "BYTES") return "bytes_contents";
  return name == "FP64" ? "fp64_contents" : nullptr;
}

Result<Bytes> typed_data(const InputHead& input, const InferTensorContents& contents) {
  const Datatype& type = *input.datatype;
  if (input.count == 0 && filled_field(contents, "") == nullptr)
    return Bytes(std::make_shared<std::string>());
  const char* field = field_of(type);
  if (field == nullptr)
    return user_error(fmt::format(
        "{} is {}, for which messages have no field of values: send it in raw_input_contents",
        input.place, type.name));
  if (const char* other = filled_field(contents, field))
    return user_error(fmt::format("{}.contents.{} has values, but those of {} are in {}",
                                  input.place, other, type.name, field));
  if (type.kind == Datatype::Kind::bytes) return byte_elements(input, contents);
  switch (type.dtype) {
    case DType::boolean:
      return flags(input, contents);
    case DType::u8:
      return elements<uint8_t>(input, field, contents.uint_contents());
    case DType::i32:
      if (type.name == "UINT16") return elements<int32_t>(input, field, contents.uint_contents());
      return elements<int32_t>(input, field, contents.int_contents());
    case DType::i64:
      if (type.name == "UINT32") return elements<int64_t>(input, field, contents.uint_contents());
      if (is_unsigned64(type)) return elements<uint64_t>(input, field, contents.uint64_contents());
      return elements<int64_t>(input, field, contents.int64_contents());
    case DType::f32:
      return elements<float>(input, field, contents.fp32_contents());
    case DType::f64:
      return elements<double>(input, field, contents.fp64_contents());
    default:
      return internal_error(input.place + " has no field of values");
  }
}

Result<Bytes> raw_data(const InputHead& input, const std::string& place, std::string&& raw) {
  if (input.datatype->kind == Datatype::Kind::bytes) {
    FLOW_TRY(check_byte_elements(input, place, raw));
    return Bytes(std::make_shared<std::string>(std::move(raw)));
  }
  size_t needed = input.count * input.datatype->bytes;
  if (raw.size() != needed)
    return user_error(fmt::format("{} has {} bytes, the shape and datatype of {} need {}", place,
                                  raw.size(), input.place, needed));
  return read_binary_data(input, Bytes(std::make_shared<std::string>(std::move(raw))));
}

Result<std::vector<int64_t>> shape_of(const std::string& place,
                                      const google::protobuf::RepeatedField<int64_t>& field) {
  if (static_cast<size_t>(field.size()) > kDimensionsMax)
    return user_error(fmt::format("{}.shape has more than {} sizes", place, kDimensionsMax));
  std::vector<int64_t> shape(field.begin(), field.end());
  for (size_t i = 0; i < shape.size(); i++) {
    if (shape[i] < 0 || std::cmp_greater(shape[i], kElementsMax))
      return user_error(fmt::format("{}.shape[{}] is {}, but must be a size from 0 to {}", place, i,
                                    shape[i], kElementsMax));
  }
  return shape;
}

template <typename Field>
bool has_parameter(const Field& field, std::string_view key) {
  return std::any_of(field.parameters().begin(), field.parameters().end(),
                     [key](const auto& parameter) { return parameter.key() == key; });
}

Status check_name(const std::string& place, const std::string& name) {
  if (name.empty()) return user_error(place + ".name is missing");
  if (to_utf8(name) != name) return user_error(place + ".name is not UTF-8");
  return {};
}

Error no_shared_memory(const std::string& place) {
  return user_error(place +
                    ".parameters.shared_memory_region is not supported: send the data in the "
                    "message");
}

Result<Value> parameter_value(const inference::RequestParameter::Value& value,
                              const std::string& place) {
  using Choice = inference::RequestParameter::Value;
  switch (value.parameter_choice_case()) {
    case Choice::kBoolParam:
      return Value(value.bool_param());
    case Choice::kInt64Param:
      return Value(static_cast<int64_t>(value.int64_param()));
    case Choice::kUint64Param:  // from 2^63 on as the elements of UINT64
      return Value(static_cast<int64_t>(value.uint64_param()));
    case Choice::kDoubleParam:
      return Value(value.double_param());
    case Choice::kStringParam:
      if (is_utf8(value.string_param())) return Value(value.string_param());
      return user_error(place + " is not UTF-8");
    default:
      return user_error(place + " has no value");
  }
}

/// The parameters of the request, or of the tensor `name` at `place`.
template <typename Field>
Status add_parameters(const Field& field, const std::string& place, Parameter::Place kind,
                      const std::string& name, InferRequest& request) {
  for (const inference::RequestParameter& each : field.parameters()) {
    std::string at = parameter_place(place, each.key());
    if (!is_utf8(each.key())) return user_error(at + ": its name is not UTF-8");
    auto value = parameter_value(each.value(), at);
    FLOW_TRY(value);
    if (is_protocol_parameter(each.key())) continue;
    FLOW_TRY(add_parameter(request.parameters, {kind, name, each.key(), std::move(*value)}, at));
  }
  return {};
}

Status add_input(ModelInferRequest& message, int at, InferRequest& request) {
  auto& field = *message.mutable_inputs(at);
  std::string place = fmt::format("inputs[{}]", at);
  FLOW_TRY(check_name(place, field.name()));
  if (field.datatype().empty()) return user_error(place + ".datatype is missing");
  if (has_parameter(field, "shared_memory_region")) return no_shared_memory(place);
  auto shape = shape_of(place, field.shape());
  FLOW_TRY(shape);
  auto head = input_head(place, field.name(), field.datatype(), *shape);
  FLOW_TRY(head);
  if (request.inputs.contains(head->name))
    return user_error(fmt::format("two inputs are named `{}`", head->name));
  bool is_raw = message.raw_input_contents_size() > 0;
  if (is_raw && filled_field(field.contents(), "") != nullptr)
    return user_error(place + ".contents has values, but the request has raw_input_contents too");
  auto data = is_raw ? raw_data(*head, fmt::format("raw_input_contents[{}]", at),
                                std::move(*message.mutable_raw_input_contents(at)))
                     : typed_data(*head, field.contents());
  FLOW_TRY(data);
  InferTensor tensor;
  tensor.datatype = head->datatype;
  tensor.dtype = head->datatype->dtype;
  tensor.shape = std::move(*shape);
  tensor.data = std::move(*data);
  request.inputs.emplace(head->name, std::move(tensor));
  return add_parameters(field, place, Parameter::Place::input, head->name, request);
}

Status add_output(const ModelInferRequest::InferRequestedOutputTensor& field, int at,
                  InferRequest& request) {
  std::string place = fmt::format("outputs[{}]", at);
  FLOW_TRY(check_name(place, field.name()));
  if (has_parameter(field, "shared_memory_region")) return no_shared_memory(place);
  if (has_parameter(field, "classification"))
    return user_error(place +
                      ".parameters.classification is not supported: ask for the output itself, and "
                      "choose the largest of its values");
  for (const RequestedOutput& other : request.outputs)
    if (other.name == field.name())
      return user_error(fmt::format("two outputs are named `{}`", field.name()));
  request.outputs.push_back({field.name(), true});
  return add_parameters(field, place, Parameter::Place::output, field.name(), request);
}

// ---- Responses ----

ModelInferResponse response_head(const std::string& model, const std::string& id) {
  ModelInferResponse head;
  head.set_model_name(to_utf8(model));
  head.set_model_version(std::string(kModelVersion));
  head.set_id(to_utf8(id));
  return head;
}

void set_parameter(inference::InferParameter& field, const Value& value) {
  switch (value.kind()) {
    case Value::Kind::boolean:
      return field.set_bool_param(value.as_boolean());
    case Value::Kind::integer:
      return field.set_int64_param(value.as_integer());
    case Value::Kind::number:
      return field.set_double_param(value.as_number());
    default:
      return field.set_string_param(to_utf8(value.as_string()));
  }
}

std::string length_prefix(int field, size_t size) {
  std::string prefix;
  {
    google::protobuf::io::StringOutputStream stream(&prefix);
    CodedOutputStream coded(&stream);
    coded.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    coded.WriteVarint32(static_cast<uint32_t>(size));
  }
  return prefix;
}

grpc::Slice shared_slice(const Bytes& data) {
  if (data->size() <= kCopiedMax) return {data->data(), data->size()};
  auto* keep = new std::shared_ptr<const void>(data.keep());
  // gRPC only reads a slice that is sent.
  return {const_cast<char*>(data->data()), data->size(),
          [](void* kept) { delete static_cast<std::shared_ptr<const void>*>(kept); }, keep};
}

/// A message as slices, and its size.
struct Slices {
  std::vector<grpc::Slice> parts;
  size_t bytes = 0;

  void add(grpc::Slice part) {
    bytes += part.size();
    parts.push_back(std::move(part));
  }
  grpc::ByteBuffer buffer() const { return {parts.data(), parts.size()}; }
};

Result<Slices> response_slices(const std::string& model, const InferRequest& request,
                               const Tensors& outputs, bool is_stream) {
  auto selected = requested_outputs(request, outputs);
  FLOW_TRY(selected);
  ModelInferResponse head = response_head(model, request.id);
  for (const Parameter& each : request.response_parameters)
    set_parameter((*head.mutable_parameters())[to_utf8(each.name)], each.value);
  // Triton's clients of streams look for it if a request may have several responses.
  if (is_stream) (*head.mutable_parameters())["triton_final_response"].set_bool_param(true);
  size_t bytes = 0;
  std::vector<Bytes> contents;
  for (const auto* output : *selected) {
    const auto& [name, tensor] = *output;
    const Datatype& datatype = datatype_of(tensor);
    contents.push_back(narrow(datatype, tensor.data));
    auto& field = *head.add_outputs();
    field.set_name(to_utf8(name));
    field.set_datatype(std::string(datatype.name));
    field.mutable_shape()->Add(tensor.shape.begin(), tensor.shape.end());
    bytes += contents.back()->size();
  }
  if (bytes > std::numeric_limits<int32_t>::max() / 2)
    return Error{
        ErrorKind::task,
        fmt::format("the outputs have {} bytes, more than a message of gRPC may have", bytes)};
  Slices slices;
  slices.add(grpc::Slice(head.SerializeAsString()));
  for (const Bytes& data : contents) {
    slices.add(grpc::Slice(
        length_prefix(ModelInferResponse::kRawOutputContentsFieldNumber, data->size())));
    if (!data->empty()) slices.add(shared_slice(data));
  }
  return slices;
}

}  // namespace

Result<ModelInferRequest> read_request(grpc::ByteBuffer& bytes) {
  ModelInferRequest message;
  grpc::ProtoBufferReader reader(&bytes);
  if (reader.status().ok() && message.ParseFromZeroCopyStream(&reader)) return message;
  return user_error("the bytes of the request are no message ModelInferRequest");
}

Result<InferRequest> take_infer_request(ModelInferRequest& message) {
  InferRequest request;
  if (message.id().size() > kIdBytesMax)
    return user_error(fmt::format("id has more than {} bytes", kIdBytesMax));
  if (message.inputs_size() == 0) return user_error("the request has no `inputs`");
  if (static_cast<size_t>(message.inputs_size()) > kInputsMax)
    return user_error(fmt::format("inputs has more than {} tensors", kInputsMax));
  if (static_cast<size_t>(message.outputs_size()) > kOutputsMax)
    return user_error(fmt::format("outputs has more than {} tensors", kOutputsMax));
  int raw = message.raw_input_contents_size();
  if (raw > 0 && raw != message.inputs_size())
    return user_error(fmt::format("raw_input_contents has {} parts, but there are {} inputs", raw,
                                  message.inputs_size()));
  FLOW_TRY(add_parameters(message, "", Parameter::Place::request, "", request));
  for (int i = 0; i < message.inputs_size(); i++) FLOW_TRY(add_input(message, i, request));
  for (int i = 0; i < message.outputs_size(); i++)
    FLOW_TRY(add_output(message.outputs(i), i, request));
  request.are_outputs_binary = true;
  request.id = std::move(*message.mutable_id());
  return request;
}

Result<grpc::ByteBuffer> infer_response(const std::string& model, const InferRequest& request,
                                        const Tensors& outputs) {
  auto slices = response_slices(model, request, outputs, false);
  FLOW_TRY(slices);
  return slices->buffer();
}

Result<grpc::ByteBuffer> stream_response(const std::string& model, const InferRequest& request,
                                         const Tensors& outputs) {
  auto slices = response_slices(model, request, outputs, true);
  FLOW_TRY(slices);
  slices->parts.insert(slices->parts.begin(),
                       grpc::Slice(length_prefix(
                           ModelStreamInferResponse::kInferResponseFieldNumber, slices->bytes)));
  return slices->buffer();
}

grpc::ByteBuffer stream_error(const std::string& model, const std::string& id,
                              const std::string& message) {
  ModelStreamInferResponse response;
  response.set_error_message(to_utf8(message));
  *response.mutable_infer_response() = response_head(model, id);
  grpc::Slice slice(response.SerializeAsString());
  return {&slice, 1};
}

}  // namespace flow
