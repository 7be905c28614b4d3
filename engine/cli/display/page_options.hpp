// The options of the web page, as `flow ui` and `flow head` have them.
#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "flow/page.hpp"

namespace flow::cli {

/// All options but the address.
void add_page_options(CLI::App& verb, PageOptions& options);
/// Prints where the page is: one object with `json`, else the link for people.
void print_page(const Page& page, bool json);

}  // namespace flow::cli
