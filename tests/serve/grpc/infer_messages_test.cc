// Requests as messages, and their tensors.
#include "engine/serve/grpc/infer_messages.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "engine/serve/oip_datatypes.hpp"

using namespace flow;

namespace {

template <typename T>
std::string raw_of(std::initializer_list<T> values) {
  return {reinterpret_cast<const char*>(values.begin()), values.size() * sizeof(T)};
}

/// A request for one input `x` with two elements.
inference::ModelInferRequest request_of(const std::string& datatype) {
  inference::ModelInferRequest request;
  auto& input = *request.add_inputs();
  input.set_name("x");
  input.set_datatype(datatype);
  input.add_shape(2);
  return request;
}

inference::InferTensorContents& contents_of(inference::ModelInferRequest& request) {
  return *request.mutable_inputs(0)->mutable_contents();
}

inference::ModelInferRequest raw_request(const std::string& datatype, const std::string& bytes) {
  inference::ModelInferRequest request = request_of(datatype);
  request.add_raw_input_contents(bytes);
  return request;
}

void check_tensor(inference::ModelInferRequest request, DType dtype, const std::string& bytes) {
  std::string datatype = request.inputs(0).datatype();
  INFO(datatype);
  auto taken = take_infer_request(request);
  REQUIRE(taken.ok());
  const InferTensor& tensor = taken->inputs.at("x");
  CHECK(tensor.dtype == dtype);
  CHECK(tensor.shape == std::vector<int64_t>{2});
  CHECK(*tensor.data == bytes);
  CHECK(datatype_of(tensor).name == datatype);
}

void check_fault(inference::ModelInferRequest request, const std::string& message) {
  auto taken = take_infer_request(request);
  REQUIRE_FALSE(taken.ok());
  CHECK(taken.error().kind == ErrorKind::user);
  CHECK(taken.error().message == message);
}

}  // namespace

TEST_CASE("elements of BYTES are any bytes, and are answered raw") {
  const std::string elements("\2\0\0\0\xff\0\0\0\0\0", 10);
  inference::ModelInferRequest request = request_of("BYTES");
  contents_of(request).add_bytes_contents(std::string("\xff\0", 2));
  contents_of(request).add_bytes_contents("");
  for (inference::ModelInferRequest& each :
       std::vector<inference::ModelInferRequest>{request, raw_request("BYTES", elements)}) {
    auto taken = take_infer_request(each);
    REQUIRE(taken.ok());
    CHECK(has_bytes(taken->inputs.at("x")));
    CHECK(*taken->inputs.at("x").data == elements);
    auto answer = infer_response("m", *taken, taken->inputs);
    REQUIRE(answer.ok());
    grpc::Slice slice;
    REQUIRE(answer->DumpToSingleSlice(&slice).ok());
    inference::ModelInferResponse response;
    REQUIRE(response.ParseFromArray(slice.begin(), static_cast<int>(slice.size())));
    CHECK(response.outputs(0).datatype() == "BYTES");
    CHECK(response.raw_output_contents(0) == elements);
  }
}

TEST_CASE("raw contents of every datatype become a tensor") {
  check_tensor(raw_request("BOOL", raw_of<uint8_t>({0, 1})), DType::boolean,
               raw_of<uint8_t>({0, 1}));
  check_tensor(raw_request("UINT8", raw_of<uint8_t>({0, 255})), DType::u8,
               raw_of<uint8_t>({0, 255}));
  check_tensor(raw_request("INT8", raw_of<int8_t>({-128, 127})), DType::i32,
               raw_of<int32_t>({-128, 127}));
  check_tensor(raw_request("INT16", raw_of<int16_t>({-32768, 7})), DType::i32,
               raw_of<int32_t>({-32768, 7}));
  check_tensor(raw_request("UINT16", raw_of<uint16_t>({65535, 7})), DType::i32,
               raw_of<int32_t>({65535, 7}));
  check_tensor(raw_request("INT32", raw_of<int32_t>({-5, 7})), DType::i32,
               raw_of<int32_t>({-5, 7}));
  check_tensor(raw_request("UINT32", raw_of<uint32_t>({4294967295u, 7})), DType::i64,
               raw_of<int64_t>({4294967295, 7}));
  check_tensor(raw_request("INT64", raw_of<int64_t>({-5, 7})), DType::i64,
               raw_of<int64_t>({-5, 7}));
  check_tensor(raw_request("UINT64", raw_of<uint64_t>({5, UINT64_MAX})), DType::i64,
               raw_of<int64_t>({5, -1}));
  check_tensor(raw_request("FP16", raw_of<uint16_t>({0x3c00, 0xc000})), DType::f16,
               raw_of<uint16_t>({0x3c00, 0xc000}));
  check_tensor(raw_request("BF16", raw_of<uint16_t>({0x3f80, 0xc000})), DType::bf16,
               raw_of<uint16_t>({0x3f80, 0xc000}));
  check_tensor(raw_request("FP32", raw_of<float>({0.5f, -2})), DType::f32,
               raw_of<float>({0.5f, -2}));
  check_tensor(raw_request("FP64", raw_of<double>({0.1, -2})), DType::f64,
               raw_of<double>({0.1, -2}));
}

