// The command of a shell task: its parts concatenate to its text, and replacing placeholders gives
// a command or an error text.
#include <algorithm>

#include "lua/graph/plain_command.hpp"
#include "lua/graph/shell_template.hpp"
#include "lua/state/script.hpp"

namespace {

const flow::Value& arguments() {
  static const flow::Value value = flow::Value::map(
      {{"a", "it's $HOME `x` \"y\" {b}\n"},
       {"b", flow::Value::list({1, 2.5, true, "two words"})},
       {"n", 3},
       {"t", flow::Value::map({{"x", "deep"}, {"y", flow::Value::list({"p", "q"})}})}});
  return value;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flow::ShellSpec spec;
  spec.command.assign(reinterpret_cast<const char*>(data), size);
  spec.args = {"a", "b", "n", "t"};
  spec.outputs = {{"out", "out.txt"}, {"parts", "part.*"}};
  auto parts = flow::lua::parse_command(spec, spec.args);
  if (parts.ok()) {
    std::string text;
    for (const flow::lua::CommandPart& part : *parts) {
      FLOW_CHECK(!part.text.empty() && part.is_placeholder == !part.path.empty());
      text += part.is_placeholder ? "{" + part.text + "}" : part.text;
    }
    if (spec.command.find("{{") == std::string::npos) FLOW_CHECK(text == spec.command);
  } else {
    FLOW_CHECK(parts.error().message.starts_with("line "));
  }
  auto filled = flow::fill_command(spec, arguments(), {{"cpus", "4"}, {"rank", "0"}});
  FLOW_CHECK(parts.ok() || !filled.ok());
  bool has_placeholder =
      parts.ok() && std::any_of(parts->begin(), parts->end(),
                                [](const auto& part) { return part.is_placeholder; });
  if (parts.ok() && !has_placeholder) FLOW_CHECK(filled.ok());
  flow::PlainCommand plain = flow::plain_command(filled.ok() ? *filled : spec.command);
  FLOW_CHECK(plain.words.empty() ? plain.redirections.empty() : !plain.words[0].empty());
  for (const flow::Redirection& each : plain.redirections)
    FLOW_CHECK((each.from < 0) != each.path.empty());
  return 0;
}
