# `tidy` checks all sources outside tests/ against .clang-tidy. It builds the programs first, for the generated headers.
find_program(FLOW_RUN_CLANG_TIDY NAMES run-clang-tidy run-clang-tidy-14)
if(FLOW_RUN_CLANG_TIDY)
  add_custom_target(tidy
    COMMAND ${FLOW_RUN_CLANG_TIDY} -quiet -p ${CMAKE_BINARY_DIR} -extra-arg=-Wno-unknown-warning-option
            "^(?!.*/(generated|tests)/).*/(engine|lua|transports|kernels)/[^.]*[.](cc|cxx)$"
    USES_TERMINAL VERBATIM)
  add_dependencies(tidy flow flow-executor flow-front)
endif()
