// Runs as one HTML file: `flow report` uses it.
#pragma once
#include <string>
#include <vector>

#include "flow/flow.hpp"

namespace flow {

/// A report of the runs that the selectors select, as Reader::show: an HTML document for any
/// browser, without requests to any host. It has the views of <flow/page.hpp> as they are now, and
/// the environment, the code, the files with their digests, and a comparison of several runs. What
/// is large is cut: see docs/reference-cli.md, Reports. A run that is selected twice is there once.
/// Reads the state of `options` next to its writer. Throws Failed: user for an unknown run, a run
/// whose tasks were collected, or no selector.
std::string report_html(const EngineOptions& options, const std::vector<std::string>& selectors);

struct ReportOptions {
  std::string target{};     ///< file to write
  bool overwrites = false;  ///< replaces a file that exists
};

/// Writes report_html() to a file. Throws Failed, also (user) if the file exists, (environment) if
/// it cannot be written.
void write_report(const EngineOptions& options, const std::vector<std::string>& selectors,
                  const ReportOptions& how);

}  // namespace flow
