// Random values for tests: all kinds, edge cases of numbers and strings, some nesting.
#pragma once
#include <cmath>
#include <limits>
#include <random>

#include "flow/value.hpp"

namespace flow::test {

class RandomValue {
 public:
  explicit RandomValue(uint64_t seed) : random_(seed) {}

  uint64_t below(uint64_t n) { return random_() % n; }

  Value value(int depth = 4) {
    switch (below(depth > 0 ? 13 : 9)) {
      case 0:
        return {};
      case 1:
        return Value::null();
      case 2:
        return Value(below(2) == 0);
      case 3:
      case 4:
        return Value(integer());
      case 5:
      case 6:
        return Value(number());
      case 7:
      case 8:
        return Value(string());
      case 9:
        return Value::list(items(depth));
      case 10:
        return table(depth);
      case 11:
        return below(2) ? Value(tensor()) : Value(file());
      default:
        return Value(ref());
    }
  }

  int64_t integer() {
    auto bits = static_cast<int64_t>(random_());
    return bits >> below(64);
  }

  double number() {
    constexpr double kAwkward[] = {0.0,      -0.0,  0.1,    65504.0,  65505.0,   0x1p-24, 0x1p-25,
                                   0x1p-149, 1e300, 5e-324, HUGE_VAL, -HUGE_VAL, NAN};
    if (below(2)) return kAwkward[below(std::size(kAwkward))];
    uint64_t bits = random_();
    double number;
    std::memcpy(&number, &bits, sizeof number);
    return below(2) ? number : static_cast<double>(static_cast<float>(number));
  }

  std::string string() {
    static const char* kAwkward[] = {"", "a", "é", "日本", "\xff\xfe", "$map", "\n\"\\", "nil"};
    if (below(2)) return kAwkward[below(std::size(kAwkward))];
    std::string text(below(40), ' ');
    for (char& c : text) c = static_cast<char>(below(4) ? 'a' + below(26) : below(256));
    return text;
  }

  Digest digest() { return sha256(std::to_string(random_())); }

 private:
  std::vector<Value> items(int depth) {
    std::vector<Value> items;
    for (uint64_t n = below(5); n > 0; n--) items.push_back(value(depth - 1));
    return items;
  }

  Value table(int depth) {
    Value::Table table;
    if (below(2)) table.list = items(depth);
    for (uint64_t n = below(6); n > 0; n--) {
      Value key = below(6) == 0 ? Value(below(2) == 0)
                  : below(2)    ? Value(string())
                                : Value(static_cast<int64_t>(below(8)) - 2);
      table.fields.emplace_back(std::move(key), value(depth - 1));
    }
    return Value(std::move(table));
  }

  Tensor tensor() {
    Tensor tensor{static_cast<DType>(below(8)), {}, digest(), nullptr};
    for (uint64_t n = below(4); n > 0; n--)
      tensor.shape.push_back(static_cast<int64_t>(below(1000)));
    return tensor;
  }

  File file() {
    File file;
    file.name = string();
    file.executable = below(2);
    file.is_folder = below(2);
    file.anonymous = below(2);
    file.size = random_();
    file.digest = digest();
    if (file.is_folder) file.entries.push_back({string(), below(2) == 0, below(1000), digest()});
    if (below(2)) file.origin = "/data/" + string();
    return file;
  }

  Ref ref() {
    Ref ref;
    ref.node = static_cast<uint32_t>(random_());
    for (uint64_t n = below(3); n > 0; n--) ref.path.push_back({below(2) == 0, Value(string())});
    return ref;
  }

  std::mt19937_64 random_;
};

}  // namespace flow::test
