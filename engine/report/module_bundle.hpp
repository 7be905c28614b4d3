// JavaScript modules as one script. A page that is opened as a file cannot import other files, and
// the policy of a report permits only scripts whose hash it names.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "engine/page/page_assets.hpp"
#include "flow/result.hpp"

namespace flow {

/// A script that runs `entry` and the modules that it imports, each in a function of its own.
/// Modules are named as they import one another: "dom.js" by `import { h } from "./dom.js"`. Error
/// (internal) for a module or an export that is missing, for cycles, and for forms of `import` and
/// `export` other than `import { a, b as c } from`, `export function`, `export async function`,
/// `export class` and `export const NAME`.
Result<std::string> bundle_modules(const std::vector<PageAsset>& modules, std::string_view entry);

}  // namespace flow
