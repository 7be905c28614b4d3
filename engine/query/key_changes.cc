#include "engine/query/key_changes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/size_units.hpp"
#include "engine/query/code_diff.hpp"
#include "engine/value/utf8.hpp"

namespace flow {

namespace {

std::string shown(const std::string& text) { return text.empty() ? "" : "`" + text + "`"; }

std::string changed(const std::string& what, const std::string& before, const std::string& now) {
  if (before.empty() && now.empty()) return what + " changed";
  return fmt::format("{} changed from {} to {}", what,
                     before.empty() ? "other content" : shown(before),
                     now.empty() ? "other content" : shown(now));
}

/// The JSON of two different values, one line each, cut to start shortly before the first
/// difference.
std::pair<std::string, std::string> around_difference(const Value& before, const Value& now) {
  constexpr size_t kShown = 120, kBefore = 20;
  std::string old_text = to_json(before), new_text = to_json(now);
  if (old_text.size() <= kShown && new_text.size() <= kShown) return {old_text, new_text};
  size_t same = 0;
  while (same < std::min(old_text.size(), new_text.size()) && old_text[same] == new_text[same])
    same++;
  auto cut = [&](const std::string& text) {
    size_t at = same > kBefore ? same - kBefore : 0, end = std::min(text.size(), at + kShown);
    size_t from = character_begin(text, at), to = character_begin(text, end);
    return (from > 0 ? "…" : "") + text.substr(from, to - from) + (to < text.size() ? "…" : "");
  };
  return {cut(old_text), cut(new_text)};
}

/// "12 B, 029c…"
std::string content_text(uint64_t size, const Digest& digest) {
  return fmt::format("{}, {}", format_bytes(size), digest.hex());
}

std::string file_text(const File& file) {
  return fmt::format("{} `{}` ({})", file.is_folder ? "the folder" : "the file", file.name,
                     content_text(file.size, file.digest));
}

bool is_same_content(const File::Entry& a, const File::Entry& b) {
  return a.digest == b.digest && a.executable == b.executable;
}

/// Lists the differences between two values of an argument, item by item.
class ValueDifferences {
 public:
  std::vector<std::string> of(const std::string& what, const Value& before, const Value& now) {
    compare(what, before, now);
    if (count_ > kNamedMax)
      out_.push_back(fmt::format("{}: {} more differences", what, count_ - kNamedMax));
    return std::move(out_);
  }

 private:
  static constexpr size_t kNamedMax = 5, kFieldsMax = 1000;

  void add(std::string text) {
    if (++count_ <= kNamedMax) out_.push_back(std::move(text));
  }

  void compare(const std::string& what, const Value& before, const Value& now) {
    if (before == now) return;
    if (before.kind() == now.kind()) {
      if (now.kind() == Value::Kind::file)
        return compare_files(what, before.as_file(), now.as_file());
      if (now.kind() == Value::Kind::tensor)
        return compare_tensors(what, before.as_tensor(), now.as_tensor());
    }
    bool are_tables = before.kind() == Value::Kind::table && now.kind() == Value::Kind::table;
    if (!are_tables || before.as_table().fields.size() > kFieldsMax ||
        now.as_table().fields.size() > kFieldsMax) {
      auto [old_text, new_text] = around_difference(before, now);
      return add(changed(what, old_text, new_text));
    }
    compare_lists(what, before.as_table().list, now.as_table().list);
    compare_fields(what, before, now);
  }

  void compare_fields(const std::string& what, const Value& before, const Value& now) {
    for (const auto& [key, field] : now.as_table().fields) {
      const Value* old = field_of(before, key);
      if (old == nullptr) {
        add(fmt::format("{}{} is new: `{}`", what, label(key), short_json(field)));
      } else {
        compare(what + label(key), *old, field);
      }
    }
    for (const auto& [key, field] : before.as_table().fields) {
      if (field_of(now, key) == nullptr)
        add(fmt::format("{}{} is gone (it was `{}`)", what, label(key), short_json(field)));
    }
  }

  /// Items that were inserted or removed in one place do not make those after them differ.
  void compare_lists(const std::string& what, const std::vector<Value>& before,
                     const std::vector<Value>& now) {
    size_t both = std::min(before.size(), now.size()), begin = 0, end = 0;
    if (before.size() != now.size()) {
      while (begin < both && before[begin] == now[begin]) begin++;
      while (end < both - begin && before[before.size() - 1 - end] == now[now.size() - 1 - end])
        end++;
    }
    size_t paired = both - end;
    for (size_t i = begin; i < paired; i++)
      compare(fmt::format("{}[{}]", what, i + 1), before[i], now[i]);
    if (before.size() == now.size()) return;
    const std::vector<Value>& longer = before.size() > now.size() ? before : now;
    size_t others = longer.size() - both;
    add(fmt::format("{} has {} item{} {}: `{}`{}", what, others, others == 1 ? "" : "s",
                    before.size() > now.size() ? "less" : "more", item_text(longer[paired]),
                    others == 1 ? "" : " and others"));
  }

  void compare_files(const std::string& what, const File& before, const File& now) {
    if (before.is_folder && now.is_folder && before.name == now.name)
      return compare_folders(what, before, now);
    bool is_same = before.digest == now.digest && before.is_folder == now.is_folder;
    if (!is_same && before.name == now.name)
      return add(fmt::format("{}: `{}` changed (it was {}, and is {})", what, now.name,
                             content_text(before.size, before.digest),
                             content_text(now.size, now.digest)));
    if (before.name != now.name)
      return add(fmt::format("{} changed from {} to {}", what, file_text(before), file_text(now)));
    if (before.executable != now.executable)
      add(fmt::format("{}: `{}` is {} executable", what, now.name,
                      now.executable ? "now" : "no longer"));
  }

