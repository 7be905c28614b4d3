#include "engine/cli/display/page_options.hpp"

#include "engine/cli/display/common.hpp"

namespace flow::cli {

void add_page_options(CLI::App& verb, PageOptions& options) {
  verb.add_option("--token-name", options.token_name,
                  "user of the runs that the page starts (default: your user name)")
      ->type_name("NAME");
  verb.add_option("--tls-cert", options.tls_certificate,
                  "certificate of the page with its chain, as PEM")
      ->type_name("FILE");
  verb.add_option("--tls-key", options.tls_key, "key of the certificate, as PEM")
      ->type_name("FILE");
  verb.add_option("--keys", options.keys_file,
                  "file with one key per line; a user with a key may sign in on the page")
      ->type_name("FILE");
  verb.add_option("--host", options.hosts,
                  "name by which browsers reach the page, besides addresses; may be repeated")
      ->type_name("NAME")
      ->allow_extra_args(false);
}

void print_page(const Page& page, bool json) {
  if (json) {
    print_line("{\"url\":" + json_text(page.link()) + ",\"address\":" + json_text(page.address()) +
               ",\"state\":" + json_text(page.state_dir()) + "}");
  } else {
    print_line("the page of `" + page.state_dir() + "`, for anyone with the link, until Ctrl-C:");
    print_line(page.link());
  }
  flush_output();
}

}  // namespace flow::cli