TEST_CASE("values of every datatype that has a field become a tensor") {
  auto with = [](const std::string& datatype, auto add) {
    inference::ModelInferRequest request = request_of(datatype);
    add(contents_of(request));
    return request;
  };
  check_tensor(with("BOOL", [](auto& c) { c.add_bool_contents(true), c.add_bool_contents(false); }),
               DType::boolean, raw_of<uint8_t>({1, 0}));
  for (const char* datatype : {"INT8", "INT16", "INT32"})
    check_tensor(with(datatype, [](auto& c) { c.add_int_contents(-128), c.add_int_contents(127); }),
                 DType::i32, raw_of<int32_t>({-128, 127}));
  check_tensor(
      with("INT64", [](auto& c) { c.add_int64_contents(INT64_MIN), c.add_int64_contents(7); }),
      DType::i64, raw_of<int64_t>({INT64_MIN, 7}));
  check_tensor(with("UINT8", [](auto& c) { c.add_uint_contents(255), c.add_uint_contents(0); }),
               DType::u8, raw_of<uint8_t>({255, 0}));
  check_tensor(with("UINT16", [](auto& c) { c.add_uint_contents(65535), c.add_uint_contents(0); }),
               DType::i32, raw_of<int32_t>({65535, 0}));
  check_tensor(
      with("UINT32", [](auto& c) { c.add_uint_contents(4294967295u), c.add_uint_contents(0); }),
      DType::i64, raw_of<int64_t>({4294967295, 0}));
  check_tensor(
      with("UINT64", [](auto& c) { c.add_uint64_contents(UINT64_MAX), c.add_uint64_contents(0); }),
      DType::i64, raw_of<int64_t>({-1, 0}));
  check_tensor(with("FP32", [](auto& c) { c.add_fp32_contents(0.5f), c.add_fp32_contents(-2); }),
               DType::f32, raw_of<float>({0.5f, -2}));
  check_tensor(with("FP64", [](auto& c) { c.add_fp64_contents(0.1), c.add_fp64_contents(-2); }),
               DType::f64, raw_of<double>({0.1, -2}));
}

