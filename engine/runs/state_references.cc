#include "engine/runs/state_references.hpp"

#include "engine/plan/values.hpp"
#include "engine/value/cbor.hpp"

namespace flow {

References::Blob& References::note(const Digest& digest, std::optional<uint64_t> size,
                                   bool is_in_place) {
  Blob& blob = blobs_[digest];
  if (size) blob.size = size;
  blob.is_in_place = blob.is_in_place && is_in_place;
  return blob;
}

void References::add(const Digest& digest) { note(digest, std::nullopt, false); }

void References::add(const Value& value) {
  for_each_blob(value, [this](const Digest& digest, std::optional<uint64_t> size,
                              const std::string& origin) { note(digest, size, !origin.empty()); });
}

void References::add_encoded(std::string_view bytes) {
  if (!holds_tag(bytes)) return;
  auto value = decode_value(bytes);
  if (value.ok()) add(*value);
}

void References::add_stored(const Digest& digest) {
  Blob& blob = note(digest, std::nullopt, false);
  if (blob.is_followed) return;
  blob.is_followed = true;
  auto bytes = read_(digest);
  if (!bytes.ok()) {
    unread_.push_back(digest);
    return;
  }
  add_encoded(*bytes);
}

void References::add(const Plan& plan) {
  for_each_value(plan, [this](const Value& value) { add(value); });
}

void References::add(const PlanFragment& fragment) {
  for_each_value(fragment, [this](const Value& value) { add(value); });
}

void References::add_fragment(const Digest& digest) {
  Blob& blob = note(digest, std::nullopt, false);
  if (blob.is_followed) return;
  blob.is_followed = true;
  auto bytes = read_(digest);
  auto fragment = bytes.ok() ? decode_fragment(*bytes) : Result<PlanFragment>(bytes.error());
  if (!fragment.ok()) {
    unread_.push_back(digest);
    return;
  }
  add(*fragment);
}

void References::add(const CacheEntry& entry) {
  if (entry.has_fragment) add_fragment(entry.fragment);
  if (entry.value.empty()) return add_stored(entry.result);
  add(entry.result);
  add_encoded(entry.value);
}

void References::add(const core::Run& run) {
  for (const core::Unit& unit : run.units) {
    if (!unit.result.is_zero()) add_stored(unit.result);
  }
  if (run.has_result) add_stored(run.result);
  for (const auto& [name, digest] : run.signals) add_stored(digest);
  add(run.plan_digest);
  if (run.plan) add(*run.plan);
  for (const core::DynamicCalls& calls : run.dynamics) {
    add(calls.fragment_digest);
    if (calls.fragment) add(*calls.fragment);
  }
}

}  // namespace flow
