// Runs in the formats of other programs, and pipelines made from files of other programs.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

enum class ExportFormat : uint8_t {
  ro_crate,     ///< a folder: Workflow Run RO-Crate, profile Provenance Run Crate 0.5
  wfformat,     ///< a JSON file: WfFormat 1.5 (wfcommons.org)
  openlineage,  ///< a file with one event per line, or events posted to an `http(s)://` URL
  mlflow,       ///< a run of an MLflow tracking server at an `http(s)://` URL
  tensorboard,  ///< a folder with event files, as of Reader::write_tensorboard
};

struct ExportOptions {
  ExportFormat format = ExportFormat::wfformat;
  std::string target{};  ///< file or folder to write; of openlineage also a URL, of mlflow always
  bool overwrites = false;   ///< replaces files that exist
  std::string experiment{};  ///< of mlflow; "": the name of the pipeline
  /// What was cut or left out, in words. On the caller's thread.
  std::function<void(const std::string&)> on_warning{};
};

/// Writes the run that `selector` selects, as Reader::show, and returns the paths written, or the
/// URL, of mlflow that of the run's page. Reads the state of `options` next to its writer. Throws
/// Failed: user for an unknown run, a run without tasks, or a target that exists; environment if it
/// cannot be written or posted.
std::vector<std::string> export_run(const EngineOptions& options, const std::string& selector,
                                    const ExportOptions& how);

/// Writes a run as a timeline: a JSON file in the Trace Event Format, which ui.perfetto.dev and
/// chrome://tracing show. Each attempt is a slice of its worker's slot, with slices for staging,
/// its function and the commit inside; arrows follow the dependencies. Of a run that has not ended
/// it has what is known so far. Returns the path. Throws Failed as export_run().
std::string write_trace(const EngineOptions& options, const std::string& selector,
                        const std::string& file, bool overwrites = false);

struct ImportOptions {
  std::string directory{};  ///< where the pipeline is written; it need not exist
  double scale = 1;         ///< default factor of the run times of stand-ins; 0 or more
  bool overwrites = false;  ///< replaces a pipeline that exists
};
struct ImportedWorkflow {
  std::string name;
  uint32_t tasks = 0;              ///< all of them
  uint32_t stand_ins = 0;          ///< tasks for which the workflow has no command
  uint32_t inputs = 0;             ///< new files below `directory`/inputs that stand in for inputs
  std::vector<std::string> paths;  ///< of the pipeline's files
};

/// Makes a pipeline from `file`, a workflow in WfFormat 1.5. Files below `directory`/inputs are
/// never replaced. Throws Failed: user for a file that is not such a workflow, or a pipeline that
/// exists; environment if a file cannot be read or written.
ImportedWorkflow import_workflow(const std::string& file, const ImportOptions& options);

}  // namespace flow
