// Values as their canonical bytes.
#include "engine/value/encoded_value.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "engine/plan/plan.hpp"
#include "tests/base/random_value.hpp"

using namespace flow;

namespace {

std::vector<uint32_t> refs_in(const EncodedValue& value) {
  std::vector<uint32_t> found;
  for_each_ref(value, [&](uint32_t node) { found.push_back(node); });
  return found;
}

Value ref(uint32_t node, std::vector<PathStep> path = {}) {
  return Value(Ref{node, std::move(path)});
}

}  // namespace

TEST_CASE("an encoded value keeps its bytes, few and many") {
  CHECK(EncodedValue().value().is_nil());
  CHECK(EncodedValue() == EncodedValue(Value()));
  for (size_t size : {0, 1, 13, 14, 15, 16, 17, 300, 70'000}) {
    Value text(std::string(size, 'x'));
    EncodedValue encoded = text;
    CHECK(encoded.bytes() == encode_value(text));
    CHECK(encoded.value() == text);
    EncodedValue copy = encoded;
    EncodedValue moved = std::move(encoded);
    CHECK(copy == moved);
    copy = EncodedValue(Value(7));
    CHECK(copy.value() == Value(7));
    CHECK(moved.value() == text);
    moved = copy;
    CHECK(moved.value() == Value(7));
  }
}

TEST_CASE("the refs of an encoded value are those of the value") {
  CHECK(refs_in(Value::list({Value(26222), Value("text"), Value(2.5), Value(-1)})).empty());
  CHECK(refs_in(ref(70'000)) == std::vector<uint32_t>{70'000});
  File file;
  file.name = "file";
  Value nested =
      Value::list({ref(1), Value::map({{"a", ref(2, {{true, Value("key")}, {false, 3}})}}),
                   Value(file), Value("\xff\x00"), ref(300), ref(1)});
  CHECK(refs_in(nested) == std::vector<uint32_t>{1, 2, 300, 1});
  Ref places{5, {}, true};
  CHECK(refs_in(Value(places)) == std::vector<uint32_t>{5});
}

TEST_CASE("a random value is read back from its bytes, with the same refs") {
  test::RandomValue random(9);
  for (int i = 0; i < 2000; i++) {
    Value value = random.value();
    EncodedValue encoded = value;
    CHECK(encode_value(encoded.value()) == encode_value(value));
    std::vector<uint32_t> wanted, found = refs_in(encoded);
    for_each_ref(value, [&](uint32_t node) { wanted.push_back(node); });
    std::sort(wanted.begin(), wanted.end());
    std::sort(found.begin(), found.end());
    CHECK(found == wanted);
  }
}
