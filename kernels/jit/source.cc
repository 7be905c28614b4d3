// The checks are C++ that the compiler evaluates, in a file with a name of its own.
#include "kernels/jit/source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

namespace flow::jit {
namespace {

constexpr std::string_view kCheckFile = "flow.kernel", kCheckMark = "flow-check-";
constexpr size_t kErrorsMax = 10;     // shown
constexpr size_t kTextMax = 8 << 10;  // bytes of a message

// ---- the text

// Every name begins with flow_: a source may define any other name as a macro.
constexpr std::string_view kTraits = R"(
namespace flow_check {
template <typename... flow_p> struct flow_list { static constexpr int flow_count = sizeof...(flow_p); };
template <typename... flow_p> __device__ flow_list<flow_p...> flow_of(void (*)(flow_p...));
template <int flow_at, typename flow_l> struct flow_nth { using flow_type = void; };
template <typename flow_t, typename... flow_p> struct flow_nth<0, flow_list<flow_t, flow_p...>> { using flow_type = flow_t; };
template <int flow_at, typename flow_t, typename... flow_p>
struct flow_nth<flow_at, flow_list<flow_t, flow_p...>> : flow_nth<flow_at - 1, flow_list<flow_p...>> {};
template <typename flow_t> struct flow_is { static constexpr int flow_value = 0; };
template <> struct flow_is<float> { static constexpr int flow_value = 1; };
template <> struct flow_is<double> { static constexpr int flow_value = 2; };
template <> struct flow_is<long long> { static constexpr int flow_value = 3; };
template <> struct flow_is<unsigned long long> { static constexpr int flow_value = 3; };
template <> struct flow_is<long> { static constexpr int flow_value = 3; };
template <> struct flow_is<unsigned long> { static constexpr int flow_value = 3; };
template <> struct flow_is<int> { static constexpr int flow_value = 4; };
template <> struct flow_is<unsigned> { static constexpr int flow_value = 4; };
template <> struct flow_is<unsigned char> { static constexpr int flow_value = 5; };
template <> struct flow_is<signed char> { static constexpr int flow_value = 5; };
template <> struct flow_is<char> { static constexpr int flow_value = 5; };
template <> struct flow_is<bool> { static constexpr int flow_value = 6; };
template <> struct flow_is<short> { static constexpr int flow_value = 7; };
template <> struct flow_is<unsigned short> { static constexpr int flow_value = 7; };
template <typename flow_t> struct flow_to {
  static constexpr bool flow_pointer = false, flow_constant = false;
  static constexpr int flow_value = -1;
};
template <typename flow_t> struct flow_to<flow_t*> {
  static constexpr bool flow_pointer = true, flow_constant = false;
  static constexpr int flow_value = flow_is<flow_t>::flow_value;
};
template <typename flow_t> struct flow_to<const flow_t*> {
  static constexpr bool flow_pointer = true, flow_constant = true;
  static constexpr int flow_value = flow_is<flow_t>::flow_value;
};
template <int flow_at, typename flow_l> using flow_number = flow_is<typename flow_nth<flow_at, flow_l>::flow_type>;
template <int flow_at, typename flow_l> using flow_tensor = flow_to<typename flow_nth<flow_at, flow_l>::flow_type>;
}
)";

struct CppType {
  int value;         // value of flow_check::flow_is
  const char* name;  // in C++
};

CppType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return {1, "float"};
    case DType::f64:
      return {2, "double"};
    case DType::i64:
      return {3, "long long"};
    case DType::i32:
      return {4, "int"};
    case DType::u8:
      return {5, "unsigned char"};
    case DType::boolean:
      return {6, "bool"};
    case DType::f16:
      return {7, "__half"};
    case DType::bf16:
      return {7, "__nv_bfloat16"};
  }
  return {0, "?"};
}

std::string cpp_type(const KernelParameter& parameter) {
  std::string type = type_of(parameter.dtype).name;
  if (parameter.role == ParameterRole::in) return "const " + type + "*";
  return parameter.is_tensor() ? type + "*" : type;
}

