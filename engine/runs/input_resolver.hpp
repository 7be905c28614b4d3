// Resolves the core's queries from blobs: the arguments of a unit, its key, the length of a map,
// the branch of a when, a gathered value. Only reads; called within a turn.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/blobs/references.hpp"
#include "engine/core/core.hpp"
#include "engine/runs/digest_table.hpp"
#include "flow/value.hpp"

namespace flow {

/// One named component of a cache key, so that `flow why` can compare keys.
struct KeyComponent {
  std::string name;  // "code", "argument 1", "env MODE", …
  Digest digest;
  std::string text;                      // short text for users, "" if there is none
  std::shared_ptr<const Value> value{};  // of an argument: the value that is compared item by item
  std::string label{};                   // of an argument with a name: "argument `samples`"
  std::string from{};                    // of an argument that is a result: the name of its node
};

/// JSON, truncated to the length of a line.
std::string short_json(const Value& value);

class InputResolver {
 public:
  /// `read_blob` returns the bytes of a blob that is committed or in an open batch.
  using ReadBlob = std::function<Result<std::string>(const Digest&)>;
  explicit InputResolver(ReadBlob read_blob) : read_blob_(std::move(read_blob)) {}

  /// The canonical bytes of the unit's argument list with refs resolved. The error names a missing
  /// part or an unreadable blob.
  Result<std::string> arguments(const core::Run& run, core::UnitId unit);
  /// The cache key, from the unit's definition and arguments. Error also if these nest too deeply.
  Result<Digest> key(const core::Run& run, core::UnitId unit);
  /// The large blobs in the arguments of this key; null if there are none or the key was evicted
  /// here.
  const std::vector<BlobInfo>* inputs(const Digest& key) const;
  /// The components of the unit's key, in hashing order.
  Result<std::vector<KeyComponent>> key_components(const core::Run& run, core::UnitId unit);
  /// Why the unit is not run because of flow.missing: it is an argument of a shell task, service or
  /// native task, or the list of a map. "" if the unit runs.
  Result<std::string> why_missing(const core::Run& run, core::UnitId unit);
  /// Number of items of a map.
  Result<uint32_t> map_count(const core::Run& run, core::UnitId unit);
  /// The list of a map over a handle.
  Result<Value> map_items(const core::Run& run, core::UnitId unit);
  /// The condition of a when; a missing part is false.
  Result<bool> condition(const core::Run& run, core::UnitId unit);
  /// The list of a map, the value of a when or a dynamic task, or with kNoNode the run's result.
  /// Error if it nests too deeply to be stored.
  Result<Value> gather(const core::Run& run, core::UnitId unit);
  /// The value of a finished unit; flow.missing if its failure is ignored.
  Result<std::shared_ptr<const Value>> result_of(const core::Run& run, core::UnitId unit);
  Result<std::shared_ptr<const Value>> value(const Digest& digest);
  /// Keeps the URL of a service that is ready, also for the time in which it is down: its front,
  /// and with it the URL, outlives its replicas.
  void note_url(const core::Run& run, core::UnitId service);
  /// The run leaves the state.
  void forget_urls(const core::RunId& run) { urls_.erase(run); }
  /// Caches the canonical bytes of a value that was just reported or found in the cache.
  void remember(const Digest& digest, std::string_view encoded);

  /// The name of a unit: "train", "train#2[1]", "search/best".
  static std::string unit_name(const core::Run& run, core::UnitId unit);
  /// The task's definition of a unit, or null for a when.
  static const TaskDef* def_of(const core::Run& run, core::UnitId unit);
  static uint64_t seed(const core::Run& run, core::UnitId unit, uint32_t rank);

 private:
  Result<Value> gather_any_depth(const core::Run& run, core::UnitId unit);
  /// A run's result while it is put together.
  struct RunResult {
    std::set<core::UnitId> joins;          // those that hold services
    std::map<core::UnitId, Value> values;  // of these, as far as they were needed
    size_t depth = 0;                      // of the join that is put together now
  };
  /// Replaces the refs in `value`. In a run's result, which `result` is for, what does not exist is
  /// flow.null; else it is an error.
  Result<Value> substitute(const core::Run& run, const Value& value, RunResult* result);
  /// The value of a join that holds services, with the URLs that these have now.
  Result<Value> gather_again(const core::Run& run, const Ref& join, RunResult& result);
  Result<Value> part_of_result(const core::Run& run, const Ref& ref, RunResult& result);
  /// Whether the unit is a service, or the set of its replicas.
  static bool is_service(const core::Run& run, core::UnitId unit);
  /// The value of a service: `{ url = … }`, flow.null if it failed. While the service is down the
  /// URL is the one that was noted last.
  Value service_value(const core::Run& run, core::UnitId unit) const;
  /// What the branch of a resolved when, or an expanded dynamic task, returned: with refs.
  static const Value& joined_value(const core::Run& run, core::UnitId unit);
  Result<Value> follow(const core::Run& run, const Ref& ref);
  Result<Value> list_with_places(const core::Run& run, core::UnitId map_unit);
  /// The item of a map's list that the instance gets.
  Result<Value> item_of(const core::Run& run, core::UnitId instance);
  Result<Value> argument_list(const core::Run& run, core::UnitId unit);
  Status append_argument(const core::Run& run, const Value& argument, std::string& out);
  void remember_inputs(const Digest& key, const Value& args);
  const Digest& def_digest(const core::Run& run, uint32_t def);

  ReadBlob read_blob_;
  struct CachedValue {
    std::string bytes;                   // canonical
    std::shared_ptr<const Value> value;  // null until it is first requested
  };
  Result<CachedValue*> cached(const Digest& digest);
  void put(const Digest& digest, std::string_view encoded);
  DigestTable<size_t{1} << 15, 31> short_values_;  // most values are short and used soon
  // Arguments are requested with the key, and soon again with the order. If they are short and
  // contain no tag, the key contains all of them and stores them.
  DigestTable<size_t{1} << 10, 95> short_arguments_;
  std::unordered_map<Digest, CachedValue, DigestHash> values_;  // emptied at kValueCacheBytes
  size_t values_bytes_ = 0;
  // By key; emptied at kInputsMax.
  std::unordered_map<Digest, std::vector<BlobInfo>, DigestHash> inputs_;
  /// Per definition, the digest of the key parts that do not depend on arguments; zero until it is
  /// requested. The plan is not kept alive: another plan may later have its address.
  struct PlanDigests {
    std::weak_ptr<const Plan> plan;
    std::vector<Digest> of_defs;
  };
  // The URLs of services, by their own units. forget_urls() removes the entry of a run.
  std::map<core::RunId, std::map<core::UnitId, std::string>> urls_;
  // One entry per plan that a run still has: those of other plans leave when one is added.
  std::unordered_map<const Plan*, PlanDigests> plan_digests_;
};

/// The parts of a key that depend on the definition only.
std::vector<KeyComponent> definition_components(const TaskDef& def);

}  // namespace flow
