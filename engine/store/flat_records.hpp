// The reader of the journal's schemas 1 to 14, whose records were one flat message for all kinds of
// events. This program writes none.
#pragma once
#include <string_view>
#include <vector>

#include "engine/store/store.hpp"

namespace flow {

/// `content` is a batch without its checksum. Errors name the record.
Result<std::vector<core::Record>> decode_flat_records(std::string_view content,
                                                      const FindPlan& plan,
                                                      const FindFragment& fragment);

}  // namespace flow
