// A run as events of OpenLineage (openlineage.io): start and end of the run and of each of its
// tasks.
#pragma once
#include <string>
#include <vector>

#include "engine/exports/provenance.hpp"
#include "engine/fetch/fetch_options.hpp"

namespace flow {

/// JSON objects, in the order of their times. `name_space`: of the jobs and of files that only the
/// state has.
std::vector<std::string> open_lineage_events(const Provenance& provenance,
                                             const std::string& name_space);

/// Posts the events one after the other. A URL without a path gets the path `endpoint`. `api_key`:
/// "" for none. Error if the server refuses an event, or cannot be reached.
Status post_events(const std::vector<std::string>& events, const std::string& url,
                   const std::string& endpoint, const std::string& api_key,
                   const fetch::FetchOptions& options);

}  // namespace flow
