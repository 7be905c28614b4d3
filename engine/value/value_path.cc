// Resolves a path within a value; suggests the nearest name if the path or a word is wrong.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "engine/value/folder_files.hpp"
#include "flow/value.hpp"

namespace flow {
namespace {

constexpr size_t kNameMax = 100;  // longer words are not compared
constexpr size_t kNamesShown = 8;

// Equal except for case and separators: "batchSize" and "batch_size" have distance 0.
std::string folded(std::string_view word) {
  std::string out;
  for (char c : word) {
    if (c == '_' || c == '-' || c == '.' || c == ' ') continue;
    out.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(c))));
  }
  return out;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbors cost 1
// each.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  for (size_t j = 0; j <= b.size(); j++) previous[j] = j;
  for (size_t i = 1; i <= a.size(); i++) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); j++) {
      size_t replace = previous[j - 1] + (a[i - 1] != b[j - 1]);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

const char* kind_name(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::nil:
      return "nil";
    case Value::Kind::null:
      return "flow.null";
    case Value::Kind::missing:
      return "flow.missing";
    case Value::Kind::boolean:
      return "a boolean";
    case Value::Kind::integer:
      return "an integer";
    case Value::Kind::number:
      return "a number";
    case Value::Kind::string:
      return "a string";
    case Value::Kind::table:
      return "a table";
    case Value::Kind::tensor:
      return "a tensor";
    case Value::Kind::file:
      return "a file";
    case Value::Kind::ref:
      return "a handle";
  }
  return "a value";
}

std::string key_text(const Value& key) {
  if (key.kind() == Value::Kind::string) return "." + key.as_string();
  return "[" + to_json(key) + "]";
}

// "it has: a, b" or "did you mean `a`?": the names in `table`.
std::string what_there_is(const Value::Table& table, const Value& wanted) {
  std::vector<std::string> names;
  for (const auto& [key, value] : table.fields)
    if (key.kind() == Value::Kind::string) names.push_back(key.as_string());
  if (wanted.kind() == Value::Kind::string) {
    std::string nearest = nearest_name(wanted.as_string(), names);
    if (!nearest.empty()) return fmt::format("did you mean `{}`?", nearest);
  }
  std::string text;
  for (size_t i = 0; i < names.size() && i < kNamesShown; i++)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kNamesShown) text += fmt::format(" and {} more", names.size() - kNamesShown);
  if (!table.list.empty())
    text += fmt::format("{}{} {}", names.empty() ? "" : ", and ", table.list.size(),
                        table.list.size() == 1 ? "item" : "items");
  return text.empty() ? "it is an empty table" : "it has: " + text;
}

// `result.train` has no field `wieghts`: did you mean `weights`?
Error missing(const Value& whole, const Value& key, const std::string& place) {
  std::string what = key.kind() == Value::Kind::string ? fmt::format("field `{}`", key.as_string())
                                                       : fmt::format("item {}", key_text(key));
  std::string why = whole.kind() == Value::Kind::table ? what_there_is(whole.as_table(), key)
                                                       : fmt::format("it is {}", kind_name(whole));
  return {ErrorKind::task, fmt::format("`{}` has no {}: {}", place, what, why)};
}

/// Whether `word` is `name` with letters left out, as "chk" is "check": not the first one, and at
/// most half of them.
bool is_abbreviation(std::string_view word, std::string_view name) {
  constexpr size_t kLeast = 3;
  if (word.size() < kLeast || name.size() > 2 * word.size() || word[0] != name[0]) return false;
  size_t found = 0;
  for (char c : name)
    if (found < word.size() && word[found] == c) found++;
  return found == word.size();
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  if (word.empty() || word.size() > kNameMax) return "";
  std::string wanted = folded(word), nearest;
  // One edit per three letters: "trian" matches "train", "cat" does not match "dog".
  size_t best = std::max<size_t>(1, word.size() / 3) + 1;
  for (const std::string& name : names) {
    if (name.empty() || name.size() > kNameMax) continue;
    size_t distance = std::min(edit_distance(wanted, folded(name)), edit_distance(word, name));
    if (distance >= best || distance >= std::max(word.size(), name.size())) continue;
    best = distance;
    nearest = name;
  }
  if (!nearest.empty()) return nearest;
  for (const std::string& name : names) {
    bool is_shorter = nearest.empty() || name.size() < nearest.size();
    if (is_shorter && is_abbreviation(wanted, folded(name))) nearest = name;
  }
  return nearest;
}

std::vector<File> files_of(const File& folder) {
  std::vector<File> files;
  files.reserve(folder.entries.size());
  for (const File::Entry& entry : folder.entries) {
    File& file = files.emplace_back();
    file.name = entry.path;
    file.executable = entry.executable;
    file.size = entry.size;
    file.digest = entry.digest;
    if (!folder.origin.empty()) file.origin = folder.origin + "/" + entry.path;
  }
  return files;
}

Result<Value> value_at(const Value& value, const std::vector<PathStep>& path) {
  Value at = value;
  std::string place = "result";
  for (const PathStep& step : path) {
    if (at.kind() == Value::Kind::missing) return at;  // so is each of its parts
    if (!step.each && step.key.kind() == Value::Kind::null) {
      if (at.kind() != Value::Kind::file || !at.as_file().is_folder)
        return Error{ErrorKind::task,
                     fmt::format("`{}` is {}, and flow.list needs a folder", place, kind_name(at))};
      std::vector<Value> files;
      for (File& file : files_of(at.as_file())) files.emplace_back(std::move(file));
      at = Value::list(std::move(files));
      place = fmt::format("flow.list({})", place);
      continue;
    }
    if (!step.each) {
      const Value* part = at.find(step.key);
      if (!part) return missing(at, step.key, place);
      at = Value(*part);
      place += key_text(step.key);
      continue;
    }
    bool is_list = at.kind() == Value::Kind::table && at.as_table().fields.empty();
    if (!is_list)
      return Error{
          ErrorKind::task,
          fmt::format("`{}` is {}, and `:each` needs a list", place,
                      at.kind() == Value::Kind::table ? "a table with fields" : kind_name(at))};
    std::vector<Value> parts;
    parts.reserve(at.as_table().list.size());
    for (const Value& item : at.as_table().list) {
      if (item.kind() == Value::Kind::missing) {
        parts.push_back(item);
        continue;
      }
      const Value* part = item.find(step.key);
      if (!part) return missing(item, step.key, fmt::format("{}[{}]", place, parts.size() + 1));
      parts.push_back(*part);
    }
    at = Value::list(std::move(parts));
    place += ":each(" + to_json(step.key) + ")";
  }
  return at;
}

}  // namespace flow