TEST_CASE("raw contents are not copied") {
  std::string bytes(100'000, '\1');
  auto request = raw_request("UINT8", bytes);
  request.mutable_inputs(0)->set_shape(0, 100'000);
  const char* at = request.raw_input_contents(0).data();
  auto taken = take_infer_request(request);
  REQUIRE(taken.ok());
  CHECK(taken->inputs.at("x").data->data() == at);
}

TEST_CASE("each fault of a request is named with its place") {
  check_fault({}, "the request has no `inputs`");
  auto request = request_of("FP32");
  check_fault(request, "inputs[0].contents.fp32_contents has 0 values, its shape needs 2");
  request.set_id(std::string(1025, 'i'));
  check_fault(request, "id has more than 1024 bytes");
  request = request_of("FP32");
  request.mutable_inputs(0)->clear_name();
  check_fault(request, "inputs[0].name is missing");
  request.mutable_inputs(0)->set_name("x\xff");
  check_fault(request, "inputs[0].name is not UTF-8");
  request = request_of("");
  check_fault(request, "inputs[0].datatype is missing");
  request = request_of("FP8");
  check_fault(request, "inputs[0].datatype `FP8` is not one of " + datatype_names());
  request = request_of("BYTES");
  contents_of(request).add_bytes_contents("a");
  check_fault(request, "inputs[0].contents.bytes_contents has 1 values, its shape needs 2");
  check_fault(raw_request("BYTES", std::string("\1\0\0\0a", 5)),
              "raw_input_contents[0] has 5 bytes, which end before the 2 elements of inputs[0] "
              "that its shape needs: each is its number of bytes, 4 bytes little-endian, and these "
              "bytes");
  check_fault(raw_request("BYTES", std::string(9, '\0')),
              "raw_input_contents[0] has 1 bytes after the 2 elements of inputs[0] that its shape "
              "needs");
  request = request_of("FP16");
  contents_of(request).add_fp32_contents(1);
  check_fault(request,
              "inputs[0] is FP16, for which messages have no field of values: send it in "
              "raw_input_contents");
  request = request_of("FP32");
  contents_of(request).add_fp64_contents(1);
  check_fault(request,
              "inputs[0].contents.fp64_contents has values, but those of FP32 are in "
              "fp32_contents");
  request = request_of("INT8");
  for (int value : {1, 128}) contents_of(request).add_int_contents(value);
  check_fault(request,
              "inputs[0].contents.int_contents[1] of `x` is 128, but INT8 holds whole numbers from "
              "-128 to 127");
  request = request_of("FP32");
  request.mutable_inputs(0)->set_shape(0, -1);
  check_fault(request, "inputs[0].shape[0] is -1, but must be a size from 0 to 67108864");
  request = request_of("FP32");
  for (int i = 0; i < 8; i++) request.mutable_inputs(0)->add_shape(1);
  check_fault(request, "inputs[0].shape has more than 8 sizes");
  request = request_of("FP32");
  request.mutable_inputs(0)->add_shape(67108864);
  check_fault(request, "inputs[0].shape is larger than a request may be (67108864 elements)");
  request = raw_request("FP32", "abc");
  check_fault(request,
              "raw_input_contents[0] has 3 bytes, the shape and datatype of inputs[0] need 8");
  request = raw_request("BOOL", raw_of<uint8_t>({1, 2}));
  check_fault(request, "inputs[0].data[1] of `x` is 2, but BOOL holds true and false");
  request = raw_request("FP32", raw_of<float>({1, 2}));
  contents_of(request).add_fp32_contents(1);
  check_fault(request, "inputs[0].contents has values, but the request has raw_input_contents too");
  request = raw_request("FP32", raw_of<float>({1, 2}));
  request.add_raw_input_contents("");
  check_fault(request, "raw_input_contents has 2 parts, but there are 1 inputs");
  request = raw_request("FP32", raw_of<float>({1, 2}));
  *request.add_inputs() = request.inputs(0);
  request.add_raw_input_contents(raw_of<float>({1, 2}));
  check_fault(request, "two inputs are named `x`");
  request = raw_request("FP32", raw_of<float>({1, 2}));
  request.mutable_inputs(0)->add_parameters()->set_key("shared_memory_region");
  check_fault(request,
              "inputs[0].parameters.shared_memory_region is not supported: send the data in the "
              "message");
  request = raw_request("FP32", raw_of<float>({1, 2}));
  request.add_outputs()->set_name("y");
  request.mutable_outputs(0)->add_parameters()->set_key("classification");
  check_fault(request,
              "outputs[0].parameters.classification is not supported: ask for the output itself, "
              "and choose the largest of its values");
  request.mutable_outputs(0)->clear_parameters();
  request.add_outputs()->set_name("y");
  check_fault(request, "two outputs are named `y`");
  request = {};
  for (int i = 0; i < 65; i++) request.add_inputs();
  check_fault(request, "inputs has more than 64 tensors");
  request = request_of("FP32");
  for (int i = 0; i < 65; i++) request.add_outputs();
  check_fault(request, "outputs has more than 64 tensors");
}

TEST_CASE("a tensor without elements needs no contents") {
  for (const char* datatype : {"FP32", "FP16"}) {
    auto request = request_of(datatype);
    request.mutable_inputs(0)->set_shape(0, 0);
    auto taken = take_infer_request(request);
    REQUIRE(taken.ok());
    CHECK(taken->inputs.at("x").data->empty());
  }
}

TEST_CASE("the parameters that HTTP uses itself are left out, as they are there") {
  auto request = raw_request("FP32", raw_of<float>({1, 2}));
  for (const char* name : {"binary_data", "binary_data_output", "binary_data_size", "scale"}) {
    (*request.add_parameters()).set_key(name);
    request.mutable_parameters()->rbegin()->mutable_value()->set_int64_param(1);
  }
  auto taken = take_infer_request(request);
  REQUIRE(taken.ok());
  REQUIRE(taken->parameters.size() == 1);
  CHECK(taken->parameters[0].name == "scale");
}

TEST_CASE("bytes that are no message are a fault") {
  grpc::Slice slice(std::string("\xff\xff\xff"));
  grpc::ByteBuffer bytes(&slice, 1);
  auto read = read_request(bytes);
  REQUIRE_FALSE(read.ok());
  CHECK(read.error().message == "the bytes of the request are no message ModelInferRequest");
}

TEST_CASE("a response has the outputs that the request asks for, raw") {
  InferRequest request;
  request.id = "7";
  Tensors outputs;
  auto add = [&](const std::string& name, DType dtype, std::vector<int64_t> shape,
                 std::string bytes) {
    Tensor tensor;
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    tensor.data = std::make_shared<std::string>(std::move(bytes));
    outputs.emplace(name, std::move(tensor));
  };
  add("a", DType::f32, {2}, raw_of<float>({1, 2}));
  add("b", DType::i64, {0, 3}, "");
  add("c\xff", DType::u8, {100'000}, std::string(100'000, '\3'));
  auto parsed = [](const Result<grpc::ByteBuffer>& encoded, auto message) {
    REQUIRE(encoded.ok());
    std::vector<grpc::Slice> slices;
    REQUIRE(encoded->Dump(&slices).ok());
    std::string bytes;
    for (const grpc::Slice& slice : slices)
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    REQUIRE(message.ParseFromString(bytes));
    return message;
  };

  auto all = parsed(infer_response("adder", request, outputs), inference::ModelInferResponse());
  CHECK(all.model_name() == "adder");
  CHECK(all.model_version() == "1");
  CHECK(all.id() == "7");
  REQUIRE(all.outputs_size() == 3);
  REQUIRE(all.raw_output_contents_size() == 3);
  CHECK(all.outputs(0).name() == "a");
  CHECK(all.outputs(0).datatype() == "FP32");
  CHECK(all.raw_output_contents(0) == raw_of<float>({1, 2}));
  CHECK(all.outputs(1).datatype() == "INT64");
  CHECK(all.outputs(1).shape_size() == 2);
  CHECK(all.raw_output_contents(1).empty());
  CHECK(all.outputs(2).name() == "c\xef\xbf\xbd");
  CHECK(all.raw_output_contents(2) == std::string(100'000, '\3'));

  request.outputs = {{"b", true}, {"a", true}};
  auto some =
      parsed(stream_response("adder", request, outputs), inference::ModelStreamInferResponse());
  CHECK(some.error_message().empty());
  REQUIRE(some.infer_response().outputs_size() == 2);
  CHECK(some.infer_response().outputs(0).name() == "b");
  CHECK(some.infer_response().raw_output_contents(1) == raw_of<float>({1, 2}));
  CHECK(some.infer_response().parameters().at("triton_final_response").bool_param());

  request.response_parameters = {{.name = "model", .value = Value("v3")},
                                 {.name = "n", .value = Value(-7)},
                                 {.name = "half", .value = Value(0.5)},
                                 {.name = "yes", .value = Value(true)}};
  auto with = parsed(infer_response("adder", request, outputs), inference::ModelInferResponse());
  REQUIRE(with.parameters_size() == 4);
  CHECK(with.parameters().at("model").string_param() == "v3");
  CHECK(with.parameters().at("n").int64_param() == -7);
  CHECK(with.parameters().at("half").double_param() == 0.5);
  CHECK(with.parameters().at("yes").bool_param());

  request.outputs = {{"z", true}};
  auto absent = infer_response("adder", request, outputs);
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().kind == ErrorKind::user);
}
