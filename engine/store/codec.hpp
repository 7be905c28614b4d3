// Shared by the codecs of the journal and of snapshots; the generated types stay below this line.
#pragma once
#include "engine/store/journal.pb.h"
#include "engine/store/store.hpp"

namespace flow {

void put_failure(const core::Failure& failure, journal::Failure& m);
bool get_failure(const journal::Failure& m, core::Failure& failure);
Error newer_schema(uint32_t schema, const char* what);

}  // namespace flow
