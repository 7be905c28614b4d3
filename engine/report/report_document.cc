#include "engine/report/report_document.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "engine/base/throwing.hpp"
#include "engine/crypto/base64.hpp"
#include "engine/report/module_bundle.hpp"
#include "engine/report/report_assets.hpp"
#include "flow/digest.hpp"

namespace flow {

namespace {

/// The file of the report, or else that of the page.
std::string_view asset(std::string_view name) {
  for (const auto* assets : {&report_assets(), &page_assets()})
    for (const PageAsset& each : *assets)
      if (each.name == name) return each.content;
  throw Failed(internal_error(fmt::format("the page has no file `{}`", name)));
}

/// The page's modules with those of the report, which replace the page's.
std::vector<PageAsset> modules() {
  std::vector<PageAsset> all = report_assets();
  for (const PageAsset& each : page_assets())
    if (std::ranges::find(all, each.name, &PageAsset::name) == all.end()) all.push_back(each);
  std::erase_if(all, [](const PageAsset& each) { return !each.name.ends_with(".js"); });
  return all;
}

/// As a source of a content security policy.
std::string hash_source(std::string_view content) {
  return fmt::format("'sha256-{}'", base64_encode(sha256(content).view()));
}

/// The template with each {{NAME}} replaced. What is put in is not searched.
std::string filled(std::string_view text,
                   const std::vector<std::pair<std::string_view, std::string_view>>& parts) {
  std::string out;
  while (true) {
    size_t at = text.find("{{");
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    text.remove_prefix(at + 2);
    size_t end = text.find("}}");
    auto part = std::ranges::find(parts, text.substr(0, end),
                                  &std::pair<std::string_view, std::string_view>::first);
    if (end == std::string_view::npos || part == parts.end())
      throw Failed(internal_error("the template of reports has an unknown part"));
    out += part->second;
    text.remove_prefix(end + 2);
  }
}

/// The content of a <script> or <style> is read up to its end tag.
void check_inline(std::string_view content) {
  for (std::string_view end : {"</script", "</style", "<!--"})
    if (content.find(end) != std::string_view::npos)
      throw Failed(internal_error(fmt::format("a file of the page contains `{}`", end)));
}

}  // namespace

std::string packed_data(std::string_view data) {
  uLongf size = compressBound(data.size());
  std::string bytes(size, '\0');
  int code =
      compress2(reinterpret_cast<Bytef*>(bytes.data()), &size,
                reinterpret_cast<const Bytef*>(data.data()), data.size(), Z_BEST_COMPRESSION);
  if (code != Z_OK)
    throw Failed(internal_error(fmt::format("the data of a report is not compressed: {}", code)));
  bytes.resize(size);
  return base64_encode(bytes);
}

std::string report_document(std::string_view data, int64_t made_ms) {
  // A frozen view: durations of what still runs end when the report was made.
  std::string script = fmt::format(
      "const Date = class extends globalThis.Date {{\n  static now() {{\n    return {};\n  "
      "}}\n}};\n",
      made_ms);
  script += value_or_throw(bundle_modules(modules(), "report.js"));
  std::string style = std::string(asset("page.css")) + std::string(asset("report.css"));
  check_inline(script);
  check_inline(style);
  std::string policy = fmt::format(
      "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; "
      "form-action 'none'",
      hash_source(script), hash_source(style));
  return filled(asset("report.html"), {{"policy", policy},
                                       {"icon", base64_encode(asset("icon.svg"))},
                                       {"style", style},
                                       {"script", script},
                                       {"data", packed_data(data)}});
}

}  // namespace flow
