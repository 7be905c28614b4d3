// A workflow in WfFormat becomes a pipeline, or an error; no text of it leaves its literal or leads
// out of a folder.
#include "engine/exports/wfformat_pipeline.hpp"
#include "engine/exports/wfformat_reader.hpp"

namespace {

bool is_safe_path(const std::string& path) {
  if (path.empty() || path[0] == '/') return false;
  for (size_t at = 0; at <= path.size();) {
    size_t end = std::min(path.find('/', at), path.size());
    std::string name = path.substr(at, end - at);
    if (name.empty() || name == "." || name == "..") return false;
    at = end + 1;
  }
  return path.find_first_of("{}\n\r", 0) == std::string::npos;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto workflow = flow::read_wfformat({reinterpret_cast<const char*>(data), size});
  if (!workflow.ok()) {
    FLOW_CHECK(!workflow.error().message.empty());
    return 0;
  }
  for (uint32_t i = 0; i < workflow->tasks.size(); i++) {
    const flow::WorkflowTask& task = workflow->tasks[i];
    FLOW_CHECK(!task.id.empty() && task.seconds >= 0 && task.cpus >= 0);
    for (uint32_t parent : task.parents) FLOW_CHECK(parent < i);
    for (uint32_t file : task.inputs) FLOW_CHECK(file < workflow->files.size());
    for (uint32_t file : task.outputs) FLOW_CHECK(file < workflow->files.size());
  }
  for (const flow::WorkflowFile& file : workflow->files)
    FLOW_CHECK(is_safe_path(flow::local_name(file.id)));
  flow::PipelineFiles files = flow::pipeline_of(*workflow, "w.json", 1);
  for (const auto& [name, content] : files.inputs)
    FLOW_CHECK(is_safe_path(name) && name.find('/') == std::string::npos);
  for (const std::string* text : {&files.script, &files.tasks})
    for (char c : *text) FLOW_CHECK(c == '\n' || c == '\t' || (c >= 0x20 && c < 0x7f));
  return 0;
}
