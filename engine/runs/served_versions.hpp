// The versions of what is served under a name: the runs of that name, newest last.
#pragma once
#include <optional>
#include <set>
#include <string>

#include "engine/runs/run_rows.hpp"

namespace flow {

/// The newest run of this name that has served and has not ended. One that is interrupted only if
/// no newer one has served.
Result<std::optional<RunRecord>> serving_version(const Store& store, const std::string& name);
/// As select_record, but a name means the version that serves; if there is none, the newest run of
/// that name that has not ended.
Result<RunRecord> select_serving(const Store& store, const std::string& selector);
/// The same for what is to be served again: if nothing serves, a name means the newest run of that
/// name that has served.
Result<RunRecord> select_served(const Store& store, const std::string& selector);
/// The newest run before `serving` that has its name and all its services, has served and has
/// succeeded.
Result<std::optional<RunRecord>> version_before(const Store& store, const Blobs& blobs,
                                                const RunRecord& serving);
/// The runs that a rollback needs: for each name that is served, the version before.
Result<std::set<std::string>> rollback_versions(const Store& store, const Blobs& blobs);

}  // namespace flow
