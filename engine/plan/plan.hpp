// The immutable plan, the result of loading a script and running its pipeline's body: nodes, edges,
// resource requests. No code runs here.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/plan/resource_quantities.hpp"
#include "engine/plan/service_spec.hpp"
#include "engine/value/encoded_value.hpp"
#include "flow/digest.hpp"
#include "flow/result.hpp"
#include "flow/value.hpp"

namespace flow {

constexpr uint32_t kKeySchema = 1;  // changes only with a notice
constexpr size_t kNodesMax = 4'000'000;
/// Prefix of the origin of a placeholder file for operations of the host program, until the program
/// names the library.
constexpr std::string_view kOperationsOrigin = "operations:";
constexpr uint32_t kNoNode = UINT32_MAX;

enum class TaskKind : uint8_t { lua, shell, dynamic, service, native };

struct RetryPolicy {
  uint32_t max = 0;           // retries after failures of the task itself
  int64_t backoff_ms = 1000;  // before the second attempt
  double factor = 2;
  int64_t cap_ms = 60'000;
  uint32_t oom_max = 0;          // extra attempts after out of memory
  double oom_memory_factor = 2;  // factor of the memory of each of these attempts
  uint32_t infra = 5;            // after a lost worker, preemption or failed staging
};

struct Resources {
  int32_t cpus_milli = 1000;  // thousandths of a core; clamped to the worker with a warning
  int64_t memory_bytes = 0;   // 0: not requested and not limited
  int32_t gpus_milli = 0;     // per rank, thousandths
  int64_t gpu_memory_bytes = 0;
  std::string gpu_model;  // pattern
  std::string where;      // label expression
  uint32_t ranks = 1;
  uint32_t ranks_max = 0;                 // of an elastic gang: the maximum of `ranks`; else 0
  ResourceQuantities custom_resources{};  // of each rank, by name
  bool is_gang() const { return ranks > 1 || ranks_max > 1; }
};

/// Options of a task that may be functions of the call's arguments and the attempt's number. The
/// values are bits of TaskDef::resource_functions, and are stored: only append.
enum ResourceFunction : uint8_t {
  kCpusFunction = 1,
  kMemoryFunction = 2,
  kGpusFunction = 4,
  kGpuMemoryFunction = 8,
  kCustomResourcesFunction = 16,
  kTimeoutFunction = 32,
};
constexpr uint8_t kResourceFunctions = 63;  // all of them

/// One named component of a code digest, so that `flow why` can name what changed.
struct CodeComponent {
  std::string name;  // "function normalise (features.lua:12)", "upvalue rate", "module features"
  Digest digest;
  std::string text;      // short text for users if there is one ("0.001"), at most 200 bytes
  std::string source{};  // of a function: its file and lines, "features.lua:12-20"; else ""
};

/// Prefix of a path in ShellSpec::outputs of a file that may be absent (`optional = true`). No path
/// inside the scratch folder begins with it.
constexpr std::string_view kOptionalMark = "//";
inline bool is_optional_output(std::string_view declared) {
  return declared.starts_with(kOptionalMark);
}

/// A Python or conda environment: a prefix that exists, or a file of packages from which each
/// machine builds one.
struct PackageEnvironment {
  std::string source{};   // as written; "": none
  std::string path{};     // absolute
  std::string content{};  // of a file
  bool is_file = false;
};

/// What a command runs in: the options of the same names, and what the submission found for them.
/// All attempts of a run use what was found.
struct CommandEnvironment {
  std::string before{};                // text that the shell runs before the command
  std::vector<std::string> modules{};  // in the order in which they are loaded
  PackageEnvironment venv{}, conda{};
  std::string python_version{};  // "3.11.2": of the Python with which a venv is built
  std::string container{};       // "docker://…", "podman://…" or the path of a .sif
  std::string image_path{};      // absolute; of a .sif
  std::string image{};           // the image's id, or the SHA-256 of a .sif; "": not known
  bool is_empty() const {
    return before.empty() && modules.empty() && venv.source.empty() && conda.source.empty() &&
           container.empty();
  }
};

struct ShellSpec {
  std::string command;                                       // as written
  std::vector<std::string> args;                             // positional names
  std::vector<std::pair<std::string, std::string>> outputs;  // name to pattern, sorted by name
  std::vector<std::string> shell;                            // {"bash","-euo","pipefail","-c"}
  CommandEnvironment environment{};
};

struct EnvEntry {
  std::string name;
  bool from_submitter =
      false;          // flow.env(value): read at each attempt from the submitter's environment
  std::string value;  // literal, or the variable's name
};

/// A definition by flow.task, flow.shell, flow.dynamic, flow.service or flow.native.
struct TaskDef {
  std::string name;
  TaskKind kind = TaskKind::lua;
  std::string file;  // of the definition, relative to the script's folder
  uint32_t line = 0;
  uint32_t ordinal =
      // Index in the order of definition while the bundle loads; an executor finds it by this
      // index.
      0;
  Digest code;  // canonical code with upvalues (docs/internals.md, Keys); of the command for a
                // shell task
  std::vector<CodeComponent> code_components;
  std::vector<std::string> parameters;  // names of its function's parameters, ctx included
  Resources resources;
  RetryPolicy retry;
  int64_t timeout_ms = 0;          // 0: none
  uint8_t resource_functions = 0;  // the options that a function computes for each attempt; their
                                   // fields above have the defaults
  bool cache = true;
  bool cache_written = false;  // `cache` was given by the script
  std::string cache_salt;
  int32_t priority = 0;
  std::string queue = "default";
  std::vector<EnvEntry> env;
  std::string seed;  // the `seed` option in canonical bytes; "" if there is none
  bool stage_copy = false;
  bool ignores_failure = false;  // `on_error = "ignore"`: consumers get flow.missing
  ShellSpec shell;               // kind shell
  ServiceSpec service;           // kind service
  std::string native_version;    // kind native
  std::string gpu_kernel;        // a kernel that its code uses and that has no CPU fallback
  std::vector<std::string> written_options;  // names of the options in the script, sorted
};

/// The branch of a node: the node runs only if `when` chose that branch.
struct Guard {
  uint32_t when = kNoNode;
  bool then_branch = true;
};

enum class NodeKind : uint8_t { task, map, when };

/// The parts of a node that most tasks lack.
struct NodeDetail {
  Value items;                   // map: a ref, or a list whose items may hold refs
  uint32_t limit = 0;            // map: maximum number of concurrent instances; 0: unbounded
  Value condition;               // when: a ref
  Value then_value, else_value;  // when: what the branches returned, with refs
  std::vector<uint32_t> after;   // order without data
  std::string tag;               // task: `h:tag("s3")`; "" if there is none
  // map over a list in the script: the tags of its instances; empty if there are none
  std::vector<std::string> item_tags;
  bool tags_items = false;  // map over a handle's list: a function tags its instances at run time
};

/// Kept small, because a plan may have a million nodes.
struct TaskNode {
  std::string name;  // "train", "train#2", "inner/train"
  NodeKind kind = NodeKind::task;
  bool named_args = false;
  uint32_t def = 0;   // task, map
  uint32_t line = 0;  // of the call
  Guard guard;        // innermost branch in which this node was made
  // task, map: list of positional arguments with refs (a map's item is not in it); a shell task
  // called with named arguments: one table in the list
  EncodedValue args;