// A condition that is true if the parameter at `at` accepts the call's argument. A pointer to a
// class (float4, __half) is not checked.
std::string condition_of(const KernelParameter& parameter, size_t at) {
  int value = type_of(parameter.dtype).value;
  std::string here = fmt::format("<{}, flow_check_list>", at);
  if (!parameter.is_tensor())
    return fmt::format("flow_check::flow_number{}::flow_value == {}", here, value);
  std::string tensor = "flow_check::flow_tensor" + here;
  const char* constant = parameter.role == ParameterRole::in ? "" : "!";
  return fmt::format(
      "{0}::flow_pointer && {1}{0}::flow_constant && ({0}::flow_value == {2} || {0}::flow_value == "
      "0)",
      tensor, constant, value);
}

// A "\" in a script's name would be an escape in C++.
std::string quoted(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

// A failed check names the number of the parameter, from 1; 0 is their count.
std::string checks_of(const KernelSource& source) {
  const auto& parameters = source.signature.parameters;
  std::string text = fmt::format("\n\n#line 1 \"{}\"\n{}", kCheckFile, kTraits.substr(1));
  text += fmt::format("using flow_check_list = decltype(flow_check::flow_of(&{}));\n", source.name);
  text += fmt::format("static_assert(flow_check_list::flow_count == {}, \"{}0\");\n",
                      parameters.size(), kCheckMark);
  for (size_t at = 0; at < parameters.size(); at++)
    text += fmt::format("static_assert({}, \"{}{}\");\n", condition_of(parameters[at], at),
                        kCheckMark, at + 1);
  return text;
}

std::string failed_check(const KernelSource& source, size_t number) {
  const auto& parameters = source.signature.parameters;
  if (number == 0 || number > parameters.size())
    return fmt::format("the function `{}` has another number of parameters than its signature, {}",
                       source.name, parameters.size());
  const KernelParameter& own = parameters[number - 1];
  return fmt::format("parameter {} of the function `{}` is not what the signature says: `{}` is {}",
                     number, source.name, text_of(source.signature, own), cpp_type(own));
}

// ---- the log: paragraphs that begin with "FILE(LINE): error: …"

struct CompilerMessage {
  std::string file, line, words, rest;  // `rest`: the source's line and a mark below it
  bool is_error = false;
};

CompilerMessage read_problem(std::string_view paragraph) {
  CompilerMessage problem;
  size_t end = paragraph.find('\n');
  std::string_view first = paragraph.substr(0, end);
  size_t kind = first.find("): ");
  size_t open = kind == std::string_view::npos ? kind : first.rfind('(', kind);
  if (open == std::string_view::npos) {
    problem.is_error = first.find("error") != std::string_view::npos &&
                       first.find("detected in the compilation") == std::string_view::npos;
    problem.words = first;
    return problem;
  }
  problem.file = first.substr(0, open);
  problem.line = first.substr(open + 1, kind - open - 1);
  problem.words = first.substr(kind + 3);
  problem.is_error =
      problem.words.starts_with("error") || problem.words.starts_with("catastrophic");
  if (end != std::string_view::npos) problem.rest = paragraph.substr(end);
  return problem;
}

std::vector<CompilerMessage> errors_of(std::string_view log) {
  std::vector<CompilerMessage> errors;
  while (!log.empty()) {
    size_t end = log.find("\n\n");
    std::string_view paragraph = log.substr(0, end);
    log.remove_prefix(end == std::string_view::npos ? log.size() : end + 2);
    while (paragraph.starts_with('\n')) paragraph.remove_prefix(1);
    if (CompilerMessage problem = read_problem(paragraph); problem.is_error)
      errors.push_back(std::move(problem));
  }
  return errors;
}

// The number in the message of a failed check.
std::optional<size_t> check_of(const CompilerMessage& problem) {
  size_t start = problem.words.find(kCheckMark);
  if (start == std::string::npos) return std::nullopt;
  size_t number = 0;
  std::string_view digits = std::string_view(problem.words).substr(start + kCheckMark.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

bool is_ours(const CompilerMessage& problem) {
  return problem.file == kCheckFile || problem.file == "__nv_name_map";
}

// Of a source without other errors: the differences to the signature.
std::string signature_text(const KernelSource& source, const std::vector<CompilerMessage>& errors) {
  std::string place = fmt::format("{}:{}: error: ", source.file, source.line);
  for (const CompilerMessage& each : errors) {
    if (check_of(each)) continue;  // all checks fail if the function does not exist
    size_t start = each.words.find(": ");
    return place +
           fmt::format(
               "the source does not have exactly one function `{}`: a kernel's name is that of a "
               "`__global__` function that is not a template and not overloaded ({})",
               source.name, each.words.substr(start == std::string::npos ? 0 : start + 2));
  }
  return place + failed_check(source, *check_of(errors.front()));
}

constexpr std::string_view kDefinitions[] = {"-D", "--define-macro=", "-U", "--undefine-macro="};
constexpr std::string_view kPlain[] = {"--use_fast_math",
                                       "-use_fast_math",
                                       "--extra-device-vectorization",
                                       "-lineinfo",
                                       "--generate-line-info",
                                       "--device-debug",
                                       "-G",
                                       "--restrict",
                                       "-restrict",
                                       "-ftz=true",
                                       "-ftz=false",
                                       "--ftz=true",
                                       "--ftz=false",
                                       "-prec-sqrt=true",
                                       "-prec-sqrt=false",
                                       "--prec-sqrt=true",
                                       "--prec-sqrt=false",
                                       "-prec-div=true",
                                       "-prec-div=false",
                                       "--prec-div=true",
                                       "--prec-div=false",
                                       "-fmad=true",
                                       "-fmad=false",
                                       "--fmad=true",
                                       "--fmad=false",
                                       "-std=c++14",
                                       "--std=c++14",
                                       "-std=c++17",
                                       "--std=c++17",
                                       "-std=c++20",
                                       "--std=c++20",
                                       "--device-int128",
                                       "-device-int128"};

bool is_number_option(std::string_view option) {
  for (std::string_view start : {"-maxrregcount=", "--maxrregcount="})
    if (option.starts_with(start)) {
      option.remove_prefix(start.size());
      return !option.empty() && option.size() <= 3 &&
             option.find_first_not_of("0123456789") == std::string_view::npos;
    }
  return false;
}

}  // namespace

Status check_option(const std::string& option) {
  bool asks_for_file = option.find("__has_") != std::string::npos;
  for (std::string_view start : kDefinitions)
    if (!asks_for_file && option.starts_with(start) && option.size() > start.size()) return {};
  if (std::find(std::begin(kPlain), std::end(kPlain), option) != std::end(kPlain) ||
      is_number_option(option))
    return {};
  return user_error(fmt::format(
      "`{}` is not an option of kernels: there are -DNAME=VALUE, --use_fast_math, "
      "--fmad=…, --ftz=…, --prec-div=…, --prec-sqrt=…, --maxrregcount=N, --std=c++14, c++17 or "
      "c++20, --restrict, --extra-device-vectorization, --device-int128, -lineinfo and -G; the "
      "architecture is the GPU's",
      option));
}

std::string compiler_text(const KernelSource& source) {
  return fmt::format("#line {} \"{}\"\n{}{}", source.line, quoted(source.file), source.text,
                     checks_of(source));
}

std::string error_text(const KernelSource& source, const std::string& log) {
  std::vector<CompilerMessage> errors = errors_of(log);
  if (errors.empty()) return log.substr(0, kTextMax);
  auto end = std::stable_partition(errors.begin(), errors.end(),
                                   [](const CompilerMessage& each) { return !is_ours(each); });
  if (end == errors.begin()) return signature_text(source, errors);
  errors.erase(end, errors.end());
  std::string text;
  for (size_t i = 0; i < errors.size() && i < kErrorsMax && text.size() < kTextMax; i++) {
    const CompilerMessage& each = errors[i];
    if (!text.empty()) text += '\n';
    text += each.file.empty()
                ? each.words
                : fmt::format("{}:{}: {}{}", each.file, each.line, each.words, each.rest);
  }
  if (errors.size() > kErrorsMax) text += fmt::format("\n({} more)", errors.size() - kErrorsMax);
  return text;
}

}  // namespace flow::jit
