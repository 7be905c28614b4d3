// Texts of flow.toml: what is accepted has known options, and every origin names the file.
#include "engine/config/configuration.hpp"
#include "engine/submission/task_configuration.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  flow::ConfigOptions config{{{"flow.toml", std::string(text)}}, ""};
  auto configuration = flow::read_task_configuration(config);
  if (!configuration.ok()) {
    FLOW_CHECK(configuration.error().kind == flow::ErrorKind::user);
    FLOW_CHECK(configuration.error().message.starts_with("flow.toml:"));
    return 0;
  }
  for (const flow::ConfigSetting& setting : configuration->settings) {
    FLOW_CHECK(setting.origin().starts_with("flow.toml:"));
    FLOW_CHECK(!setting.option.empty() && !setting.value.is_nil());
    (void)flow::matches_task(setting.pattern, "align");
  }
  flow::Plan plan;
  plan.defs.resize(1);
  plan.defs[0].name = "align";
  flow::configure_tasks(*configuration, plan);
  FLOW_CHECK(!flow::explain_tasks(*configuration, plan).empty());
  auto kept = flow::kept_config(config);
  FLOW_CHECK(kept.ok());
  std::string profile;
  FLOW_CHECK(flow::values_of_kept(*kept, profile).size() <= configuration->settings.size());
  return 0;
}
