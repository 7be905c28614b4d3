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
  for (int64_t columns : {0, 3, 100'000}) {
    Tensors first = {{"x", tensor_of(DType::f32, {2, columns}, 'a')},
                     {"y", tensor_of(DType::u8, {2}, 'b')}};
    Tensors second = {{"x", tensor_of(DType::f32, {5, columns}, 'c')},
                      {"y", tensor_of(DType::u8, {5}, 'd')}};
    for (const std::vector<const Tensors*>& parts :
         {std::vector<const Tensors*>{&first}, {&first, &second}}) {
      FramePieces pieces = batch_frame(77, parts);
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
      check_equal((*read)->inputs, joined);
    }
  }
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
  Bytes frame = message_of_pieces(batch_frame(1, {&good}));
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
    CHECK_FALSE(parse_batch(message_of_pieces(batch_frame(1, {&bad}))).ok());
    CHECK_FALSE(parse_outcome(message_of_pieces(outcome_frame(1, bad))).ok());
  }
}

TEST_CASE("large tensors are sent from their own memory") {
  Tensors inputs = {{"x", tensor_of(DType::u8, {1, 1 << 20}, 'a')}};
  FramePieces pieces = batch_frame(1, {&inputs});
  CHECK(std::ranges::any_of(
      pieces, [&](const Bytes& piece) { return piece->data() == inputs.at("x").data->data(); }));
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
