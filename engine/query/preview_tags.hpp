// The tags that a preview shows for the instances of maps over a handle's list. A function of the
// script gives them, and a build process calls it.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/submission/submission.hpp"
#include "engine/worker/worker.hpp"

namespace flow {

class PreviewTags {
 public:
  /// `builder` outlives it. `prepared`: the run that is previewed.
  PreviewTags(Builder& builder, const Prepared& prepared)
      : builder_(builder), prepared_(prepared) {}
  PreviewTags(const PreviewTags&) = delete;
  PreviewTags& operator=(const PreviewTags&) = delete;

  /// The tags of this map of the plan for `items`, a list; null if they are not known. Then the
  /// next resolve() calls the map's function.
  const std::vector<std::string>* find(uint32_t node, const Value& items);
  /// Calls the functions for which find() found nothing. Returns whether there was one: then
  /// another preview may find more. A function that fails gives no tags. Blocks.
  bool resolve();

 private:
  using Call = std::pair<uint32_t, Digest>;  // the map, and its items

  Builder& builder_;
  const Prepared& prepared_;
  std::map<Call, std::vector<std::string>> tags_;
  std::map<Call, Value> requested_;
};

}  // namespace flow
