# cmake --install: the programs with all that belongs to them (component `programs`), and, if it is
# built, one shared library with the public headers, find_package(flow) and pkg-config (component
# `library`, cmake/library). The package and the portable tarball are made of the same components.

# flow_need_built(COMPONENT TARGETS…): stops the installation if one of these is not built.
function(flow_need_built component)
  list(JOIN ARGN " " targets)
  foreach(target ${ARGN})
    install(CODE "
      if(NOT EXISTS \"$<TARGET_FILE:${target}>\")
        message(FATAL_ERROR \"$<TARGET_FILE_NAME:${target}> is not built. Run: cmake --build ${PROJECT_BINARY_DIR} --target ${targets}\")
      endif()" COMPONENT ${component})
  endforeach()
endfunction()

# What the programs write themselves: the manual pages, and completions for three shells.
function(flow_install_generated)
  set(made ${PROJECT_BINARY_DIR}/generated/install)
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/write_manual.cmake CONTENT "
    set(flow $<TARGET_FILE:flow>)
    set(made ${made})
    set(share ${CMAKE_INSTALL_DATADIR})
    include(${PROJECT_SOURCE_DIR}/cmake/package/write_manual.cmake)\n")
  install(SCRIPT ${PROJECT_BINARY_DIR}/generated/write_manual.cmake COMPONENT programs)
  install(DIRECTORY ${made}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR} COMPONENT programs)
  install(FILES ${made}/bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME flow COMPONENT programs)
  install(FILES ${made}/fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d RENAME flow.fish COMPONENT programs)
endfunction()

function(flow_install_programs)
  flow_need_built(programs flow flow-executor flow-front)
  install(TARGETS flow flow-executor flow-front RUNTIME COMPONENT programs)
  flow_install_generated()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/stdlib/ DESTINATION ${CMAKE_INSTALL_DATADIR}/flow COMPONENT programs
          FILES_MATCHING PATTERN "*.lua" PATTERN "*.json" PATTERN "*.md")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/examples ${PROJECT_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs
          PATTERN ".*" EXCLUDE)  # such as the state of an example that was run in place
  install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
  install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT license)
endfunction()

flow_install_programs()
