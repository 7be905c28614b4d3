#include "engine/page/page_routes.hpp"

#include <algorithm>
#include <charconv>

#include "engine/base/remote_url.hpp"

namespace flow {

namespace {

PageEndpoint endpoint_of_run(std::string_view part) {
  if (part.empty()) return PageEndpoint::run;
  if (part == "tasks") return PageEndpoint::tasks;
  if (part == "picture") return PageEndpoint::picture;
  if (part == "graph") return PageEndpoint::graph;
  if (part == "task") return PageEndpoint::task;
  if (part == "values") return PageEndpoint::values;
  if (part == "logs") return PageEndpoint::logs;
  if (part == "metrics") return PageEndpoint::metrics;
  if (part == "attempts") return PageEndpoint::attempts;
  if (part == "cost") return PageEndpoint::cost;
  if (part == "cancel") return PageEndpoint::cancel;
  if (part == "signal") return PageEndpoint::signal;
  if (part == "stop") return PageEndpoint::stop;
  if (part == "retry") return PageEndpoint::retry;
  if (part == "rollback") return PageEndpoint::rollback;
  return PageEndpoint::unknown;
}

std::string decoded_field(std::string_view text) {
  std::string blanks(text);
  std::replace(blanks.begin(), blanks.end(), '+', ' ');
  return percent_decode(blanks);
}

}  // namespace

PageRoute page_route_of(std::string_view path) {
  constexpr std::string_view kAssets = "/assets/", kRuns = "/api/runs/";
  if (path == "/") return {PageEndpoint::home};
  if (path == "/api/session") return {PageEndpoint::session};
  if (path == "/api/events") return {PageEndpoint::events};
  if (path == "/api/runs") return {PageEndpoint::runs};
  if (path == "/api/cluster") return {PageEndpoint::cluster};
  if (path == "/api/services") return {PageEndpoint::services};
  if (path == "/api/waiting") return {PageEndpoint::waiting};
  if (path == "/api/cost") return {PageEndpoint::costs};
  if (path == "/sign-in") return {PageEndpoint::sign_in};
  if (path.starts_with(kAssets))
    return {PageEndpoint::asset, std::string(path.substr(kAssets.size()))};
  if (!path.starts_with(kRuns)) return {};
  path.remove_prefix(kRuns.size());
  size_t end = std::min(path.find('/'), path.size());
  std::string run = percent_decode(path.substr(0, end));
  if (run.empty() || end + 1 == path.size()) return {};
  return {endpoint_of_run(path.substr(std::min(end + 1, path.size()))), std::move(run)};
}

bool is_action(PageEndpoint endpoint) {
  switch (endpoint) {
    case PageEndpoint::cancel:
    case PageEndpoint::signal:
    case PageEndpoint::stop:
    case PageEndpoint::retry:
    case PageEndpoint::rollback:
      return true;
    default:
      return false;
  }
}

std::string_view page_methods(std::string_view path) {
  PageEndpoint endpoint = page_route_of(path).endpoint;
  if (endpoint == PageEndpoint::unknown) return "";
  return is_action(endpoint) || endpoint == PageEndpoint::sign_in ? "POST" : "GET";
}

PageQuery::PageQuery(std::string_view query) {
  while (!query.empty()) {
    std::string_view field = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(field.size() + 1, query.size()));
    size_t equals = std::min(field.find('='), field.size());
    std::string_view value = field.substr(std::min(equals + 1, field.size()));
    fields_.try_emplace(decoded_field(field.substr(0, equals)), decoded_field(value));
  }
}

const std::string& PageQuery::get(const std::string& name) const {
  static const std::string kNone;
  auto found = fields_.find(name);
  return found == fields_.end() ? kNone : found->second;
}

uint64_t PageQuery::number(const std::string& name, uint64_t otherwise, uint64_t max) const {
  const std::string& text = get(name);
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return otherwise;
  return std::min(number, max);
}

}  // namespace flow
