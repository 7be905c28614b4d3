// Bytes of a ModelInferRequest: they are refused, or become tensors that fit their shapes and are
// answered; a request that is taken twice is the same. As a compressed message they are refused, or
// become a plain one within the limit.
#include "engine/serve/grpc/infer_messages.hpp"
#include "engine/serve/grpc/message_coding.hpp"
#include "engine/serve/oip_data.hpp"

namespace {

flow::Result<flow::InferRequest> taken(std::string_view bytes) {
  grpc::Slice slice(bytes.data(), bytes.size());
  grpc::ByteBuffer buffer(&slice, 1);
  auto message = flow::read_request(buffer);
  FLOW_TRY(message);
  return flow::take_infer_request(*message);
}

void check(const flow::InferRequest& request) {
  FLOW_CHECK(!request.inputs.empty() && request.inputs.size() <= flow::kInputsMax);
  FLOW_CHECK(request.outputs.size() <= flow::kOutputsMax && request.id.size() <= flow::kIdBytesMax);
  for (const auto& [name, tensor] : request.inputs) {
    FLOW_CHECK(!name.empty() && tensor.datatype != nullptr);
    FLOW_CHECK(tensor.datatype->dtype == tensor.dtype);
    FLOW_CHECK(tensor.shape.size() <= flow::kDimensionsMax);
    FLOW_CHECK(flow::has_its_size(tensor));
  }
}

void check_packed(std::string_view bytes, grpc_compression_algorithm algorithm) {
  constexpr size_t kPlainMax = 64 * 1024;
  grpc::Slice slice(bytes.data(), bytes.size());
  grpc::ByteBuffer message(&slice, 1);
  flow::compression_of(message) = algorithm;
  flow::CallStatus status = flow::decompress_message(message, kPlainMax);
  if (status.status != 200) {
    FLOW_CHECK((status.status == 400 || status.status == 413) && !status.message.empty());
    return;
  }
  FLOW_CHECK(flow::compression_of(message) == GRPC_COMPRESS_NONE && message.Length() <= kPlainMax);
  auto read = flow::read_request(message);
  FLOW_CHECK(read.ok() || !read.error().message.empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) check_packed(bytes, algorithm);
  auto request = taken(bytes);
  if (!request.ok()) {
    FLOW_CHECK(request.error().kind == flow::ErrorKind::user && !request.error().message.empty());
    return 0;
  }
  check(*request);
  auto again = taken(bytes);
  FLOW_CHECK(again.ok() && again->id == request->id &&
             again->inputs.size() == request->inputs.size());
  for (const auto& [name, tensor] : request->inputs)
    FLOW_CHECK(*again->inputs.at(name).data == *tensor.data);
  auto response = flow::stream_response("model", *request, request->inputs);
  FLOW_CHECK(response.ok() || response.error().kind == flow::ErrorKind::user);
  if (!response.ok()) return 0;
  inference::ModelStreamInferResponse message;
  std::vector<grpc::Slice> slices;
  FLOW_CHECK(response->Dump(&slices).ok());
  std::string sent;
  for (const grpc::Slice& slice : slices)
    sent.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  FLOW_CHECK(message.ParseFromString(sent));
  FLOW_CHECK(message.infer_response().outputs_size() ==
             message.infer_response().raw_output_contents_size());
  return 0;
}
