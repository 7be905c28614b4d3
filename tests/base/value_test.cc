// Construction, lookup and comparison of values, and paths into them.
#include <catch2/catch.hpp>

#include "flow/tags.hpp"
#include "tests/base/random_value.hpp"

using namespace flow;

TEST_CASE("a table moves keys 1..n to its list and sorts the rest") {
  Value value = Value::map({{"b", 1},
                            {3, "c"},
                            {"a", 2},
                            {1, "a"},
                            {2, "b"},
                            {7, 7},
                            {-1, 0},
                            {true, 1},
                            {false, 0},
                            {"gone", Value()}});
  const Value::Table& table = value.as_table();
  CHECK(table.list == std::vector<Value>{"a", "b", "c"});
  std::vector<std::pair<Value, Value>> fields = {{-1, 0},  {7, 7},     {"a", 2},
                                                 {"b", 1}, {false, 0}, {true, 1}};
  CHECK(table.fields == fields);
}

TEST_CASE("the last of equal keys counts, and 2.0 is the key 2") {
  CHECK(Value::map({{"a", 1}, {"a", 2}}) == Value::map({{"a", 2}}));
  CHECK(Value::map({{"a", 1}, {"a", Value()}}) == Value::list({}));
  CHECK(Value::map({{1.0, "x"}, {2.0, "y"}}) == Value::list({"x", "y"}));
  CHECK(Value(Value::Table{{"x"}, {{1, "y"}}}) == Value::list({"y"}));
}

TEST_CASE("a pure list keeps its nils, and with fields everything after a hole is a field") {
  Value arguments = Value::list({Value(), "x", Value()});
  CHECK(arguments.as_table().list.size() == 3);
  Value mixed = Value::Table{{"a", Value(), "c"}, {{"n", 1}}};
  CHECK(mixed == Value::map({{1, "a"}, {3, "c"}, {"n", 1}}));
  CHECK(mixed.as_table().list.size() == 1);
}

TEST_CASE("find looks in the list and the fields") {
  Value value = Value::Table{{"one", "two"}, {{"k", 1}, {10, "ten"}, {true, "yes"}}};
  CHECK(*value.find("k") == Value(1));
  CHECK(*value.find(Value(2)) == Value("two"));
  CHECK(*value.find(Value(10)) == Value("ten"));
  CHECK(*value.find(Value(true)) == Value("yes"));
  CHECK(value.find(Value(false)) == nullptr);
  CHECK(value.find(Value(3)) == nullptr);
  CHECK(value.find(Value(0)) == nullptr);
  CHECK(value.find("j") == nullptr);
  CHECK(value.find("z") == nullptr);
  CHECK(Value(1).find("k") == nullptr);
}

TEST_CASE("values are compared by content") {
  CHECK(Value(NAN) == Value(-NAN));
  CHECK_FALSE(Value(0.0) == Value(-0.0));
  CHECK_FALSE(Value(1) == Value(1.0));
  CHECK_FALSE(Value() == Value::null());
  CHECK(Value(Tensor{DType::i32, {2}, sha256("x"), nullptr}) ==
        Value(Tensor{DType::i32, {2}, sha256("x"), std::make_shared<std::string>("x")}));
}

TEST_CASE("only nil, null and false are falsy") {
  CHECK_FALSE(Value().truthy());
  CHECK_FALSE(Value::null().truthy());
  CHECK_FALSE(Value(false).truthy());
  CHECK(Value(0).truthy());
  CHECK(Value("").truthy());
  CHECK(Value::list({}).truthy());
}

TEST_CASE("dtypes have names and sizes") {
  for (auto [name, size] : {std::pair{"f32", 4},
                            {"f16", 2},
                            {"bf16", 2},
                            {"f64", 8},
                            {"i64", 8},
                            {"i32", 4},
                            {"u8", 1},
                            {"bool", 1}}) {
    DType dtype;
    REQUIRE(parse_dtype(name, dtype));
    CHECK(std::string(dtype_name(dtype)) == name);
    CHECK(dtype_size(dtype) == static_cast<size_t>(size));
  }
  DType dtype;
  CHECK_FALSE(parse_dtype("float", dtype));
}

