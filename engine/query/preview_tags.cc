#include "engine/query/preview_tags.hpp"

#include "engine/submission/rebuild.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

const std::vector<std::string>* PreviewTags::find(uint32_t node, const Value& items) {
  Call call{node, sha256(encode_value(items))};
  auto known = tags_.find(call);
  if (known != tags_.end()) return known->second.empty() ? nullptr : &known->second;
  requested_.emplace(call, items);
  return nullptr;
}

bool PreviewTags::resolve() {
  std::map<Call, Value> requested = std::exchange(requested_, {});
  for (const auto& [call, items] : requested) {
    std::vector<std::string>& tags = tags_[call];
    auto order = rebuild_order(prepared_.plan, prepared_.context);
    if (!order.ok()) continue;
    add_tag_calls(*order, call.first, items);
    auto answer = tags_of(builder_.build(*order));
    if (answer.ok()) tags = std::move(*answer);
  }
  return !requested.empty();
}

}  // namespace flow
