// A state as a safetensors file, and its restoration.
#include "engine/blobs/checkpoint.hpp"

#include <catch2/catch.hpp>
#include <cstring>

using namespace flow;

namespace {

Value tensor_of(DType dtype, std::vector<int64_t> shape, const std::string& bytes) {
  Tensor tensor;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.data = std::make_shared<const std::string>(bytes);
  return Value(std::move(tensor));
}

Bytes content_of(const CheckpointFile& file) {
  std::string all = file.head;
  for (const Bytes& tensor : file.tensors) all += *tensor;
  return std::make_shared<const std::string>(std::move(all));
}

bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  if (a.kind() == Value::Kind::tensor)
    return a.as_tensor().dtype == b.as_tensor().dtype &&
           a.as_tensor().shape == b.as_tensor().shape && *a.as_tensor().data == *b.as_tensor().data;
  if (a.kind() != Value::Kind::table) return a == b;
  const Value::Table &x = a.as_table(), &y = b.as_table();
  if (x.list.size() != y.list.size() || x.fields.size() != y.fields.size()) return false;
  for (size_t i = 0; i < x.list.size(); i++)
    if (!same(x.list[i], y.list[i])) return false;
  for (size_t i = 0; i < x.fields.size(); i++)
    if (!(x.fields[i].first == y.fields[i].first && same(x.fields[i].second, y.fields[i].second)))
      return false;
  return true;
}

}  // namespace

TEST_CASE("tensors of a state are named by their paths in the file") {
  Value inner = Value::map({{"weight", tensor_of(DType::f32, {2}, "12345678")},
                            {"bias", tensor_of(DType::u8, {}, "x")}});
  Value state = Value::map({{"model", Value::list({inner, tensor_of(DType::i64, {0, 3}, "")})},
                            {"step", 7},
                            {"name", "a\nb"},
                            {"raw", std::string("\xff\x00", 2)},
                            {3, Value(true)}});
  auto file = flatten_checkpoint(state);
  REQUIRE(file.ok());
  Bytes content = content_of(*file);
  auto header = read_safetensors(*content, content->size());
  REQUIRE(header.ok());
  std::vector<std::string> names;
  for (const SafetensorsEntry& tensor : header->tensors) names.push_back(tensor.name);
  CHECK(names == std::vector<std::string>{"model.2", "model.1.weight", "model.1.bias"});
  auto text = std::find_if(header->metadata.begin(), header->metadata.end(),
                           [](const auto& each) { return each.first == "state"; });
  REQUIRE(text != header->metadata.end());
  CHECK_THAT(text->second, Catch::Contains(R"("weight":"model.1.weight")"));
  auto back = unflatten_checkpoint(content);
  REQUIRE(back.ok());
  CHECK(same(*back, state));
}

TEST_CASE("tensors whose paths look alike get different names") {
  Value state = Value::map({{"a.b", tensor_of(DType::u8, {1}, "1")},
                            {"a", Value::map({{"b", tensor_of(DType::u8, {1}, "2")}})},
                            {"__metadata__", tensor_of(DType::u8, {1}, "3")},
                            {"", tensor_of(DType::u8, {1}, "4")},
                            {1, tensor_of(DType::u8, {1}, "5")},
                            {"1", tensor_of(DType::u8, {1}, "6")},
                            {"\xff", tensor_of(DType::u8, {1}, "7")}});
  auto file = flatten_checkpoint(state);
  REQUIRE(file.ok());
  auto back = unflatten_checkpoint(content_of(*file));
  REQUIRE(back.ok());
  CHECK(same(*back, state));
  Value alone = tensor_of(DType::f16, {1, 1}, "ab");
  CHECK(same(*unflatten_checkpoint(content_of(*flatten_checkpoint(alone))), alone));
}

TEST_CASE("a foreign file, and one with a tensor of another shape, are not checkpoints") {
  SafetensorsHeader header;
  header.tensors.push_back({"x", DType::u8, {1}});
  std::string other = *lay_out_safetensors(header) + "1";
  CHECK_FALSE(unflatten_checkpoint(std::make_shared<const std::string>(other)).ok());
  CHECK_FALSE(unflatten_checkpoint(std::make_shared<const std::string>("short")).ok());
  auto file = flatten_checkpoint(tensor_of(DType::u8, {2}, "12"));
  std::string content(*content_of(*file));
  content.replace(content.find("\"shape\":[2]"), 11, "\"shape\":[2,1]");
  uint64_t length = content.size() - 2 - 8;
  std::memcpy(content.data(), &length, sizeof length);
  CHECK_FALSE(unflatten_checkpoint(std::make_shared<const std::string>(content)).ok());
}

TEST_CASE("a row is a state or the path of its file, and a row of an older version is a state") {
  Value state = Value::map({{"step", 1}});
  auto row = decode_checkpoint_row(encode_checkpoint_row({state, "", {}}, Value()));
  REQUIRE(row.ok());
  CHECK(*row->state == state);
  Digest digest = sha256("x");
  File file;
  file.name = "f";
  file.digest = sha256("content");
  std::string bytes = encode_checkpoint_row({std::nullopt, "checkpoints/r/t/1.safetensors", digest},
                                            files_in(Value::map({{"f", file}})));
  row = decode_checkpoint_row(
      encode_checkpoint_row({state, "", {}, {{"loss", 7}, {"a.b", -1}}}, Value()));
  REQUIRE(row.ok());
  CHECK(*row->state == state);
  CHECK(row->metric_steps == MetricSteps{{"loss", 7}, {"a.b", -1}});
  row = decode_checkpoint_row(bytes);
  REQUIRE(row.ok());
  CHECK_FALSE(row->state);
  CHECK(row->file == "checkpoints/r/t/1.safetensors");
  CHECK(row->digest == digest);
  std::vector<Digest> needed;
  collect_blobs(*decode_value(bytes), needed);
  CHECK(needed == std::vector<Digest>{file.digest});
  CHECK(*decode_checkpoint_row(encode_value(state))->state == state);
}
