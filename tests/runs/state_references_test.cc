// Every place of a plan, a call list, a cache entry and a run is searched for blobs.
#include "engine/runs/state_references.hpp"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

using namespace flow;

namespace {

/// Values with unique blobs, and the list of these.
class RunBuilder {
 public:
  explicit RunBuilder(uint32_t seed) : random_(seed) {}

  Digest digest() {
    Digest made = sha256("content " + std::to_string(++count_));
    made_.insert(made);
    return made;
  }
  /// A tensor, a file or a folder, possibly deep in a table with other values.
  Value value() {
    Value inner;
    switch (random_() % 3) {
      case 0: {
        Tensor tensor;
        tensor.shape = {2, 3};
        tensor.digest = digest();
        inner = Value(std::move(tensor));
        break;
      }
      case 1: {
        File file;
        file.name = "file";
        file.size = 7;
        file.digest = digest();
        inner = Value(std::move(file));
        break;
      }
      default: {
        File folder;
        folder.name = "folder";
        folder.is_folder = true;
        folder.digest = sha256("a listing, which is no blob");
        for (const char* path : {"a", "b"}) folder.entries.push_back({path, false, 7, digest()});
        inner = Value(std::move(folder));
      }
    }
    if (random_() % 2 == 0) return inner;
    return Value::map({{"list", Value::list({Value(1), Value(Ref{0, {}}), inner})}, {"x", "y"}});
  }
  TaskNode node(NodeKind kind) {
    TaskNode node;
    node.kind = kind;
    node.args = Value::list({value(), value()});
    node.edit_detail().items = value();
    node.edit_detail().condition = value();
    node.edit_detail().then_value = value();
    node.edit_detail().else_value = value();
    return node;
  }
  PlanFragment fragment() {
    PlanFragment fragment;
    fragment.result = value();
    for (NodeKind kind : {NodeKind::task, NodeKind::map, NodeKind::when})
      fragment.nodes.push_back(node(kind));
    return fragment;
  }
  Plan plan() {
    PlanFragment parts = fragment();
    Plan plan;
    plan.params = value();
    plan.result = parts.result;
    plan.nodes = parts.nodes;
    return plan;
  }
  /// Bytes in the store, which is a blob as well.
  Digest stored(std::string bytes) {
    Digest digest = sha256(bytes);
    made_.insert(digest);
    store_[digest] = std::move(bytes);
    return digest;
  }
  Digest stored_value() { return stored(encode_value(value())); }

  References references() const {
    return References([this](const Digest& digest) -> Result<std::string> {
      auto found = store_.find(digest);
      if (found == store_.end()) return environment_error("it is gone");
      return found->second;
    });
  }
  /// The created blobs that are not among the references.
  size_t missing(const References& references) const {
    size_t count = 0;
    for (const Digest& digest : made_) count += references.has(digest) ? 0 : 1;
    return count;
  }
  size_t made() const { return made_.size(); }
  void lose(const Digest& digest) { store_.erase(digest); }

 private:
  std::mt19937 random_;
  int count_ = 0;
  std::set<Digest> made_;
  std::map<Digest, std::string> store_;
};

}  // namespace

TEST_CASE("exactly the blobs that a run refers to are listed") {
  for (uint32_t seed = 1; seed <= 20; seed++) {
    CAPTURE(seed);
    RunBuilder builder(seed);
    core::Run run;
    run.plan = std::make_shared<const Plan>(builder.plan());
    run.plan_digest = builder.stored("a plan");
    for (int i = 0; i < 3; i++) run.units.emplace_back().result = builder.stored_value();
    run.units.emplace_back();  // without a result
    run.has_result = true;
    run.result = builder.stored_value();
    run.signals["go"] = builder.stored_value();
    for (int i = 0; i < 2; i++) {
      core::DynamicCalls calls;
      calls.fragment = std::make_shared<const PlanFragment>(builder.fragment());
      calls.fragment_digest = builder.stored("call list " + std::to_string(i));
      run.dynamics.push_back(std::move(calls));
    }
    References references = builder.references();
    references.add(run);
    CHECK(builder.missing(references) == 0);
    CHECK(references.blobs().size() == builder.made());
    CHECK(references.unread().empty());
  }
}

TEST_CASE("all blobs that a cache entry refers to are listed") {
  for (uint32_t seed = 1; seed <= 20; seed++) {
    CAPTURE(seed);
    RunBuilder builder(seed);
    CacheEntry entry;
    entry.has_fragment = true;
    entry.fragment = builder.stored(encode_fragment(builder.fragment()));
    Value value = builder.value();
    entry.result = builder.stored(encode_value(value));
    if (seed % 2 == 0) entry.value = encode_value(value);
    References references = builder.references();
    references.add(entry);
    CHECK(builder.missing(references) == 0);
    CHECK(references.unread().empty());
    builder.lose(entry.fragment);
    References less = builder.references();
    less.add(entry);
    CHECK(less.unread() == std::vector<Digest>{entry.fragment});
  }
}

TEST_CASE("references of a stored value are followed even if its bytes are also a file's") {
  RunBuilder builder(1);
  Digest stored = builder.stored_value();
  File file;
  file.digest = stored;
  file.size = 7;
  References references = builder.references();
  references.add(Value(file));
  references.add_stored(stored);
  CHECK(builder.missing(references) == 0);
}

TEST_CASE("a blob that one place reads in place and another from the state must exist") {
  File outside, inside;
  outside.digest = inside.digest = sha256("content");
  outside.size = inside.size = 7;
  outside.origin = "/data/file";
  References references = RunBuilder(1).references();
  references.add(Value(outside));
  CHECK(references.blobs().at(outside.digest).is_in_place);
  references.add(Value(inside));
  CHECK_FALSE(references.blobs().at(outside.digest).is_in_place);
}