TEST_CASE("blobs are visited depth first, and those of a folder are its files") {
  File folder;
  folder.is_folder = true;
  folder.digest = sha256("listing");
  folder.entries = {{"a", false, 1, sha256("a")}, {"b", false, 1, sha256("b")}};
  File file;
  file.digest = sha256("file");
  Value value = Value::map({{"x", Tensor{DType::u8, {1}, sha256("t"), nullptr}},
                            {"y", Value::list({Value(folder), Value(file)})}});
  std::vector<Digest> blobs;
  collect_blobs(value, blobs);
  CHECK(blobs == std::vector<Digest>{sha256("t"), sha256("a"), sha256("b"), sha256("file")});
}

TEST_CASE("a path leads to a part, also of each item") {
  Value value = Value::map(
      {{"layers", Value::list({Value::map({{"bam", "1"}}), Value::map({{"bam", "2"}})})}});
  CHECK(*value_at(value, {}) == value);
  CHECK(*value_at(value, {{false, "layers"}, {false, 2}, {false, "bam"}}) == Value("2"));
  CHECK(*value_at(value, {{false, "layers"}, {true, "bam"}}) == Value::list({"1", "2"}));
}

TEST_CASE("an error for a missing part lists the existing ones") {
  Value value =
      Value::map({{"train", Value::list({Value::map({{"weights", 1}}), 5})}, {"test", 2}});
  auto message = [&](std::vector<PathStep> path) {
    auto part = value_at(value, path);
    CHECK_FALSE(part.ok());
    return part.ok() ? "" : part.error().message;
  };
  CHECK(message({{false, "trian"}}) == "`result` has no field `trian`: did you mean `train`?");
  CHECK(message({{false, "x"}}) == "`result` has no field `x`: it has: test, train");
  CHECK(message({{false, "train"}, {false, 3}}) ==
        "`result.train` has no item [3]: it has: 2 items");
  CHECK(message({{false, "test"}, {false, "y"}}) ==
        "`result.test` has no field `y`: it is an integer");
  CHECK(message({{false, "train"}, {true, "weights"}}) ==
        "`result.train[2]` has no field `weights`: it is an integer");
  CHECK(message({{true, "train"}}) == "`result` is a table with fields, and `:each` needs a list");
}

TEST_CASE("many names of nodes are one short text") {
  CHECK(joined_names({}) == "");
  CHECK(joined_names({"train"}) == "train");
  CHECK(joined_names({"align[2]", "align[10]", "align[1]", "align[3]"}) == "align[1..3,10]");
  CHECK(joined_names({"align[1]", "align[2]", "align[4]"}) == "align[1,2,4]");
  CHECK(joined_names({"train", "train#2", "train#3", "train#4"}) == "train, train#2..4");
  CHECK(joined_names({"align#2[1]", "align[1]", "align#2[2]"}) == "align#2[1,2], align[1]");
  CHECK(joined_names({"qc[a]", "qc[b]", "qc[c]", "qc[d]", "qc[e]"}) ==
        "qc[a], qc[b], qc[c] and 2 more");
  CHECK(joined_names({"sub[1]/t", "sub[2]/t"}) == "sub[1]/t, sub[2]/t");
}

TEST_CASE("the nearest name differs by a typing error only") {
  std::vector<std::string> names = {"train", "evaluate", "batch_size", "cpus", "gpus"};
  CHECK(nearest_name("trian", names) == "train");
  CHECK(nearest_name("Evaluate", names) == "evaluate");
  CHECK(nearest_name("batchSize", names) == "batch_size");
  CHECK(nearest_name("cpu", names) == "cpus");
  CHECK(nearest_name("evalaute", names) == "evaluate");
  CHECK(nearest_name("banana", names) == "");
  CHECK(nearest_name("", names) == "");
  CHECK(nearest_name("x", {"y"}) == "");
  CHECK(nearest_name("chk", {"checker", "checks", "check"}) == "check");
  CHECK(nearest_name("chk", {"change", "checking"}) == "");
  CHECK(nearest_name("ck", {"check"}) == "");
}
