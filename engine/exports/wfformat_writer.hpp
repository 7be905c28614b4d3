// A run as a workflow in WfFormat 1.5 (wfcommons.org).
#pragma once
#include <string>

#include "engine/exports/provenance.hpp"

namespace flow {

std::string wfformat_of(const Provenance& provenance);

}  // namespace flow
