// JSON text without its long lists of numbers. A parser that looks for the fields of a request
// would index each number of them, which takes as long as reading the numbers.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace flow {

struct JsonOutline {
  struct List {
    size_t at;              // of its bracket in `text`
    std::string_view list;  // the list itself, in the original
  };
  std::string text;  // each list of `lists` is `[0]` here
  std::vector<List> lists;
};

/// The list of a field `data` is left out if it is long and has no strings. The original and its
/// outline are then both valid JSON with the same fields, or the lists or the rest are not valid.
JsonOutline outline_json(std::string_view json);

}  // namespace flow
