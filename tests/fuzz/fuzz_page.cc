// A request to the web page: whatever its path, query and fields are, only the own cookie permits
// it, and only the own token an action.
#include <algorithm>
#include <string>
#include <string_view>

#include "engine/page/page_access.hpp"
#include "flow/result.hpp"

namespace {

/// Removes a line.
std::string take_line(std::string_view& text) {
  std::string line(text.substr(0, text.find('\n')));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

bool contains(const flow::HttpRequest& request, std::string_view secret) {
  for (const flow::HttpField& field : request.fields)
    if (field.value.find(secret) != std::string::npos) return true;
  return false;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flow::PageAccess access({"linklink", "cookiecookie", "actionaction"}, 8080);
  std::string_view text(reinterpret_cast<const char*>(data), size);
  flow::HttpRequest request;
  request.path = take_line(text);
  request.query = take_line(text);
  for (const char* name : {"Host", "Cookie", "Origin", "X-Flow-Token"})
    request.fields.push_back({name, take_line(text)});
  request.method = flow::page_methods(request.path);
  if (request.method.empty()) return 0;
  flow::PageRoute route = flow::page_route_of(request.path);
  flow::PageQuery query(request.query);
  FLOW_CHECK(query.number("limit", 5, 10) <= 10);
  auto refusal = access.check(request, route.endpoint);
  if (refusal && refusal->status == 303) {
    FLOW_CHECK(query.get("token") == "linklink");
  } else if (!refusal) {
    FLOW_CHECK(contains(request, "flow_page_8080=cookiecookie"));
    FLOW_CHECK(request.method == "GET" || request.fields[3].value == "actionaction");
  }
  return 0;
}
