// Frames with tensors, beside protobuf's own encoding of the same messages.
#include "engine/serve/tensor_frames.hpp"

#include <catch2/catch.hpp>
#include <cstring>

#include "engine/protocol/front.pb.h"
#include "engine/serve/batch.hpp"
#include "engine/serve/oip_datatypes.hpp"

using namespace flow;
using Catch::Contains;

namespace {

Tensor tensor_of(DType type, std::vector<int64_t> shape, char fill) {
  size_t size = dtype_size(type);
  for (int64_t extent : shape) size *= static_cast<size_t>(extent);
  Tensor tensor;
  tensor.dtype = type;
  tensor.shape = std::move(shape);
  tensor.data = std::make_shared<const std::string>(size, fill);
  return tensor;
}

/// The frame without its length, which must be right.
Bytes message_of_pieces(const FramePieces& pieces) {
  std::string all;
  for (const Bytes& piece : pieces) all += *piece;
  uint32_t size = 0;
  REQUIRE(all.size() >= sizeof size);
  std::memcpy(&size, all.data(), sizeof size);
  REQUIRE(all.size() == sizeof size + size);
  return std::make_shared<const std::string>(all.substr(sizeof size));
}

void check_equal(const Tensors& a, const Tensors& b) {
  REQUIRE(a.size() == b.size());
  for (const auto& [name, tensor] : a) {
    const Tensor& other = b.at(name);
    CHECK(tensor.dtype == other.dtype);
    CHECK(tensor.shape == other.shape);
    CHECK(*tensor.data == *other.data);
  }
}

Bytes bytes_of_message(const google::protobuf::MessageLite& message) {
  return std::make_shared<const std::string>(message.SerializeAsString());
}

}  // namespace

