// Words of an entry are separated by blanks; a name ends at its colon.
#include "kernels/jit/signature.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "flow/dtype.hpp"

namespace flow::jit {
namespace {

constexpr size_t kNameMax = 100;
constexpr size_t kShownMax = 60;  // bytes of user text in a message
constexpr int kDimMax = 8;
constexpr std::string_view kBlanks = " \t\r\n";

std::string shown(std::string_view text) {
  std::string out;
  for (char c : text.substr(0, kShownMax)) out += c >= ' ' && c != 127 ? c : ' ';
  return text.size() > kShownMax ? out + "…" : out;
}

std::string_view trimmed(std::string_view text) {
  size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> parts;
  for (;;) {
    size_t end = text.find_first_of(separators);
    std::string_view part = trimmed(text.substr(0, end));
    if (separators == "," || !part.empty()) parts.push_back(part);
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

bool is_identifier(std::string_view name) {
  auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  auto fits = [&](char c) { return is_letter(c) || (c >= '0' && c <= '9'); };
  return !name.empty() && name.size() <= kNameMax && is_letter(name[0]) &&
         std::all_of(name.begin(), name.end(), fits);
}

// An entry whose `of` is still a name.
struct SignatureEntry {
  KernelParameter parameter;
  std::string_view text, of;
};

Error bad(const SignatureEntry& entry, const std::string& why) {
  return user_error(fmt::format("`{}` {}", shown(entry.text), why));
}

Status read_dtype(const SignatureEntry& entry, std::string_view word, DType& out) {
  if (parse_dtype(word, out)) return {};
  return bad(entry, fmt::format("has the type `{}`: there are f32, f64, f16, bf16, i64, i32, u8 "
                                "and bool",
                                shown(word)));
}

// "count of y", "i32 count of y", "size 1 of y"
Status read_size(SignatureEntry& entry, std::vector<std::string_view> words) {
  KernelParameter& parameter = entry.parameter;
  parameter.role = ParameterRole::size;
  parameter.dtype = DType::i64;
  if (words[0] == "i32" || words[0] == "i64") {
    FLOW_TRY(read_dtype(entry, words[0], parameter.dtype));
    words.erase(words.begin());
  }
  if (words.size() == 4 && words[0] == "size") {
    const char* end = words[1].data() + words[1].size();
    auto [stop, error] = std::from_chars(words[1].data(), end, parameter.dim);
    if (error != std::errc() || stop != end || parameter.dim < 1 || parameter.dim > kDimMax)
      return bad(entry, fmt::format("names no dimension: they are 1 to {}", kDimMax));
    words.erase(words.begin() + 1);
    words[0] = "count";
  }
  if (words.size() != 3 || words[0] != "count" || words[1] != "of")
    return bad(entry, "is not a size: write `n: count of x` or `n: size 1 of x`");
  entry.of = words[2];
  return {};
}

// "in f32", "out f32 like x", "out f32"
Status read_tensor(SignatureEntry& entry, const std::vector<std::string_view>& words) {
  KernelParameter& parameter = entry.parameter;
  parameter.role = words[0] == "in"    ? ParameterRole::in
                   : words[0] == "out" ? ParameterRole::out
                                       : ParameterRole::inout;
  if (words.size() < 2) return bad(entry, fmt::format("lacks its type: `{} f32`", words[0]));
  FLOW_TRY(read_dtype(entry, words[1], parameter.dtype));
  if (words.size() == 2) return {};
  if (parameter.role != ParameterRole::out || words.size() != 4 || words[2] != "like")
    return bad(entry, "has more text after its type: only `out f32 like x` does");
  entry.of = words[3];
  return {};
}

Status read_words(SignatureEntry& entry, const std::vector<std::string_view>& words) {
  if (words.empty())
    return bad(entry, "lacks its kind: a type, or `in`, `out` or `inout` and a type");
  if (words[0] == "in" || words[0] == "out" || words[0] == "inout")
    return read_tensor(entry, words);
  bool has_width = words[0] == "i32" || words[0] == "i64";
  std::string_view word = has_width && words.size() > 1 ? words[1] : words[0];
  if (word == "count" || word == "size") return read_size(entry, words);
  if (words.size() > 1) return bad(entry, "has more text after its type");
  DType& dtype = entry.parameter.dtype;
  FLOW_TRY(read_dtype(entry, words[0], dtype));
  if (dtype == DType::f16 || dtype == DType::bf16)
    return bad(entry, "is a number of a type that only tensors have: take f32");
  return {};
}

Result<SignatureEntry> read_entry(std::string_view text) {
  SignatureEntry entry;
  entry.text = text;
  if (text.empty())
    return user_error("an entry is empty: entries are separated by one comma, `a: f32, x: in f32`");
  size_t colon = text.find(':');
  if (colon == std::string_view::npos)
    return bad(entry, "has no colon: an entry is `name: what it is`, such as `x: in f32`");
  std::string_view name = trimmed(text.substr(0, colon));
  if (!is_identifier(name))
    return bad(
        entry,
        fmt::format("has an invalid name: it needs up to {} letters, digits and _, no digit first",
                    kNameMax));
  entry.parameter.name = name;
  FLOW_TRY(read_words(entry, split(text.substr(colon + 1), kBlanks)));
  return entry;
}

// Resolves the name in `like` and `of`.
Status resolve(const KernelSignature& signature, const SignatureEntry& entry,
               KernelParameter& parameter) {
  if (entry.of.empty()) return {};
  parameter.of = signature.find(entry.of);
  if (parameter.of < 0 || !signature.parameters[static_cast<size_t>(parameter.of)].is_tensor())
    return bad(entry,
               fmt::format("names `{}`, which is not a tensor of the signature", shown(entry.of)));
  if (parameter.role == ParameterRole::out &&
      signature.parameters[static_cast<size_t>(parameter.of)].role == ParameterRole::out)
    return bad(entry, "has the shape of another `out`: name an `in` or `inout`");
  return {};
}

}  // namespace

int KernelSignature::find(std::string_view name) const {
  for (size_t i = 0; i < parameters.size(); i++)
    if (parameters[i].name == name) return static_cast<int>(i);
  return -1;
}

int KernelSignature::count(ParameterRole role) const {
  return static_cast<int>(
      std::count_if(parameters.begin(), parameters.end(),
                    [&](const KernelParameter& each) { return each.role == role; }));
}

std::string KernelSignature::given_text() const {
  std::string text;
  for (const KernelParameter& each : parameters)
    if (each.is_given()) text += (text.empty() ? "" : ", ") + each.name;
  return "(" + text + ")";
}

Result<KernelSignature> parse_signature(std::string_view text) {
  if (text.size() > kSignatureMax)
    return user_error(fmt::format("it has {} bytes: at most {}", text.size(), kSignatureMax));
  std::vector<std::string_view> parts = split(text, ",");
  if (parts.size() > kParametersMax)
    return user_error(fmt::format("it has {} entries: at most {}", parts.size(), kParametersMax));
  KernelSignature signature;
  std::vector<SignatureEntry> entries;
  for (std::string_view part : parts) {
    Result<SignatureEntry> entry = read_entry(part);
    if (!entry.ok()) return entry.error();
    if (signature.find(entry->parameter.name) >= 0)
      return bad(*entry, "has the name of an earlier entry");
    signature.parameters.push_back(entry->parameter);
    entries.push_back(std::move(*entry));
  }
  for (size_t i = 0; i < entries.size(); i++)
    FLOW_TRY(resolve(signature, entries[i], signature.parameters[i]));
  if (signature.count(ParameterRole::out) + signature.count(ParameterRole::inout) == 0)
    return user_error("it has no result: it needs an `out` or an `inout`");
  return signature;
}

std::string text_of(const KernelSignature& signature, const KernelParameter& parameter) {
  auto of = [&] { return signature.parameters[static_cast<size_t>(parameter.of)].name; };
  std::string text = parameter.name + ": ";
  if (parameter.role == ParameterRole::size) {
    if (parameter.dtype != DType::i64) text += std::string(dtype_name(parameter.dtype)) + " ";
    text += parameter.dim == 0 ? "count" : fmt::format("size {}", parameter.dim);
    return text + " of " + of();
  }
  if (parameter.is_tensor())
    text += parameter.role == ParameterRole::in    ? "in "
            : parameter.role == ParameterRole::out ? "out "
                                                   : "inout ";
  text += dtype_name(parameter.dtype);
  if (parameter.of >= 0) text += " like " + of();
  return text;
}

std::string text_of(const KernelSignature& signature) {
  std::string text;
  for (const KernelParameter& each : signature.parameters)
    text += (text.empty() ? "" : ", ") + text_of(signature, each);
  return text;
}

}  // namespace flow::jit
