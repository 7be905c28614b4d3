#include "engine/plan/gpu_pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "engine/base/size_units.hpp"

namespace flow {

namespace {

constexpr size_t kShownMax = 8;

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

bool is_same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

/// Whether there is a word boundary between name[at - 1] and name[at].
bool is_edge(std::string_view name, size_t at) {
  return at == 0 || at == name.size() || !is_word(name[at - 1]) || !is_word(name[at]);
}

/// Whether the pattern matches from `at` up to a word boundary.
bool matches_from(std::string_view pattern, std::string_view name, size_t at) {
  while (!pattern.empty() && pattern.front() != '*') {
    if (at == name.size() || !is_same(pattern.front(), name[at])) return false;
    pattern.remove_prefix(1);
    at++;
  }
  if (pattern.empty()) return is_edge(name, at);
  for (size_t next = at; next <= name.size(); next++) {
    if (matches_from(pattern.substr(1), name, next)) return true;
  }
  return false;
}

bool matches_one(std::string_view pattern, std::string_view name) {
  for (size_t at = 0; at < name.size(); at++) {
    if (is_edge(name, at) && matches_from(pattern, name, at)) return true;
  }
  return false;
}

std::string list_of(const std::vector<Gpu>& gpus) {
  std::string text;
  for (size_t i = 0; i < gpus.size() && i < kShownMax; i++)
    text += (i == 0 ? "" : ", ") + words_of(gpus[i]);
  if (gpus.size() > kShownMax) text += fmt::format(" and {} more", gpus.size() - kShownMax);
  return text;
}

/// Why MIG instances do not match a task that requests several GPUs, and what it can request
/// instead; "" if that is not the reason.
std::string mig_unsatisfiable_reason(const Resources& resources, const std::vector<Gpu>& gpus) {
  GpuRequest request = gpu_request(resources);
  GpuRequest one = request;
  one.milli = std::min(request.milli, kWholeGpuMilli);
  auto instances = std::count_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
    return gpu.is_mig && suits(one, gpu) && !suits(request, gpu);
  });
  if (instances == 0) return "";
  return fmt::format(
      "{} of them {} of a GPU in MIG mode, and a process can use only one instance: ask for "
      "`gpus = 1`, or for `ranks = {}` with `gpus = 1` each; ",
      instances, instances == 1 ? "is an instance" : "are instances",
      request.count() * std::max<size_t>(1, resources.ranks));
}

}  // namespace

GpuRequest gpu_request(const Resources& resources) {
  if (resources.gpus_milli <= 0) return {};
  return {resources.gpus_milli, resources.gpu_memory_bytes, resources.gpu_model};
}

bool may_request_gpus(const Plan& plan) {
  auto requests_gpus = [](const TaskDef& def) {
    return def.resources.gpus_milli > 0 || (def.resource_functions & kGpusFunction) != 0;
  };
  return std::any_of(plan.nodes.begin(), plan.nodes.end(), [&](const TaskNode& node) {
    if (node.kind == NodeKind::when) return false;
    const TaskDef& called = plan.defs[node.def];
    bool may_call = called.kind == TaskKind::dynamic;
    return requests_gpus(called) ||
           (may_call && std::any_of(plan.defs.begin(), plan.defs.end(), requests_gpus));
  });
}

bool matches_model(std::string_view pattern, std::string_view name) {
  while (true) {
    size_t end = std::min(pattern.find('|'), pattern.size());
    std::string_view one = pattern.substr(0, end);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    if (!one.empty() && matches_one(one, name)) return true;
    if (end == pattern.size()) return false;
    pattern.remove_prefix(end + 1);
  }
}

bool suits(const GpuRequest& request, const Gpu& gpu) {
  return gpu.fault.empty() && matches_request(request, gpu);
}

bool matches_request(const GpuRequest& request, const Gpu& gpu) {
  if (gpu.is_mig && request.milli > kWholeGpuMilli) return false;
  if (gpu.memory_bytes < request.memory_bytes) return false;
  return request.model.empty() || matches_model(request.model, gpu.name);
}

std::string words_of(const GpuRequest& request) {
  std::string text = fmt::format("gpus = {}", request.milli / 1000.0);
  std::string more;
  if (!request.model.empty()) more = fmt::format("gpu = \"{}\"", request.model);
  if (request.memory_bytes > 0) {
    std::string memory = format_bytes(static_cast<uint64_t>(request.memory_bytes));
    more += fmt::format("{}gpu_memory = {}", more.empty() ? "" : " and ", memory);
  }
  return more.empty() ? text : text + " with " + more;
}

std::string words_of(const Gpu& gpu) {
  std::string text = fmt::format("GPU {} ({}, {})", gpu.index, gpu.name,
                                 format_bytes(static_cast<uint64_t>(gpu.memory_bytes)));
  return gpu.fault.empty() ? text : text + ", which " + gpu.fault;
}

std::string gpu_unsatisfiable_reason(const Resources& resources, const std::vector<Gpu>& gpus,
                                     const std::string& why_none) {
  const char* of_gpu = resources.gpu_memory_bytes > 0 ? "gpu_memory"
                       : !resources.gpu_model.empty() ? "gpu"
                                                      : nullptr;
  if (resources.gpus_milli == 0 && of_gpu == nullptr) return "";
  if (resources.gpus_milli == 0) {
    return fmt::format(
        "has the option `{}` and asks for no GPU: add `gpus = 1`, or a fraction that shares one",
        of_gpu);
  }
  GpuRequest request = gpu_request(resources);
  auto suiting =
      std::count_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return suits(request, gpu); });
  if (static_cast<size_t>(suiting) >= request.count()) return "";
  std::string requests_gpus = "asks for " + words_of(request) + ", and ";
  if (gpus.empty())
    return fmt::format("{}this machine has none: {}; remove `gpus` to run it on CPUs",
                       requests_gpus, why_none);
  bool is_special = resources.gpu_memory_bytes > 0 || !resources.gpu_model.empty() ||
                    static_cast<size_t>(suiting) != gpus.size();
  std::string has =
      is_special ? fmt::format("{} of this machine's {} GPUs are suitable", suiting, gpus.size())
                 : fmt::format("this machine has {}", gpus.size());
  std::string remedy = mig_unsatisfiable_reason(resources, gpus);
  remedy += remedy.empty() ? "ask for less, or run it where there is more"
                           : "or run it where there are whole GPUs";
  return fmt::format("{}{}: {}; {}", requests_gpus, has, list_of(gpus), remedy);
}

}  // namespace flow