  bool has_detail() const { return detail_ != nullptr; }
  const NodeDetail& detail() const { return detail_ ? *detail_ : none(); }
  /// Valid until the node is copied.
  NodeDetail& edit_detail() {
    if (!detail_ || detail_.use_count() > 1) detail_ = std::make_shared<NodeDetail>(detail());
    return *detail_;
  }

 private:
  static const NodeDetail& none() {
    static const NodeDetail no_detail;
    return no_detail;
  }
  std::shared_ptr<NodeDetail> detail_;  // shared by copies until one is changed; null: none
};
static_assert(sizeof(TaskNode) <= 88);

struct ParamSpec {
  std::string name;
  std::string type;  // int number string boolean path files choice list
  std::string of;    // list: item type
  bool has_default = false;
  Value default_value;
  std::string help;
  std::optional<double> min, max;
  std::string pattern;
  std::vector<std::string> choices;
};

/// What a pattern of flow.files matched when the graph was built. A later build of the same code,
/// which calls a tag function, gets the same paths.
struct InputListing {
  std::string folder, pattern;  // a relative pattern starts at `folder`
  std::vector<std::string> paths;
};

struct Plan {
  std::string pipeline;
  std::vector<ParamSpec> params_schema;
  Value params;  // as the body saw them; files by digest once the engine has read them
  std::vector<TaskDef> defs;
  std::vector<TaskNode> nodes;  // in topological order, except for :after edges
  Value result;                 // with refs
  std::vector<std::string> warnings;
  std::vector<InputListing> listings;  // only if the graph may be built again: for
                                       // tag and resource functions
  std::vector<std::string> printed;    // lines, while it was built; not kept
};

/// The calls of a dynamic task, which are appended to a run's nodes. Nodes and refs are numbered
/// from 0 within the fragment: it contains only values and its own handles.
struct PlanFragment {
  std::vector<TaskNode> nodes;  // `def` indexes the run's plan
  Value result;                 // with refs into `nodes`
};

/// The script and every module that it loaded; executors load it.
struct Bundle {
  std::string main;  // path of the script relative to `root` at load: "pipeline.lua"
  std::string root;  // absolute folder of the script at submission; not in the digest
  std::vector<std::pair<std::string, std::string>> files;  // relative path to text, in load order
  Digest digest() const;
};

std::string encode_plan(const Plan& plan);
Result<Plan> decode_plan(std::string_view bytes);
/// For the order of one attempt.
std::string encode_command_environment(const CommandEnvironment& environment);
Result<CommandEnvironment> decode_command_environment(std::string_view bytes);
/// The same for all options of a service except its port and its batches.
std::string encode_service_options(const ServiceSpec& service);
Result<ServiceSpec> decode_service_options(std::string_view bytes);
std::string encode_fragment(const PlanFragment& fragment);
Result<PlanFragment> decode_fragment(std::string_view bytes);
std::string encode_bundle(const Bundle& bundle);
Result<Bundle> decode_bundle(std::string_view bytes);

/// Calls `visit(node)` for every ref in the value, including duplicates.
template <typename Visit>
void for_each_ref(const Value& value, Visit&& visit) {
  if (value.kind() == Value::Kind::ref) {
    visit(value.as_ref().node);
  } else if (value.kind() == Value::Kind::table) {
    for (const Value& item : value.as_table().list) for_each_ref(item, visit);
    for (const auto& [key, item] : value.as_table().fields) for_each_ref(item, visit);
  }
}
/// The same for the data edges of a node.
template <typename Visit>
void for_each_data_ref(const TaskNode& node, Visit&& visit) {
  for_each_ref(node.args, visit);
  for_each_ref(node.detail().items, visit);
  for_each_ref(node.detail().condition, visit);
}

/// Data edges of a node: the nodes to which its args, items and condition refer; ascending,
/// distinct.
std::vector<uint32_t> data_dependencies(const TaskNode& node);
/// The nodes to which the value refers; ascending, distinct.
std::vector<uint32_t> refs_of(const Value& value);

/// Checks everything: names, cycles (also through `after`), indices, limits. Returns one error per
/// problem.
std::vector<Error> check_plan(const Plan& plan);

}  // namespace flow
