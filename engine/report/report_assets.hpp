// The files of a report that the page does not have, or has another version of: see page_assets().
#pragma once
#include <vector>

#include "engine/page/page_assets.hpp"

namespace flow {

const std::vector<PageAsset>& report_assets();

}  // namespace flow
