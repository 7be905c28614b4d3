#include "engine/report/module_bundle.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "engine/base/errors.hpp"

namespace flow {

namespace {

bool is_name_character(char c) {
  return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_' ||
         c == '$';
}

std::string_view leading_name(std::string_view text) {
  size_t size = 0;
  while (size < text.size() && is_name_character(text[size])) size++;
  return text.substr(0, size);
}

std::string_view trimmed(std::string_view text) {
  size_t begin = text.find_first_not_of(" \n"), end = text.find_last_not_of(" \n");
  return begin == std::string_view::npos ? "" : text.substr(begin, end - begin + 1);
}

/// What an import takes from a module: `a, b as c`.
struct Import {
  std::string_view module;
  std::vector<std::string_view> names;  // "a", "b"
  std::string pattern;                  // of a destructuring: "a, b: c"
};

void add_names(std::string_view list, Import& import) {
  while (!list.empty()) {
    std::string_view name = trimmed(list.substr(0, list.find(',')));
    list.remove_prefix(std::min(list.find(','), list.size() - 1) + 1);
    if (name.empty()) continue;
    size_t as = name.find(" as ");
    import.names.push_back(name.substr(0, as));
    if (!import.pattern.empty()) import.pattern += ", ";
    import.pattern += name.substr(0, as);
    if (as != std::string_view::npos) import.pattern += fmt::format(": {}", name.substr(as + 4));
  }
}

class Bundler {
 public:
  explicit Bundler(const std::vector<PageAsset>& modules) {
    for (const PageAsset& module : modules) sources_.emplace(module.name, module.content);
  }

  /// Adds the module after those that it imports.
  Status add(std::string_view name) {
    if (exports_.contains(name)) return {};
    auto source = sources_.find(name);
    if (source == sources_.end())
      return internal_error(fmt::format("the page has no module `{}`", name));
    if (!active_.insert(name).second)
      return internal_error(fmt::format("the page's module `{}` imports itself", name));
    auto body = body_of(name, source->second);
    FLOW_TRY(body);
    script_ += fmt::format("modules[\"{}\"] = (() => {{\n{}}})();\n", name, *body);
    active_.erase(name);
    return {};
  }

  const std::string& script() const { return script_; }

 private:
  /// Error if the module that `bound` names does not export each of its names. `name`: the
  /// importer.
  Status check_names(const Import& bound, std::string_view name) {
    for (std::string_view each : bound.names)
      if (!exports_[bound.module].contains(each))
        return internal_error(
            fmt::format("the page's module `{}` imports `{}` from `{}`, which does not export it",
                        name, each, bound.module));
    return {};
  }

  Result<std::string> body_of(std::string_view name, std::string_view source) {
    std::string body;
    std::set<std::string_view> exports;
    while (!source.empty()) {
      bool is_import = source.starts_with("import ");
      size_t end = source.find(is_import ? ";\n" : "\n");
      size_t size = end == std::string_view::npos ? source.size() : end + (is_import ? 2 : 1);
      std::string_view line = source.substr(0, size);
      source.remove_prefix(size);
      if (is_import) {
        auto bound = import_of(line);
        if (!bound) return unknown_form(name, line);
        FLOW_TRY(add(bound->module));
        FLOW_TRY(check_names(*bound, name));
        body += fmt::format("const {{ {} }} = modules[\"{}\"];\n", bound->pattern, bound->module);
      } else if (line.starts_with("export ")) {
        std::string_view declaration = line.substr(7);
        std::string_view exported = exported_name(declaration);
        if (exported.empty()) return unknown_form(name, line);
        exports.insert(exported);
        body += declaration;
      } else {
        body += line;
      }
    }
    if (!body.ends_with('\n')) body += '\n';
    body += fmt::format("return {{ {} }};\n", fmt::join(exports, ", "));
    exports_.emplace(name, std::move(exports));
    return body;
  }

  static Error unknown_form(std::string_view module, std::string_view line) {
    return internal_error(fmt::format(
        "the page's module `{}` has a form that reports cannot have: {}", module, trimmed(line)));
  }

  /// Parses `import { … } from "./NAME";`.
  static std::optional<Import> import_of(std::string_view statement) {
    constexpr std::string_view kFrom = "} from \"./";
    size_t open = statement.find('{'), from = statement.find(kFrom);
    if (open != 7 || from == std::string_view::npos) return std::nullopt;
    std::string_view module = statement.substr(from + kFrom.size());
    module = module.substr(0, std::min(module.find('"'), module.size()));
    Import import{module, {}, {}};
    add_names(statement.substr(open + 1, from - open - 1), import);
    return import;
  }

  /// The name that a declaration exports; "" if it is not a supported form.
  static std::string_view exported_name(std::string_view declaration) {
    for (std::string_view kind : {"async function ", "function ", "class ", "const "})
      if (declaration.starts_with(kind)) return leading_name(declaration.substr(kind.size()));
    return "";
  }

  std::map<std::string_view, std::string_view> sources_;
  std::set<std::string_view> active_;                               // being read
  std::map<std::string_view, std::set<std::string_view>> exports_;  // of those in the script
  std::string script_;
};

}  // namespace

Result<std::string> bundle_modules(const std::vector<PageAsset>& modules, std::string_view entry) {
  Bundler bundler(modules);
  FLOW_TRY(bundler.add(entry));
  return "const modules = {};\n" + bundler.script();
}

}  // namespace flow
