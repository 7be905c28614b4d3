// The calls of libcurl. It is loaded at the first use, because it links 25 further libraries, which
// take a third of the start of a process that uses no URL.
#pragma once
#include <curl/curl.h>

#include "flow/result.hpp"

namespace flow::fetch {

#define FLOW_CURL_CALLS(call)                                                                   \
  call(curl_global_init) call(curl_version_info) call(curl_easy_init) call(curl_easy_cleanup)   \
      call(curl_easy_reset) call(curl_easy_setopt) call(curl_easy_getinfo)                      \
          call(curl_easy_strerror) call(curl_slist_append) call(curl_slist_free_all)            \
              call(curl_multi_init) call(curl_multi_cleanup) call(curl_multi_add_handle)        \
                  call(curl_multi_remove_handle) call(curl_multi_perform) call(curl_multi_poll) \
                      call(curl_multi_info_read)

struct CurlLibrary {
#define FLOW_CURL_CALL(name) decltype(&::name) name = nullptr;
  FLOW_CURL_CALLS(FLOW_CURL_CALL)
#undef FLOW_CURL_CALL
};

/// The library, initialized; or the reason why it cannot be used, with the command that installs
/// it. Thread-safe. It is never unloaded.
const Result<CurlLibrary>& curl_library();

}  // namespace flow::fetch