TEST_CASE("a batch is written as protobuf reads it, and read as it was written") {
  using Place = Parameter::Place;
  const std::vector<Parameter> parameters = {{Place::request, "", "flag", Value(true)},
                                             {Place::request, "", "whole", Value(INT64_MIN)},
                                             {Place::input, "x", "number", Value(-0.5)},
                                             {Place::output, "y", "text", Value("")}};
  for (int64_t columns : {0, 3, 100'000}) {
    Tensors first = {{"x", tensor_of(DType::f32, {2, columns}, 'a')},
                     {"y", tensor_of(DType::u8, {2}, 'b')}};
    Tensors second = {{"x", tensor_of(DType::f32, {5, columns}, 'c')},
                      {"y", tensor_of(DType::u8, {5}, 'd')}};
    for (const std::vector<const Tensors*>& parts :
         {std::vector<const Tensors*>{&first}, {&first, &second}}) {
      const std::vector<BatchedRequest> requests = {{"a", 2, ""}, {"", 5, "00-trace", parameters}};
      FramePieces pieces = batch_frame(77, parts, requests);
      Bytes frame = message_of_pieces(pieces);
      Tensors joined = join_rows(parts);
      front::FromFront message;
      REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
      REQUIRE(message.has_batch());
      CHECK(message.batch().id() == 77);
      REQUIRE(message.batch().inputs_size() == 2);
      CHECK(message.batch().inputs(0).name() == "x");
      CHECK(message.batch().inputs(0).dtype() == "f32");
      CHECK(message.batch().inputs(0).data() == *joined.at("x").data);
      auto read = parse_batch(frame);
      REQUIRE(read.ok());
      REQUIRE(read->has_value());
      CHECK((*read)->id == 77);
      REQUIRE((*read)->requests.size() == 2);
      CHECK((*read)->requests[0].id == "a");
      CHECK((*read)->requests[0].rows == 2);
      CHECK((*read)->requests[0].traceparent.empty());
      CHECK((*read)->requests[1].rows == 5);
      CHECK((*read)->requests[1].traceparent == "00-trace");
      REQUIRE(message.batch().requests_size() == 2);
      CHECK(message.batch().requests(0).id() == "a");
      CHECK(message.batch().requests(1).rows() == 5);
      CHECK(message.batch().requests(1).traceparent() == "00-trace");
      CHECK(message.batch().requests(1).parameters(1).value() == uint64_t{1} << 63);
      CHECK((*read)->requests[0].parameters.empty());
      REQUIRE((*read)->requests[1].parameters.size() == parameters.size());
      for (size_t i = 0; i < parameters.size(); i++) {
        const Parameter& each = (*read)->requests[1].parameters[i];
        CHECK(each.place == parameters[i].place);
        CHECK(each.tensor == parameters[i].tensor);
        CHECK(each.name == parameters[i].name);
        CHECK(each.value == parameters[i].value);
      }
      check_equal((*read)->inputs, joined);
    }
  }
}

TEST_CASE("a parameter of an unknown place or kind is malformed") {
  auto fault = [](uint32_t place, uint32_t kind) {
    front::FromFront message;
    auto& parameter = *message.mutable_batch()->add_requests()->add_parameters();
    parameter.set_place(place);
    parameter.set_kind(kind);
    auto read = parse_batch(bytes_of_message(message));
    return read.ok() ? "" : read.error().message;
  };
  CHECK(fault(0, 1) == "");
  CHECK(fault(3, 1) == "malformed message: the kind of a parameter");
  CHECK(fault(0, 0) == "malformed message: the kind of a parameter");
  CHECK(fault(0, 5) == "malformed message: the kind of a parameter");
}

TEST_CASE("elements of BYTES are sent with their lengths, and are checked") {
  auto texts = [](const std::string& data) {
    InferTensor tensor;
    REQUIRE(set_element_type(tensor, "BYTES"));
    tensor.shape = {2};
    tensor.data = std::make_shared<const std::string>(data);
    return Tensors{{"x", tensor}};
  };
  Tensors good = texts(std::string("\1\0\0\0a\0\0\0\0", 9));
  Bytes frame = message_of_pieces(batch_frame(1, {&good}, {}));
  front::FromFront message;
  REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
  CHECK(message.batch().inputs(0).dtype() == "BYTES");
  auto read = parse_batch(frame);
  REQUIRE((read.ok() && read->has_value()));
  check_equal((*read)->inputs, good);
  CHECK(has_bytes((*read)->inputs.at("x")));
  for (const std::string& other :
       {std::string("\1\0\0\0a\0\0\0", 8), std::string("\1\0\0\0a\0\0\0\0b", 10)}) {
    Tensors bad = texts(other);
    CHECK_FALSE(parse_batch(message_of_pieces(batch_frame(1, {&bad}, {}))).ok());
    CHECK_FALSE(parse_outcome(message_of_pieces(outcome_frame(1, bad))).ok());
  }
}

TEST_CASE("large tensors are sent from their own memory") {
  Tensors inputs = {{"x", tensor_of(DType::u8, {1, 1 << 20}, 'a')}};
  FramePieces pieces = batch_frame(1, {&inputs}, {});
  CHECK(std::ranges::any_of(
      pieces, [&](const Bytes& piece) { return piece->data() == inputs.at("x").data->data(); }));
}

TEST_CASE("tensors in shared memory are read as they were written, of every type and size") {
  Tensors first, second;
  int64_t extent = 0;
  for (DType type : {DType::f64, DType::f32, DType::i64, DType::i32, DType::u8, DType::boolean,
                     DType::f16, DType::bf16}) {
    std::string name(dtype_name(type));
    first.emplace(name, tensor_of(type, {2, extent, 3}, 'a'));
    second.emplace(name, tensor_of(type, {3, extent, 3}, 'b'));
    extent = extent * 3 + 1;
  }
  Tensors scalar = {{"x", tensor_of(DType::f32, {}, 'c')}};
  for (const std::vector<const Tensors*>& parts :
       {std::vector<const Tensors*>{&first}, {&first, &second, &first}, {&scalar}}) {
    std::string memory(memory_bytes(parts), '?');
    TensorMemory place{.id = 9, .data = memory.data(), .size = memory.size()};
    auto lookup = [&](uint64_t id) -> Bytes {
      return id == 9 ? Bytes(memory, std::make_shared<int>()) : Bytes();
    };
    Bytes frame = message_of_pieces(batch_frame(77, parts, {}, place));
    CHECK(frame->size() < 1000);
    Tensors joined = join_rows(parts);
    auto read = parse_batch(frame, lookup);
    REQUIRE(read.ok());
    REQUIRE(read->has_value());
    check_equal((*read)->inputs, joined);
    for (const auto& [name, tensor] : (*read)->inputs)
      CHECK((tensor.data->data() - memory.data()) % 64 == 0);
    front::FromFront message;
    REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
    CHECK(message.batch().memory() == 9);
    CHECK(message.batch().inputs(0).is_shared());
    CHECK(message.batch().inputs(0).data().empty());
    CHECK_FALSE(parse_batch(frame).ok());  // there is no memory

    memory.assign(memory.size(), '?');
    auto outcome = parse_outcome(message_of_pieces(outcome_frame(1, joined, place)), lookup);
    REQUIRE(outcome.ok());
    REQUIRE(outcome->has_value());
    check_equal(*(*outcome)->outputs, joined);
  }
}

TEST_CASE("a tensor that is not within the shared memory is an error") {
  const std::string memory(1000, 'm');
  auto fault = [&](uint64_t id, uint64_t offset, uint64_t size, int64_t extent) -> std::string {
    front::ToFront message;
    message.mutable_done()->set_memory(id);
    front::Tensor& tensor = *message.mutable_done()->add_outputs();
    tensor.set_name("y");
    tensor.set_dtype("u8");
    tensor.add_shape(extent);
    tensor.set_offset(offset);
    tensor.set_size(size);
    tensor.set_is_shared(true);
    // The id of the memory comes first, which is not the order of protobuf.
    std::string done = message.done().SerializeAsString();
    std::string head = {'\x28', static_cast<char>(id)};
    front::ToFront whole;
    whole.mutable_done();
    std::string text = {'\x12', static_cast<char>(done.size() + head.size())};
    auto read = parse_outcome(
        std::make_shared<const std::string>(text + head + done), [&](uint64_t asked) -> Bytes {
          return asked == 3 ? Bytes(memory, std::make_shared<int>()) : Bytes();
        });
    return read.ok() ? "" : read.error().message;
  };
  CHECK(fault(3, 0, 1000, 1000).empty());
  CHECK(fault(3, 1000, 0, 0).empty());
  CHECK_THAT(fault(4, 0, 1000, 1000), Contains("may not use"));
  CHECK_THAT(fault(3, 1, 1000, 1000), Contains("not within"));
  CHECK_THAT(fault(3, 1001, 0, 0), Contains("not within"));
  CHECK_THAT(fault(3, UINT64_MAX, 1, 1), Contains("not within"));
  CHECK_THAT(fault(3, 2, UINT64_MAX, 1), Contains("not within"));
  CHECK_THAT(fault(3, UINT64_MAX - 9, 10, 10), Contains("not within"));
  CHECK_THAT(fault(3, 0, 10, 11), Contains("size"));
  CHECK_THAT(fault(3, 0, 10, -1), Contains("size"));
}

TEST_CASE("an outcome is written as protobuf reads it, and read as it was written") {
  Tensors outputs = {{"y", tensor_of(DType::i64, {3}, 'a')}, {"", tensor_of(DType::f64, {}, 'b')}};
  auto read = parse_outcome(message_of_pieces(outcome_frame(1u << 30, outputs)));
  REQUIRE(read.ok());
  REQUIRE(read->has_value());
  CHECK((*read)->id == 1u << 30);
  REQUIRE((*read)->outputs.ok());
  check_equal(*(*read)->outputs, outputs);
  for (ErrorKind kind : {ErrorKind::user, ErrorKind::task}) {
    Bytes frame = message_of_pieces(outcome_frame(2, Error{kind, "boom"}));
    front::ToFront message;
    REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
    CHECK(message.done().error() == (kind == ErrorKind::user ? 2 : 1));
    read = parse_outcome(frame);
    REQUIRE(read.ok());
    REQUIRE_FALSE((*read)->outputs.ok());
    CHECK((*read)->outputs.error().kind == kind);
    CHECK((*read)->outputs.error().message == "boom");
  }
}

TEST_CASE("an outcome has the parameters of the responses, in the order of the requests") {
  Tensors outputs = {{"y", tensor_of(DType::i64, {3}, 'a')}};
  ResponseParameters parameters(3);
  parameters[0] = {{.name = "model", .value = Value("v3")}, {.name = "n", .value = Value(-7)}};
  parameters[2] = {{.name = "half", .value = Value(0.5)}, {.name = "yes", .value = Value(true)}};
  Bytes frame = message_of_pieces(outcome_frame(1, outputs, {}, parameters));
  front::ToFront message;
  REQUIRE(message.ParseFromArray(frame->data(), static_cast<int>(frame->size())));
  REQUIRE(message.done().responses_size() == 3);
  CHECK(message.done().responses(0).parameters(0).text() == "v3");
  auto read = parse_outcome(frame);
  REQUIRE(read.ok());
  REQUIRE((*read)->outputs.ok());
  const ResponseParameters& again = (*read)->parameters;
  REQUIRE(again.size() == 3);
  REQUIRE(again[0].size() == 2);
  CHECK(again[0][1].name == "n");
  CHECK(again[0][1].value == Value(-7));
  CHECK(again[1].empty());
  REQUIRE(again[2].size() == 2);
  CHECK(again[2][0].value == Value(0.5));
  CHECK(again[2][1].value == Value(true));
  message.mutable_done()->mutable_responses(0)->mutable_parameters(0)->set_kind(9);
  CHECK_THAT(parse_outcome(bytes_of_message(message)).error().message, Contains("parameter"));
}

TEST_CASE("what protobuf writes is read") {
  front::ToFront message;
  message.mutable_done()->set_id(5);
  front::Tensor& tensor = *message.mutable_done()->add_outputs();
  tensor.set_name("y");
  tensor.set_dtype("i32");
  tensor.add_shape(1);
  tensor.add_shape(2);
  tensor.set_data("12345678");
  auto read = parse_outcome(bytes_of_message(message));
  REQUIRE(read.ok());
  REQUIRE(read->has_value());
  CHECK((*read)->outputs->at("y").shape == std::vector<int64_t>{1, 2});
  CHECK(*(*read)->outputs->at("y").data == "12345678");
}

TEST_CASE("another message is not an outcome, and a malformed one is an error") {
  front::ToFront leave;
  leave.mutable_leave()->set_grace_ms(5);
  auto other = parse_outcome(bytes_of_message(leave));
  REQUIRE(other.ok());
  CHECK_FALSE(other->has_value());
  auto fault = [](auto change) {
    front::ToFront message;
    front::Tensor& tensor = *message.mutable_done()->add_outputs();
    tensor.set_name("y");
    tensor.set_dtype("f32");
    tensor.add_shape(1);
    tensor.set_data("1234");
    change(message);
    auto read = parse_outcome(bytes_of_message(message));
    return read.ok() ? "" : read.error().message;
  };
  auto first = [](front::ToFront& message) -> front::Tensor& {
    return *message.mutable_done()->mutable_outputs(0);
  };
  CHECK(fault([](front::ToFront&) {}).empty());
  CHECK_THAT(fault([&](auto& message) { first(message).set_dtype("f33"); }), Contains("type"));
  CHECK_THAT(fault([&](auto& message) { first(message).set_data("123"); }), Contains("size"));
  CHECK_THAT(fault([&](auto& message) { first(message).set_shape(0, -1); }), Contains("size"));
  CHECK_THAT(fault([&](auto& message) {
               for (int i = 0; i < 3; i++) first(message).add_shape(INT64_MAX);
             }),
             Contains("size"));
  CHECK_THAT(fault([&](auto& message) {
               for (int i = 0; i < 100; i++) first(message).add_shape(1);
             }),
             Contains("shape"));
  CHECK_THAT(fault([&](auto& message) {
               *message.mutable_done()->add_outputs() = message.done().outputs(0);
             }),
             Contains("same name"));
}