  void compare_folders(const std::string& what, const File& before, const File& now) {
    std::map<std::string_view, const File::Entry*> old;
    for (const File::Entry& entry : before.entries) old[entry.path] = &entry;
    auto add_entry = [&](std::string_view path, const char* how) {
      add(fmt::format("{}: `{}/{}` {}", what, now.name, path, how));
    };
    for (const File::Entry& entry : now.entries) {
      auto found = old.find(entry.path);
      if (found == old.end()) {
        add_entry(entry.path, "is new");
      } else {
        if (!is_same_content(*found->second, entry)) add_entry(entry.path, "changed");
        old.erase(found);
      }
    }
    for (const auto& [path, entry] : old) add_entry(path, "is gone");
  }

  void compare_tensors(const std::string& what, const Tensor& before, const Tensor& now) {
    if (before.dtype == now.dtype && before.shape == now.shape)
      return add(fmt::format("{}: the elements of the tensor changed", what));
    add(changed(what, to_json(Value(before)), to_json(Value(now))));
  }

  static std::string item_text(const Value& item) {
    return item.kind() == Value::Kind::file ? item.as_file().name : short_json(item);
  }

  static std::string label(const Value& key) {
    return key.kind() == Value::Kind::string ? "." + key.as_string() : "[" + to_json(key) + "]";
  }

  static const Value* field_of(const Value& table, const Value& key) {
    for (const auto& [name, field] : table.as_table().fields)
      if (name == key) return &field;
    return nullptr;
  }

  std::vector<std::string> out_;
  size_t count_ = 0;
};

void add_code_changes(const TaskDef& before, const TaskDef& now, std::vector<KeyChange>& out) {
  size_t count_before = out.size();
  std::map<std::string, const CodeComponent*> old;
  for (const CodeComponent& part : before.code_components) old[part.name] = &part;
  for (const CodeComponent& part : now.code_components) {
    auto found = old.find(part.name);
    if (found == old.end()) {
      std::string text = fmt::format("{} is new in what its code depends on", part.name);
      out.push_back({text, text});
      continue;
    }
    const CodeComponent& was = *found->second;
    if (was.digest != part.digest)
      out.push_back({part.name, changed(part.name, was.text, part.text), was.source, part.source});
    old.erase(found);
  }
  for (const auto& [name, part] : old) {
    std::string text = fmt::format("{} is no longer part of its code", name);
    out.push_back({text, text});
  }
  if (out.size() == count_before) out.push_back({"its code", "its code changed"});
}

/// Commands of one line are written in full, others as their changed lines. Those that are too long
/// for that, or that differ only at their end, are written in full too.
std::string command_change(const std::string& before, const std::string& now) {
  SourceLines old_lines = lines_of(before), new_lines = lines_of(now);
  bool is_one_line = old_lines.lines.size() <= 1 && new_lines.lines.size() <= 1;
  std::vector<std::string> lines;
  if (!is_one_line) lines = line_diff(old_lines, new_lines);
  if (lines.empty()) return fmt::format("its command changed from\n  {}\nto\n  {}", before, now);
  std::string text = "its command changed:";
  for (const std::string& line : lines) text += "\n    " + line;
  return text;
}

std::string label_of(const KeyComponent& part) {
  return part.label.empty() ? part.name : part.label;
}

void add_argument_changes(const KeyComponent& before, const KeyComponent& now,
                          std::vector<KeyChange>& out) {
  std::string label = label_of(now);
  std::vector<std::string> texts;
  if (before.value && now.value) texts = ValueDifferences().of(label, *before.value, *now.value);
  if (texts.empty()) texts.push_back(changed(label, before.text, now.text));
  std::string from = now.from.empty() ? "" : fmt::format(" (from `{}`)", now.from);
  for (std::string& text : texts) out.push_back({label, std::move(text) + from});
}

}  // namespace

std::vector<KeyChange> key_changes(const KeyParts& before, const KeyParts& now) {
  std::vector<KeyChange> out;
  std::map<std::string, const KeyComponent*> old;
  for (const KeyComponent& part : before.components) old[part.name] = &part;
  for (const KeyComponent& part : now.components) {
    auto found = old.find(part.name);
    if (found == old.end()) {
      out.push_back(
          {label_of(part) + " is new",
           label_of(part) + " is new" + (part.text.empty() ? "" : ": " + shown(part.text))});
      continue;
    }
    if (found->second->digest != part.digest) {
      if (part.name == "code") {
        add_code_changes(before.def, now.def, out);
      } else if (part.name == "command") {
        out.push_back(
            {"its command", command_change(before.def.shell.command, now.def.shell.command)});
      } else {
        add_argument_changes(*found->second, part, out);
      }
    }
    old.erase(found);
  }
  for (const auto& [name, part] : old) {
    out.push_back({label_of(*part) + " is gone",
                   label_of(*part) + " is gone" +
                       (part->text.empty() ? "" : " (it was " + shown(part->text) + ")")});
  }
  return out;
}

std::string joined_causes(const std::vector<KeyChange>& changes) {
  std::set<std::string> causes;
  for (const KeyChange& change : changes) causes.insert(change.cause);
  std::string text;
  for (const std::string& cause : causes) text += (text.empty() ? "" : "; ") + cause;
  return text;
}

std::string joined_texts(const std::vector<KeyChange>& changes) {
  std::string text;
  for (const KeyChange& change : changes) text += (text.empty() ? "" : "; ") + change.text;
  return text;
}

}  // namespace flow
