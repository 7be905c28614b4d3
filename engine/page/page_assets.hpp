// The files of the page: HTML, modules, styles. Embedded in the library by embed.cmake.
#pragma once
#include <string_view>
#include <vector>

namespace flow {

struct PageAsset {
  std::string_view name, content;
};

const std::vector<PageAsset>& page_assets();

}  // namespace flow
