// flow export [RUN] --format NAME -o PATH, flow import FILE.json -o DIR
#include "engine/cli/publish/publish_verbs.hpp"
#include "flow/exchange.hpp"

namespace flow::cli {

namespace {

const std::vector<std::pair<std::string, ExportFormat>>& formats() {
  static const std::vector<std::pair<std::string, ExportFormat>> all = {
      {"ro-crate", ExportFormat::ro_crate},
      {"wfformat", ExportFormat::wfformat},
      {"openlineage", ExportFormat::openlineage},
      {"mlflow", ExportFormat::mlflow},
      {"tensorboard", ExportFormat::tensorboard}};
  return all;
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const auto& [name, format] : formats()) names.push_back(name);
  return names;
}

struct ExportArguments {
  std::string run, format, out, experiment;
  bool force = false;
};

/// The variable of the environment that names the server, without -o; null if there is none.
const char* variable_of_server(ExportFormat format) {
  if (format == ExportFormat::openlineage) return "OPENLINEAGE_URL";
  return format == ExportFormat::mlflow ? "MLFLOW_TRACKING_URI" : nullptr;
}

/// Of -o, or of the environment.
std::string target_of(const ExportArguments& arguments, ExportFormat format) {
  if (!arguments.out.empty()) return arguments.out;
  const char* variable = variable_of_server(format);
  const char* url = variable == nullptr ? nullptr : std::getenv(variable);
  if (url != nullptr && *url != '\0') return url;
  if (variable == nullptr) fail("`flow export` needs -o: give the path to write.");
  fail(std::string("`flow export` needs -o: give ") +
       (format == ExportFormat::openlineage ? "a file for the events, or the URL of a server"
                                            : "the URL of an MLflow tracking server") +
       "; else " + variable + " may name it.");
}

int run_export(const VerbContext& context, const ExportArguments& arguments) {
  if (arguments.format.empty())
    fail(
        "`flow export` needs --format: give `ro-crate`, `wfformat`, `openlineage`, `mlflow` or "
        "`tensorboard`.");
  ExportOptions options;
  for (const auto& [name, format] : formats())
    if (name == arguments.format) options.format = format;
  if (!arguments.experiment.empty() && options.format != ExportFormat::mlflow)
    fail("--experiment is of `--format mlflow` only: leave it out.");
  options.target = target_of(arguments, options.format);
  options.overwrites = arguments.force;
  options.experiment = arguments.experiment;
  options.on_warning = print_warning;
  for (const std::string& path : export_run(context.engine(), arguments.run, options))
    print_line(context.json ? "{\"path\":" + json_text(path) + "}" : path);
  return kDone;
}

struct ImportArguments {
  std::string file;
  ImportOptions options;
};

int run_import(const VerbContext& context, const ImportArguments& arguments) {
  if (arguments.options.directory.empty())
    fail("`flow import` needs -o: give the folder for the pipeline.");
  ImportedWorkflow made = import_workflow(arguments.file, arguments.options);
  if (context.json) {
    std::string paths;
    for (const std::string& path : made.paths)
      paths += (paths.empty() ? "" : ",") + json_text(path);
    print_line("{\"name\":" + json_text(made.name) + ",\"tasks\":" + std::to_string(made.tasks) +
               ",\"stand_ins\":" + std::to_string(made.stand_ins) +
               ",\"inputs\":" + std::to_string(made.inputs) + ",\"paths\":[" + paths + "]}");
    return kDone;
  }
  for (const std::string& path : made.paths) print_line("wrote " + path);
  std::string text = plural(made.tasks, "task") + ": ";
  uint32_t commands = made.tasks - made.stand_ins;
  if (commands > 0) text += plural(commands, "command");
  if (made.stand_ins > 0)
    text +=
        (commands > 0 ? ", and " : "") + plural(made.stand_ins, "stand-in") + " without a command";
  print_line(text);
  if (made.inputs > 0)
    print_line(plural(made.inputs, "new file") + " in " + arguments.options.directory +
               "/inputs stand in for inputs of the workflow: replace them with the real ones");
  print_line("try: flow run " + arguments.options.directory + " --param stand_ins=true");
  return kDone;
}

}  // namespace

void add_export(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<ExportArguments>();
  CLI::App* verb =
      add_verb(app, context, "export", "write a run and its provenance in another format");
  add_run_argument(verb, arguments->run);
  verb->add_option("--format", arguments->format,
                   "ro-crate, wfformat, openlineage, mlflow or tensorboard")
      ->type_name("NAME")
      ->check(one_of("--format", format_names()));
  verb->add_option("-o,--out", arguments->out,
                   "file to write; of ro-crate and tensorboard a folder; of openlineage also an "
                   "http:// or https:// URL, by default $OPENLINEAGE_URL; of mlflow always, by "
                   "default $MLFLOW_TRACKING_URI")
      ->type_name("PATH");
  verb->add_option("--experiment", arguments->experiment,
                   "of mlflow: the experiment (default: the name of the pipeline)")
      ->type_name("NAME");
  verb->add_flag("--force", arguments->force, "replace files that exist");
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return run_export(context, *arguments); };
  });
}

void add_import(CLI::App& app, VerbContext& context) {
  auto arguments = std::make_shared<ImportArguments>();
  CLI::App* verb =
      add_verb(app, context, "import", "make a pipeline from a workflow in WfFormat 1.5");
  verb->add_option("file", arguments->file, "the workflow")->type_name("FILE")->required();
  verb->add_option("-o,--out", arguments->options.directory, "folder for the pipeline")
      ->type_name("DIR");
  verb->add_option("--scale", arguments->options.scale,
                   "factor of the run times of tasks without a command (1)")
      ->type_name("X")
      ->check(CLI::Validator(
          [](std::string& text) {
            char* end = nullptr;
            double scale = std::strtod(text.c_str(), &end);
            bool is_valid = !text.empty() && *end == '\0' && scale >= 0 && scale <= 1e9;
            return is_valid ? std::string()
                            : "--scale is `" + text + "`: expected a number from 0 to 1e9";
          },
          ""));
  verb->add_flag("--force", arguments->options.overwrites, "replace a pipeline that exists");
  verb->callback([&context, arguments] {
    context.action = [&context, arguments] { return run_import(context, *arguments); };
  });
}

}  // namespace flow::cli
